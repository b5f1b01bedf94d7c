"""One HTTP request and its answer, as far as headers and metrics tell of it."""

from __future__ import annotations

import itertools
import re
import secrets
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from service.records import Timings

Scope = MutableMapping[str, Any]

_KEY = "attention.exchange"
# Asking the system for randomness each time would let go of the interpreter each time.
_PROCESS, _numbers = secrets.token_hex(6), itertools.count(1)
_SANE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


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
        sent = header(scope, b"x-request-id")
        request_id = sent if sent is not None and _SANE.fullmatch(sent) else f"{_PROCESS}-{next(_numbers):06x}"
        scope[_KEY] = exchange = cls(request_id, endpoint)
        return exchange

    @property
    def server_timing(self) -> str:
        """The `Server-Timing` header: milliseconds of each stage and of all, up to now."""
        total = f"total;dur={(time.perf_counter() - self.began) * 1e3:.3f}"
        if self.timings is None:
            return total
        stages = (f"{stage};dur={getattr(self.timings, stage) * 1e3:.3f}" for stage in Timings.STAGES)
        return f"{', '.join(stages)}, {total}"


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of that (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None
