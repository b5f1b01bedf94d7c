"""One HTTP request and its answer, as far as headers and metrics tell of it."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from service.records import Timings

Scope = MutableMapping[str, Any]

_KEY = "attention.exchange"
_HEADERS = "attention.headers"
_SERVER_TIMING = ", ".join(f"{stage};dur=%.3f" for stage in (*Timings.STAGES, "total"))
_SANE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class _Ids:
    """Request ids: the process's own name, and a number."""

    def __init__(self) -> None:
        self.begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        # Asking the system for randomness each time would let go of the interpreter each time.
        self._process, self._numbers = secrets.token_hex(6), itertools.count(1)

    def next(self) -> str:
        return f"{self._process}-{next(self._numbers):06x}"


_IDS = _Ids()
new_id = _IDS.next


@dataclass(slots=True)
class Exchange:
    """Made by the outermost middleware, filled in by whoever learns more. Times are those of `perf_counter`."""

    request_id: str
    endpoint: str
    began: float = field(default_factory=time.perf_counter)
    encoding: str = ""
    """The label of its metrics: the id of the reference encoding, `unknown`, or "" where there is none."""
    status: int = 0
    reason: str | None = None
    """Of the failure, if it failed."""
    timings: Timings | None = None
    """Of an answer that was computed."""
    nonfinite: bool = False
    body_read: bool = False
    close: bool = False
    """Whether the connection must be closed after this answer."""

    @classmethod
    def of(cls, scope: Scope) -> Exchange:
        found = scope[_KEY]
        assert isinstance(found, Exchange)
        return found

    @classmethod
    def begin(cls, scope: Scope, endpoint: str) -> Exchange:
        """Takes the client's own request id where it is a sane one."""
        # Reversed: of headers that came twice the first one counts.
        scope[_HEADERS] = dict(reversed(scope["headers"]))
        sent = header(scope, b"x-request-id")
        request_id = sent if sent is not None and _SANE.fullmatch(sent) else new_id()
        scope[_KEY] = exchange = cls(request_id, endpoint)
        return exchange

    @property
    def server_timing(self) -> str:
        """The `Server-Timing` header: milliseconds of each stage and of all, up to now."""
        total = 1e3 * (time.perf_counter() - self.began)
        if self.timings is None:
            return f"total;dur={total:.3f}"
        a, b, c, d, e, f = self.timings.stages
        return _SERVER_TIMING % (1e3 * a, 1e3 * b, 1e3 * c, 1e3 * d, 1e3 * e, 1e3 * f, total)


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of that (lower-case) name. The scope is one that `Exchange.begin` has seen."""
    value = scope[_HEADERS].get(name)
    return None if value is None else str(value, "latin-1")
