"""One HTTP request and its answer, as far as headers and metrics tell of it."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from service.records import AttentionInput, ScoringResult, Timings
from service.wire import media

Scope = MutableMapping[str, Any]

_KEY = "attention.exchange"
_HEADERS = "attention.headers"
_SERVER_TIMING = ", ".join(f"{stage};dur=%.3f" for stage in (*Timings.STAGES, "total"))
_SANE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def _format(content_type: str | None) -> str:
    return media.FORMATS.get((content_type or "").partition(";")[0].strip().lower(), "")


current: ContextVar[str | None] = ContextVar("request", default=None)
"""The id of the request that is being answered."""


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
    nonfinite: tuple[str, ...] = ()
    """The encodings whose numbers in the answer are not all finite."""
    tokens: int = 0
    """Keys of each sequence; 0 where that is not known."""
    sequences: int = 1
    encodings: tuple[str, ...] = ()
    """Under which the sequences were answered."""
    received: int = 0
    """Bytes of a body that was read in full."""
    received_as: str = ""
    """Its format, of `media.FORMATS`."""
    sent: int = 0
    sent_as: str = ""
    """The same of the answer."""
    method: str = "POST"
    trace: Mapping[str, str] = field(default_factory=dict)
    """The caller's trace context, by the names of its headers."""
    claim: Callable[[], None] | None = None
    """Gives up what the body counts for while its request is under way."""
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
        scope[_KEY] = exchange = cls(request_id, endpoint, method=scope["method"])
        if (parent := header(scope, b"traceparent")) is not None:
            exchange.trace = {"traceparent": parent, "tracestate": header(scope, b"tracestate") or ""}
        current.set(request_id)
        return exchange

    def let_go(self) -> None:
        """Its body is needed no more."""
        if self.claim is not None:
            self.claim()
            self.claim = None

    def asks(self, input: AttentionInput) -> None:
        """The body says this."""
        keys = input.embeddings if input.embeddings is not None else input.keys
        self.tokens = 0 if keys is None else keys.shape[-2]

    def answers(self, result: ScoringResult, timings: Timings) -> None:
        """This is what is answered."""
        self.timings, self.tokens, self.sequences = timings, result.keys, result.batch or 1
        self.encodings = tuple(one.encoding for one in result.results)
        self.nonfinite = tuple(one.encoding for one in result.results if one.nonfinite_cells)

    def fails(self, status: int, reason: str) -> None:
        """There is no answer, for this reason."""
        self.status, self.reason = status, reason
        self.timings, self.encodings, self.nonfinite = None, (), ()

    def took(self, content_type: str | None, size: int) -> None:
        """A body was read."""
        self.received, self.received_as = size, _format(content_type)

    def gave(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """An answer with these headers begins."""
        for name, value in headers:
            if name == b"content-length":
                self.sent = int(value)
            elif name == b"content-type":
                self.sent_as = _format(value.decode("latin-1"))

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
