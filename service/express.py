"""Small scoring requests straight from the socket: what the framework, the server and a task of their own would cost
them is more than they cost themselves.

Nothing is answered here that would be answered otherwise: a request is taken only if its head is, byte for byte, one
that has been answered before, its body came with it, and its job runs in this turn of the event loop. All others, and
those in which anything is wrong, go the long way.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.engine.job import Job, JobResult, Tables
from service.errors import ServiceError
from service.exchange import Exchange, new_id
from service.lifecycle import Lifecycle
from service.middleware import refusal
from service.plan import Plan, RunsSoon
from service.records import ScoringResult, Timings
from service.routes.attention import PATH, THREADED, Asked, Attention
from service.routes.open_inference_statistics import Statistics
from service.settings import Settings
from service.telemetry import Telemetry
from service.wire import body, media, npy, safetensors
from service.wire.answer import timings_text

logger = logging.getLogger(__name__)

LONGEST = 2048
"""Bytes of a head that is remembered."""
REMEMBERED, ROUTINES = 1024, 256
"""Heads and routines that are remembered at a time. A routine may hold a mask."""
_UNUSUAL = (b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"x-request-id")
"""Heads with these are not remembered: they ask for something of this one request."""


class Connection(Protocol):
    """What is needed of one."""

    @property
    def first_lines(self) -> bytes:
        """Of an answer of 200: the status, and what every answer of the server has."""

    def hold(self) -> None:
        """An answer is on its way: what else comes waits for it."""

    def reply(self, pieces: list[Any], *, close: bool) -> None:
        """Writes an answer, and goes on."""


@dataclass(frozen=True, slots=True)
class Routine:
    """All that a request has in common with an earlier one from which it differs in its numbers alone: a job to be
    made again of others, and an answer."""

    plan: Plan
    shape: tuple[int, ...]
    """That of its queries and keys, which are the same."""
    job: Job
    """The earlier one, without its numbers."""
    names: tuple[str, ...]
    """Of its outputs, in the order of the answer."""
    around: tuple[bytes, bytes]
    """What stands before and after the timings in the header of the answer."""


@dataclass(slots=True)
class Head:
    """A head that was read before: what it says, and how long its body is.

    `asked` is what that means, once it was found; `routines` are by the header of the array in the body, where it is an
    npy file.
    """

    said: tuple[bytes, str | None, str | None]
    length: int
    asked: Asked | None = None
    routines: dict[bytes, Routine] = field(default_factory=dict)


class Express:
    """Belongs to one event loop."""

    def __init__(
        self,
        attention: Attention,
        engine: RunsSoon,
        lifecycle: Lifecycle,
        telemetry: Telemetry,
        statistics: Statistics,
        settings: Settings,
    ) -> None:
        self.statistics = statistics
        self.attention = attention
        self.scoring = attention.scoring
        self.engine = engine
        self.lifecycle = lifecycle
        self.telemetry = telemetry
        self.settings = settings
        self._heads: dict[bytes, Head] = {}
        self._routines = 0

    def learn(self, head: bytes, scope: Mapping[str, Any]) -> None:
        """Remembers the head of a request, as the server has read it."""
        if scope["path"] != PATH or scope["method"] != "POST" or scope["http_version"] != "1.1" or len(head) > LONGEST:
            return
        headers = dict(reversed(scope["headers"]))
        length = headers.get(b"content-length", b"")
        if any(name in headers for name in _UNUSUAL) or not length.isdigit() or int(length) > THREADED:
            return
        if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive" or head in self._heads:
            return
        if len(self._heads) >= REMEMBERED:
            self._forget()
        accept, kind = headers.get(b"accept"), headers.get(b"content-type")
        said = scope["query_string"], accept and accept.decode("latin-1"), kind and kind.decode("latin-1")
        self._heads[head] = Head(said, int(length))

    def _forget(self) -> None:
        """Everything: what is still sent is soon learnt again."""
        self._heads.clear()
        self._routines = 0

    def take(self, connection: Connection, data: bytes) -> bool:
        """Whether this, the next that came over a connection, is answered here."""
        began = time.perf_counter()
        end = data.find(b"\r\n\r\n", 0, LONGEST) + 4
        head = self._heads.get(data[:end])
        if head is None or len(data) - end != head.length or self.lifecycle.draining:
            return False
        content = data[end:]
        reply = self._routine(connection, head, content, began) or self._other(connection, head, content, began)
        # It is computed in this turn: no deadline is so near.
        if reply is None or not self.engine.run_soon(reply.job, None, reply.done):
            return False
        connection.hold()
        self.lifecycle.inflight += 1
        self.telemetry.began(PATH)
        return True

    def _routine(self, connection: Connection, head: Head, content: bytes, began: float) -> _Reply | None:
        start = 10 + content[8] + 256 * content[9] if len(content) > 10 else 0
        routine, asked = head.routines.get(content[:start]), head.asked
        if routine is None or asked is None:
            return None
        tables = self.scoring.tables.get(routine.plan.parts[0].computed)
        numbers = np.frombuffer(content, "<f4", offset=start)
        # As quick as one look at each number can be: whatever is not finite makes the sum of squares so.
        if tables is None or not math.isfinite(numbers.dot(numbers)):
            return None
        queries, one = numbers.reshape(routine.shape), routine.job
        job = Job(
            one.graph, tables, one.outputs, queries, queries, one.visible, one.cells, one.switches, None, one.known_key
        )
        return _Reply(self, connection, asked, routine.plan, job, began, head, content, routine)

    def _other(self, connection: Connection, head: Head, content: bytes, began: float) -> _Reply | None:
        asked = head.asked = head.asked or self.attention.known(head.said)
        if asked is None or asked.accepted not in media.BINARY:
            return None
        try:
            input = body.decode(asked.kind, content, self.settings.max_body_bytes)
            found = self.scoring.at_once(input, asked.query.options)
        except ServiceError:
            return None
        return None if found is None else _Reply(self, connection, asked, *found, began, head, content)

    def learn_routine(
        self, head: Head, content: bytes, asked: Asked, plan: Plan, job: Job, result: ScoringResult
    ) -> None:
        """Remembers what was worked out for a request."""
        if asked.kind != media.NPY or asked.accepted != media.SAFETENSORS or sys.byteorder != "little":
            return
        around = safetensors.around_timings(result, asked.query.dtype)
        layout, choice = npy.layout(content), plan.layout.choice
        if around is None or layout is None or asked.query.dtype != "float32":
            return
        if any(part is not None for part in (choice.rows, choice.head, choice.top_k)) or job.queries is not job.keys:
            return
        if self._routines >= ROUTINES:
            self._forget()
        self._routines += 1
        nothing = np.empty(0, np.float32)
        kept = replace(job, queries=nothing, keys=nothing, tables=Tables("", {}), known_key=job.key)
        names = ("weights", "scores", *(name for name in job.outputs if name.startswith("term.")), "output")
        wanted = tuple(name for name in names if name in job.outputs)
        head.routines[content[: layout[1]]] = Routine(plan, job.queries.shape, kept, wanted, around)


class _Reply:
    """The answer to one request."""

    __slots__ = (
        "_asked",
        "_connection",
        "_content",
        "_exchange",
        "_express",
        "_head",
        "_plan",
        "_queued",
        "_routine",
        "job",
    )

    def __init__(
        self,
        express: Express,
        connection: Connection,
        asked: Asked,
        plan: Plan,
        job: Job,
        began: float,
        head: Head,
        content: bytes,
        routine: Routine | None = None,
    ) -> None:
        self._express = express
        self._connection = connection
        self._asked = asked
        self._plan = plan
        self.job = job
        self._head = head
        self._content = content
        self._routine = routine
        self._exchange = exchange = Exchange(new_id(), PATH, began, asked.label, 200)
        exchange.tokens, exchange.sequences = job.keys.shape[1], len(job.keys)
        exchange.received, exchange.received_as = len(content), media.FORMATS[asked.kind]
        self._queued = time.perf_counter()

    def done(self, found: JobResult | ServiceError) -> None:
        exchange, express = self._exchange, self._express
        lifecycle = express.lifecycle
        express.statistics.ended(self.job.graph.name, found, time.perf_counter() - self._queued)
        try:
            pieces = self._refused(found) if isinstance(found, ServiceError) else self._answered(found)
        except Exception:
            logger.exception("request %s failed", exchange.request_id)
            pieces = self._refused(
                ServiceError(f"the service failed on this request; its log says why under {exchange.request_id}")
            )
        self._connection.reply(pieces, close=lifecycle.draining)
        lifecycle.inflight -= 1
        express.telemetry.finished(exchange, time.perf_counter() - exchange.began)

    def _answered(self, found: JobResult) -> list[Any]:
        exchange, asked = self._exchange, self._asked
        back = time.perf_counter()
        waited = back - self._queued
        compute = min(waited, found.compute)
        assembly = min(waited - compute, found.batch_assembly)
        timings = Timings(self._queued - exchange.began, waited - compute - assembly, assembly, compute)
        timings.batch_jobs = found.batch_jobs
        exchange.timings = timings
        routine = self._routine
        exchange.encodings = (exchange.encoding,)
        if routine is not None and not found.nonfinite:
            head = safetensors.headed(routine.around[0], timings_text(timings), routine.around[1])
            pieces = [head, *(found.outputs[name].data.cast("B") for name in routine.names)]
            timings.serialize = time.perf_counter() - back
        else:
            pieces = self._encoded(found, timings, back)
        exchange.sent, exchange.sent_as = sum(map(len, pieces)), media.FORMATS[asked.accepted]
        return [self._lines(asked.accepted, exchange.sent), *pieces]

    def _encoded(self, found: JobResult, timings: Timings, back: float) -> list[Any]:
        asked, express = self._asked, self._express
        result = express.scoring.answered_at_once(self._plan, found, self.job.visible, asked.query.options, timings)
        cut = time.perf_counter()
        timings.postprocess = cut - back
        pieces = list(body.encode(asked.accepted, result, asked.query.dtype))
        self._exchange.nonfinite = tuple(one.encoding for one in result.results if one.nonfinite_cells)
        if self._routine is None:
            express.learn_routine(self._head, self._content, asked, self._plan, self.job, result)
        timings.serialize = time.perf_counter() - cut
        return pieces

    def _lines(self, kind: str, size: int) -> bytes:
        lines = (
            f"content-type: {kind}\r\ncontent-length: {size}\r\nvary: Accept\r\ncache-control: no-store\r\n"
            f"x-request-id: {self._exchange.request_id}\r\nserver-timing: {self._exchange.server_timing}\r\n"
        )
        return b"%b%b%b\r\n" % (self._connection.first_lines, lines.encode(), self._closing)

    @property
    def _closing(self) -> bytes:
        return b"connection: close\r\n" if self._express.lifecycle.draining else b""

    def _refused(self, error: ServiceError) -> list[Any]:
        exchange = self._exchange
        exchange.fails(error.status, error.reason)
        headers, content = refusal(error, exchange.request_id)
        exchange.gave(headers)
        headers += [
            (b"x-request-id", exchange.request_id.encode()),
            (b"server-timing", exchange.server_timing.encode()),
        ]
        lines = [STATUS_LINE[error.status], *(b"%b: %b\r\n" % header for header in headers), self._closing, b"\r\n"]
        return [b"".join(lines), content]
