"""What is answered straight to the socket, and what the metrics are told of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from service.engine.job import JobResult
from service.errors import ClientClosedRequest, ServiceError
from service.exchange import Exchange, new_id
from service.express.connection import Connection
from service.express.kept import Kept
from service.express.refusing import refuse
from service.express.routine import Routine, Waiting
from service.express.spent import Spent
from service.express.template import learn
from service.finite import nonfinite
from service.lifecycle import Lifecycle
from service.outgoing import NOSNIFF
from service.records import ScoringResult, Timings
from service.routes.attention import PATH, Asked
from service.scoring import Scoring
from service.sending import Sending
from service.settings import Settings
from service.summaries.summary import Summary
from service.telemetry import Telemetry
from service.wire import body, media, problem


class Answers:
    """Belongs to one event loop."""

    def __init__(self, scoring: Scoring, lifecycle: Lifecycle, telemetry: Telemetry, settings: Settings) -> None:
        self.scoring = scoring
        self.lifecycle = lifecycle
        self.telemetry = telemetry
        self.settings = settings
        self.kept = Kept(lifecycle)

    def refuse(self, connection: Connection, asked: Asked, length: int, began: float, error: ServiceError) -> None:
        """A request with a body of so many bytes, which the connection holds."""
        exchange = Exchange(new_id(), PATH, began, asked.label)
        exchange.received, exchange.received_as = length, media.FORMATS[asked.kind]
        said = error.status, media.PROBLEM, problem.encode(error, exchange.request_id)
        refuse(connection, self.telemetry, exchange, error, said, closing=self.lifecycle.draining)

    def reply(
        self,
        routine: Routine,
        requests: Sequence[Waiting],
        found: JobResult,
        summaries: Sequence[Summary] | None,
        spent: Spent,
        began: float,
        checking: float,
    ) -> tuple[float, float]:
        """Answers these. How long all of them were queued, and how long it took."""
        computed, closing = time.perf_counter(), self.lifecycle.draining
        rows, single = routine.plan.layout.query_shape[0], routine.plan.layout.batch is None
        asked, damaged, like = routine.asked, 0, self._like(routine)
        queued = serialized = 0.0
        lines = b"%bcontent-type: %b\r\nvary: %b\r\ncache-control: no-store\r\n%b: %b\r\n%bcontent-length: " % (
            requests[0].connection.first_lines,
            asked.accepted.encode(),
            b"Accept, Origin" if self.settings.cors_origins else b"Accept",
            *NOSNIFF,
            b"connection: close\r\n" if closing else b"",
        )
        arrays = [found.outputs[name] for name in _order(found.outputs)]
        template = None if found.nonfinite else routine.template
        for i, one in enumerate(requests):
            summary = None if summaries is None else summaries[i].document(not single)
            decode, queue, broken = one.queued - one.began + checking, began - one.queued, False
            if template is not None:
                cut = [array[i] if single else array[i * rows : (i + 1) * rows] for array in arrays]
                pieces = template.pieces(spent.text(decode, queue), cut, summary)
            else:
                part = _part(found, slice(i * rows, (i + 1) * rows))
                result = self._result(routine, part, spent.timings(decode, queue), summary)
                broken = result.results[0].nonfinite_cells > 0
                pieces = list(body.encode(asked.accepted, result, asked.query.dtype, asked.query.arrays))
            now = time.perf_counter()
            serialize, total = now - computed, now - one.began
            size, request_id = sum(map(len, pieces)), new_id()
            head = (
                f"{size}\r\nx-request-id: {request_id}\r\n"
                f"server-timing: {spent.header(decode, queue, serialize, total)}\r\n\r\n"
            )
            pieces[0] = b"%b%b%b" % (lines, head.encode(), pieces[0])
            one.answered = True
            one.connection.reply(pieces, close=closing)
            waits = one.connection.sending.waiting or (one.connection.gone and not closing)
            queued, serialized = queued + queue, serialized + serialize
            if not waits:
                spent.ended(decode, queue, serialize, total, size)
                damaged += broken
            if waits or self.telemetry.listeners:
                timings = replace(spent.timings(decode, queue), serialize=serialize)
                told = replace(like, request_id=request_id, began=one.began, status=200, timings=timings, sent=size)
                if waits:
                    told.nonfinite = like.encodings if broken else ()
                    self._handing_over(told, one.connection.sending)
                else:
                    self.telemetry.tell(told, total)
        if spent.total:
            self.telemetry.answered(like, spent.total, spent.stages, spent.sent, damaged)
        return queued, serialized

    def _handing_over(self, exchange: Exchange, sending: Sending) -> None:
        """An answer of which a part waits for its client is counted once it is known what became of it."""
        self.telemetry.began(PATH)
        self.kept.add(self._handed_over(exchange, sending))

    async def _handed_over(self, exchange: Exchange, sending: Sending) -> None:
        try:
            if unsent := await sending.over(exchange.sent, exchange.sent):
                exchange.fails(ClientClosedRequest.status, ClientClosedRequest.reason)
                exchange.sent -= unsent
        finally:
            self.telemetry.finished(exchange, time.perf_counter() - exchange.began)

    def _result(
        self, routine: Routine, found: JobResult, timings: Timings, summary: Mapping[str, Any] | None
    ) -> ScoringResult:
        """What is answered where there is no template, and the template of the answers to come."""
        asked, visible = routine.asked, routine.job.visible
        result = self.scoring.answered_at_once(routine.plan, found, visible, asked.query.options, timings, summary)
        if routine.lessons:
            routine.lessons -= 1
            routine.template = routine.template or learn(result, asked)
        return result

    @staticmethod
    def _like(routine: Routine) -> Exchange:
        """What the metrics are told of each of its requests."""
        asked, label, keys = routine.asked, routine.asked.label, routine.job.keys
        return Exchange(
            "",
            PATH,
            encoding=label,
            tokens=keys.shape[1],
            sequences=len(keys),
            encodings=(label,),
            received=routine.length,
            received_as=media.FORMATS[asked.kind],
            sent_as=media.FORMATS[asked.accepted],
        )

    def staying(self, routine: Routine, requests: Sequence[Waiting]) -> Sequence[Waiting]:
        """Without those whose clients have left, who are counted."""
        left = [one for one in requests if one.connection.gone]
        if not left:
            return requests
        for one in left:
            one.answered = True  # as far as it will be
            exchange = replace(self._like(routine), request_id=new_id(), began=one.began, sent_as="")
            exchange.fails(ClientClosedRequest.status, ClientClosedRequest.reason)
            self.telemetry.began(PATH)
            self.telemetry.finished(exchange, time.perf_counter() - one.began)
        return [one for one in requests if not one.connection.gone]


def _part(found: JobResult, cut: slice) -> JobResult:
    outputs = {name: array[cut] for name, array in found.outputs.items()}
    return replace(found, outputs=outputs, nonfinite=found.nonfinite and nonfinite(outputs.values()))


def _order(outputs: Mapping[str, np.ndarray]) -> list[str]:
    """As in an answer."""
    names = ("weights", "scores", *(name for name in outputs if name.startswith("term.")), "output")
    return [name for name in names if name in outputs]
