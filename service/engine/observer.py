"""What the engine tells of its work, for metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, Protocol

logger = logging.getLogger(__name__)
P = ParamSpec("P")

TRIGGERS = ("idle", "full", "rerun")
"""Why a batch has no more jobs: none like them were queued when a worker fell idle; the policy's limit; it is one
member of a batch that failed."""


class EngineObserver(Protocol):
    """Every call is quick. `batch_*` come from worker threads, all others from the event loop's thread.

    What it raises is logged and goes no further. After each `batch_started` comes one `batch_finished` or
    `batch_failed`.
    """

    def queued(self, graph: str, jobs: int) -> None:
        """So many jobs of this graph were admitted."""

    def batch_started(self, graph: str, jobs: int, trigger: str) -> None:
        """A run begins; `trigger` is one of `TRIGGERS`."""

    def batch_finished(self, graph: str, jobs: int, seconds: float, provider: str, trigger: str) -> None:
        """A run ended well; `seconds` is the time inside onnxruntime."""

    def computed(self, graph: str, real: int, padding: int) -> None:
        """Keys of the sequences of a run that ended well: those that came, and those they were padded with. From the
        thread of the run."""

    def batch_failed(self, graph: str, jobs: int, trigger: str) -> None:
        """A run raised. A batch of several is then run again member by member, each a batch of its own (`rerun`)."""

    def dropped(self, jobs: int, reason: str) -> None:
        """So many jobs left the queue uncomputed; `reason` is that of the `ServiceError` (`cancelled`, `deadline`,
        ...).
        """

    def rejected(self, reason: str) -> None:
        """A request was refused at the door; `reason` as above (`queue_full`, `too_large`, `draining`, `not_ready`)."""


class Unobserved:
    """The default: nobody looks."""

    def queued(self, graph: str, jobs: int) -> None: ...

    def batch_started(self, graph: str, jobs: int, trigger: str) -> None: ...

    def batch_finished(self, graph: str, jobs: int, seconds: float, provider: str, trigger: str) -> None: ...

    def computed(self, graph: str, real: int, padding: int) -> None: ...

    def batch_failed(self, graph: str, jobs: int, trigger: str) -> None: ...

    def dropped(self, jobs: int, reason: str) -> None: ...

    def rejected(self, reason: str) -> None: ...


def tell(event: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Calls an observer; metrics that fail must not end a worker or a request."""
    try:
        event(*args, **kwargs)
    except Exception:
        logger.exception("an observer of the engine failed")
