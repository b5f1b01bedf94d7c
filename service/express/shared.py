"""Requests all of whose outputs go to shared memory, straight from the socket.

Their numbers lie elsewhere, so a client that uses its regions again sends the very same bytes: what these come to is
worked out once, and an answer's few lines are ready before it is asked for. What is small is run here and now, what is
not goes to a worker, and anything that is wrong, gone or new goes the long way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from starlette.types import Message

from service.deadline import Deadline
from service.engine.job import Job, JobResult, Tables
from service.errors import ClientClosedRequest, ServiceError
from service.exchange import Exchange, new_id
from service.express.connection import Connection
from service.express.heads import UNUSUAL
from service.express.kept import Kept
from service.express.refusing import refuse
from service.express.spent import Spent
from service.finite import all_finite
from service.outgoing import NOSNIFF
from service.places import Placed
from service.plan import RunsAtOnce
from service.routes import open_inference_options as options
from service.routes.leaving import Leaving
from service.routes.open_inference import INFER, OpenInference, Target
from service.routes.open_inference_infer import places
from service.routes.open_inference_models import VERSION, ServedModel
from service.routes.open_inference_regions import is_local
from service.shared_memory.lending import Lending
from service.shared_memory.mapping import Mapping as Mapped
from service.shared_memory.regions import Regions
from service.tables import Needs
from service.telemetry import Telemetry
from service.wire import media
from service.wire import open_inference as wire
from service.wire import open_inference_coding as coding
from service.wire.open_inference import InferResponse, Output

LONGEST = 8192
"""Bytes of a request that is remembered, head and body."""
HEADS, REQUESTS, TABLES = 256, 256, 64 << 20
"""Heads and requests that are remembered at a time, and bytes of their tables, masks and of outputs that nobody asked
for."""
PATIENCE, AGAIN = 4, 64
"""After so many requests that could not be taken a head is looked at once in so many times."""
_SPOKEN_FOR = b"x-forwarded-for"
"""Heads with this are not remembered: they come from somebody else."""


@dataclass(slots=True)
class Head:
    """What a head says."""

    served: ServedModel
    json_length: str | None
    length: int
    """Bytes of the body."""
    refused: int = 0
    """How many requests in a row were not taken."""

    @property
    def hopeless(self) -> bool:
        return self.refused > PATIENCE and self.refused % AGAIN != 0


@dataclass(slots=True, eq=False)
class Known:
    """What the bytes of a request come to."""

    head: Head
    numbers: np.ndarray
    """Where its embeddings lie."""
    mappings: Sequence[Mapped]
    needs: Needs
    job: Job
    response: InferResponse
    like: Exchange
    content: bytes = field(init=False)
    """Of an answer whose numbers are all finite."""
    bytes: int = 0
    """What it keeps from being forgotten elsewhere."""

    def __post_init__(self) -> None:
        self.content = b"".join(wire.encode_json(self.response))

    def with_tables(self, tables: Tables) -> Job:
        job = self.job
        if job.tables is not tables:
            job = self.job = replace(job, tables=tables)
        return job


class SharedExpress:
    """Belongs to one event loop."""

    def __init__(
        self, open_inference: OpenInference, regions: Regions, engine: RunsAtOnce, telemetry: Telemetry
    ) -> None:
        self.models = open_inference.models
        self.failure = open_inference.failure
        self.scoring = open_inference.infer.scoring
        self.lifecycle = open_inference.lifecycle
        self.settings = open_inference.settings
        self.statistics = open_inference.statistics
        self.regions = regions
        self.engine = engine
        self.telemetry = telemetry
        self._unusual = (*UNUSUAL, _SPOKEN_FOR, *((b"origin",) if self.settings.cors_origins else ()))
        vary = b"Accept-Encoding, Origin" if self.settings.cors_origins else b"Accept-Encoding"
        lines = b"content-type: application/json\r\nvary: %b\r\ncache-control: no-store\r\n%b: %b\r\ncontent-length: "
        self._lines = lines % (vary, *NOSNIFF)
        self._heads: dict[bytes, Head] = {}
        self._known: dict[bytes, Known] = {}
        self._bytes = 0
        self._kept = Kept(self.lifecycle)

    def learn(self, head: bytes, scope: Mapping[str, Any]) -> None:
        """Remembers the head of a request, as the server has read it."""
        target = Target.of(scope["path"])
        if target is None or target.template != INFER or scope["method"] != "POST" or scope["http_version"] != "1.1":
            return
        headers = dict(reversed(scope["headers"]))
        length = headers.get(b"content-length", b"")
        if any(name in headers for name in self._unusual) or not length.isdigit() or int(length) + len(head) > LONGEST:
            return
        accepted = headers.get(b"accept-encoding", b"").decode("latin-1")
        if scope["query_string"] or coding.negotiate(accepted, binary=False) is not None:
            return
        if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive" or head in self._heads:
            return
        try:
            served = self.models.find(target.model, target.version)
        except ServiceError:
            return
        if len(self._heads) >= HEADS:
            self.forget()
        said = headers.get(b"inference-header-content-length")
        self._heads[head] = Head(served, None if said is None else said.decode("latin-1"), int(length))

    def expects(self, data: bytes | bytearray) -> int | None:
        """How many bytes the request has of which these are the first, if its head is known and worth waiting for."""
        end = data.find(b"\r\n\r\n", 0, LONGEST) + 4
        head = self._heads.get(bytes(data[:end]))
        return None if head is None or head.hopeless else end + head.length

    def take(self, connection: Connection, data: bytes | bytearray) -> bool:
        """Whether this, the next that came over a connection, is answered here."""
        if len(data) > LONGEST or self.lifecycle.draining or not is_local(connection.peer):
            return False
        began = time.perf_counter()
        content = bytes(data)
        known = self._known.get(content) or self._learn(content)
        if known is None:
            return False
        tables = self.scoring.tables.get(known.needs)
        if tables is None or not self._usable(known) or not all_finite(known.numbers):
            self._known.pop(content, None)
            return False
        self._answer(connection, known, known.with_tables(tables), content, began)
        return True

    def sweep(self) -> None:
        """Lets go of what has to do with regions that are no more."""
        for content, known in list(self._known.items()):
            if not self._usable(known):
                del self._known[content]

    def forget(self) -> None:
        """What was learnt."""
        self._heads.clear()
        self._known.clear()
        self._bytes = 0

    def _usable(self, known: Known) -> bool:
        return all(map(self.regions.holds, known.mappings)) and _intact(known)

    def _learn(self, content: bytes) -> Known | None:
        """What these bytes come to; None where they must go the long way."""
        end = content.find(b"\r\n\r\n") + 4
        head = self._heads.get(content[:end])
        if head is None or len(content) - end != head.length:
            return None
        known = None if head.hopeless else self._read(head, content[end:])
        if known is None:
            head.refused += 1
            return None
        head.refused = 0
        if len(self._known) >= REQUESTS or self._bytes + known.bytes > TABLES:
            self._known.clear()
            self._bytes = 0
        self._known[content] = known
        self._bytes += known.bytes
        return known

    def _read(self, head: Head, body: bytes) -> Known | None:
        served, lending = head.served, Lending(self.regions)
        try:
            request = wire.read(wire.take_apart(body, head.json_length), lending)
            asked = options.read(request, served)
            if asked.timeout is not None or not all(output.place for output in asked.outputs):
                return None
            input = wire.attention_input(request, served.encoding.id)
            numbers = input.embeddings
            # What had to be copied is not what lies there by the next request.
            if numbers is None or request.arrays["embeddings"] is not numbers:
                return None
            found = self.scoring.at_once(input, asked.attention, waits=True)
            wanted = places(lending, asked.outputs)
            if found is None or wanted is None:
                return None
            plan, job = found
            placed = Placed.of(plan, wanted)
        except ServiceError:
            return None
        into = placed.into()
        job = replace(job, into=into)
        outputs = [
            Output(output.name, _without_batch(placed, output.name, plan.layout.batch), False, output.place)
            for output in asked.outputs
        ]
        like = Exchange(
            "",
            INFER,
            encoding=served.encoding.id,
            tokens=job.keys.shape[1],
            sequences=len(job.keys),
            encodings=(served.encoding.id,),
            received=len(body),
            received_as=media.FORMATS[media.JSON if head.json_length is None else media.OCTETS],
            sent_as=media.FORMATS[media.JSON],
        )
        kept = [*job.tables.arrays.values(), *(() if job.visible is None else (job.visible,))]
        kept += [array for name, array in into.arrays.items() if name not in placed.arrays]
        return Known(
            head,
            numbers,
            lending.mappings,
            plan.parts[0].computed,
            job,
            InferResponse(served.name, VERSION, request.id, outputs),
            like,
            bytes=sum(array.nbytes for array in kept),
        )

    def _answer(self, connection: Connection, known: Known, job: Job, content: bytes, began: float) -> None:
        connection.hold()
        queued = time.perf_counter()
        if not self.engine.room(job):
            self._kept.add(self._later(connection, known, job, content, began, queued))
            return
        result = self.engine.run_at_once(job, job, 1, full=False)
        if result is None:
            connection.decline(content)
            return
        serialize = self._reply(connection, known, result, content, began, queued)
        if serialize is not None:
            self.statistics.answered(job.graph.name, 1, 0.0, result.batch_assembly, result.compute, serialize)

    async def _later(
        self, connection: Connection, known: Known, job: Job, content: bytes, began: float, queued: float
    ) -> None:
        """By a worker."""
        deadline = Deadline.after(self.settings.deadline_seconds)
        try:
            with Leaving(partial(left, connection)):
                (result,) = await self.scoring.engine.run([job], deadline)
        except ClientClosedRequest as error:
            self._left(known, error, began)
        except ServiceError as error:
            if connection.gone:  # nobody is told what went wrong
                self._left(known, ClientClosedRequest("the client left before its answer was ready"), began)
            else:
                exchange = self._unanswered(known, began)
                said, closing = self.failure(error), self.lifecycle.draining
                refuse(connection, self.telemetry, exchange, error, said, closing=closing)
        else:
            self._reply(connection, known, result, content, began, queued)

    def _reply(
        self, connection: Connection, known: Known, result: JobResult, content: bytes, began: float, queued: float
    ) -> float | None:
        """How long it took; None where the request goes the long way, which finds out what is wrong."""
        if not _intact(known):
            connection.decline(content)
            return None
        computed = time.perf_counter()
        text = known.content
        if result.nonfinite:
            response = known.response
            response = InferResponse(response.model, response.version, response.id, response.outputs, result.nonfinite)
            text = b"".join(wire.encode_json(response))
        closing = self.lifecycle.draining
        spent = Spent(result.batch_assembly, result.compute, 1)
        decode, queue = queued - began, result.queue
        now = time.perf_counter()
        serialize, total = now - computed, now - began
        request_id = new_id()
        own = f"x-request-id: {request_id}\r\nserver-timing: {spent.header(decode, queue, serialize, total)}\r\n"
        close = b"connection: close\r\n" if closing else b""
        head = b"%b%b%d\r\n%b%b\r\n" % (connection.first_lines, self._lines, len(text), own.encode(), close)
        connection.reply([head + text], close=closing)
        spent.ended(decode, queue, serialize, total, len(text))
        if self.telemetry.listeners:
            timings = replace(spent.timings(decode, queue), serialize=serialize)
            like = known.like
            told = replace(like, request_id=request_id, began=began, status=200, timings=timings, sent=len(text))
            told.nonfinite = like.encodings if result.nonfinite else ()
            self.telemetry.tell(told, total)
        self.telemetry.answered(known.like, spent.total, spent.stages, spent.sent, int(result.nonfinite > 0))
        return serialize

    @staticmethod
    def _unanswered(known: Known, began: float) -> Exchange:
        like = known.like
        exchange = Exchange(new_id(), INFER, began, like.encoding, tokens=like.tokens)
        exchange.received, exchange.received_as = like.received, like.received_as
        return exchange

    def _left(self, known: Known, error: ClientClosedRequest, began: float) -> None:
        exchange = self._unanswered(known, began)
        exchange.fails(error.status, error.reason)
        self.telemetry.began(INFER)
        self.telemetry.finished(exchange, time.perf_counter() - began)


async def left(connection: Connection) -> Message:
    """What the server would say of a client that has left, once it has."""
    while not connection.gone:
        await asyncio.sleep(0)
    return {"type": "http.disconnect"}


def _intact(known: Known) -> bool:
    return all(mapping.intact for mapping in known.mappings)


def _without_batch(placed: Placed, name: str, batch: int | None) -> np.ndarray:
    array = placed.array(name)
    return array[0] if batch is None else array
