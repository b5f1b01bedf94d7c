"""Takes requests, runs what came in one turn of the event loop together, and answers. What is too large for that waits
for a worker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from service.deadline import Deadline
from service.engine.job import Job
from service.errors import Overloaded, ServiceError
from service.express.answers import Answers
from service.express.connection import Connection
from service.express.heads import LONGEST, Head, Heads
from service.express.routine import Routine, Waiting
from service.express.shared import SharedExpress, left
from service.express.spent import Spent
from service.finite import all_finite
from service.keys import Keys
from service.lifecycle import Lifecycle
from service.plan import RunsAtOnce
from service.records import AttentionInput
from service.routes import upload
from service.routes.attention import Asked, Attention, Load
from service.routes.leaving import Leaving
from service.routes.open_inference_statistics import Statistics
from service.scoring import plain
from service.settings import Settings
from service.telemetry import Telemetry
from service.wire import body, media, npy

logger = logging.getLogger(__name__)

TURN = 5e-4
"""Seconds of runs and answers after which the event loop does something else."""
MOST_NUMBERS = 1 << 15
"""Of an answer in lists: about 0.6 ms, and nobody else gets a turn."""


class Express:
    """Belongs to one event loop."""

    def __init__(
        self,
        attention: Attention,
        engine: RunsAtOnce,
        lifecycle: Lifecycle,
        telemetry: Telemetry,
        statistics: Statistics,
        settings: Settings,
        keys: Keys | None = None,
        shared: SharedExpress | None = None,
    ) -> None:
        """`shared` takes what has its numbers in shared memory, where there is any."""
        self.shared = shared
        self.attention = attention
        self.scoring = attention.scoring
        self.engine = engine
        self.lifecycle = lifecycle
        self.telemetry = telemetry
        self.statistics = statistics
        self.settings = settings
        self.keys = keys
        """A head that is remembered has one that is good."""
        self.answers = Answers(attention.scoring, lifecycle, telemetry, settings)
        # What a page of another origin may read is said in headers of its own.
        self.heads = Heads((b"origin",) if settings.cors_origins else ())
        self.arriving = upload.arriving
        """Has the bytes that connections wait for, as they were told to expect them."""
        self._due: deque[Routine] = deque()
        """Those that somebody waits for."""
        self._waiting = 0
        self._scheduled = False

    def forget(self) -> None:
        """What was learnt: the catalogue or the API keys have changed. Those that wait are run as they are."""
        self.heads.forget()
        if self.shared is not None:
            self.shared.forget()

    def learn(self, head: bytes, scope: Mapping[str, Any]) -> None:
        """Remembers the head of a request, as the server has read it."""
        if self.keys is not None and not self.keys.admits(scope["headers"]):
            return
        self.heads.learn(head, scope)
        if self.shared is not None:
            self.shared.learn(head, scope)

    def expects(self, data: bytes | bytearray) -> int | None:
        """How many bytes the request has of which these are the first, if its head is known and worth waiting for."""
        if self.shared is not None and (due := self.shared.expects(data)) is not None:
            return due
        end = data.find(b"\r\n\r\n", 0, LONGEST) + 4
        head = self.heads.get(bytes(data[:end]))
        if head is None or (head.hopeless and self._crowded(head) is None):
            return None
        due = end + head.length
        return due if self.arriving.held + due <= upload.TOGETHER * self.settings.max_body_bytes else None

    def take(self, connection: Connection, data: bytes | bytearray) -> bool:
        """Whether this, the next that came over a connection, is answered here."""
        if self.shared is not None and self.shared.take(connection, data):
            return True
        began = time.perf_counter()
        end = data.find(b"\r\n\r\n", 0, LONGEST) + 4
        head = self.heads.get(bytes(data[:end]))
        if head is None or len(data) - end != head.length or self.lifecycle.draining:
            return False
        found = None
        if not head.hopeless and self._waiting < self.settings.queue_jobs:
            found = self._find(head, data, end)
        if found is None:
            head.refused += 1
            return self._turned_away(connection, head, began)
        head.refused = 0
        routine, start, numbers = found
        if not routine.waiting:
            self._due.append(routine)
        routine.waiting.append(Waiting(connection, data, start, numbers, began, time.perf_counter()))
        self._waiting += 1
        connection.hold()
        self.lifecycle.inflight += 1
        # What else came in this turn is read first.
        if not self._scheduled:
            self._schedule()
        return True

    def _turned_away(self, connection: Connection, head: Head, began: float) -> bool:
        """Whether the request, for which a worker would be needed, is refused here, as the queue is full: to read and
        to check it first would take time from those that are computed.
        """
        error = self._crowded(head)
        if error is None or head.asked is None:
            return False
        connection.hold()
        self.answers.refuse(connection, head.asked, head.length, began, error)
        return True

    def _crowded(self, head: Head) -> Overloaded | None:
        """Why such a request would be refused now, if it needs a worker and the queue is full."""
        load = None if head.asked is None else head.asked.loads.get(head.length)
        return None if load is None else self.attention.refusal(load)

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._run)

    def _find(self, head: Head, data: bytes | bytearray, end: int) -> tuple[Routine, int, np.ndarray | None] | None:
        """The routine of a request, and where its numbers are."""
        asked = head.asked = head.asked or self.attention.known(head.said)
        if asked is None:
            return None
        start = end
        if asked.kind == media.NPY and head.length > 10:
            start = end + 10 + data[end + 8] + 256 * data[end + 9]
            routine = head.routines.get(bytes(data[end:start]))
            if routine is not None:
                return routine, start, None
        content = bytes(data[end:])
        try:
            input = body.decode(asked.kind, content, self.settings.max_body_bytes)
            embeddings = input.embeddings
            if embeddings is None or input.mask is not None or not plain(input):
                return None
            routine = head.routines.get(embeddings.shape)
            if routine is None:
                routine = self._routine(asked, head.length, input)
                if routine is None:
                    return None
                raw = asked.kind == media.NPY and npy.layout(content) == (embeddings.shape, start - end)
                self.heads.put(head, bytes(data[end:start]) if raw else embeddings.shape, routine)
                if raw:
                    return routine, start, None
        except ServiceError:
            return None
        return routine, start, np.ascontiguousarray(embeddings, dtype=np.float32)

    def _routine(self, asked: Asked, length: int, input: AttentionInput) -> Routine | None:
        """From the first request of its kind. Raises InvalidInput."""
        options = asked.query.options
        found = self.scoring.at_once(input, options)
        if found is not None and self._suits(asked, found[1]):
            return Routine.of(asked, length, *found, patient=found[0].study is None and _patient(asked))
        found = self.scoring.at_once(input, options, waits=True) if _patient(asked) else None
        return None if found is None else Routine.of(asked, length, *found, patient=True)

    def _suits(self, asked: Asked, job: Job) -> bool:
        """Whether such answers can be written here, and such jobs run."""
        if asked.accepted not in media.BINARY:
            lists = asked.accepted == media.JSON and asked.query.arrays == "lists"
            if not lists or job.cells > min(MOST_NUMBERS, self.settings.json_cells):
                return False
        return self.engine.room(job) > 0

    def _run(self) -> None:
        self._scheduled = False
        end = time.perf_counter() + TURN
        while self._due:
            routine = self._due[0]
            room = self.engine.room(routine.job)
            waiting = routine.waiting
            requests, routine.waiting = (waiting[:room], waiting[room:]) if room else (waiting, [])
            if not routine.waiting:
                self._due.popleft()
            self._waiting -= len(requests)
            self.lifecycle.inflight -= len(requests)
            try:
                if room:
                    declined = self._answer(routine, requests, full=bool(routine.waiting))
                else:
                    declined = self.answers.staying(routine, requests)
                    if routine.patient:
                        self._queue(routine, declined)
                        declined = ()
            except Exception:
                declined = self.answers.staying(routine, [one for one in requests if not one.answered])
                logger.exception("%d requests failed, and are read again", len(declined))
            for one in declined:
                one.connection.decline(one.data)
            if self._due and time.perf_counter() > end:
                self._schedule()
                return

    def _answer(self, routine: Routine, requests: Sequence[Waiting], *, full: bool) -> Sequence[Waiting]:
        """Runs and answers these, but for those that it returns."""
        requests = self.answers.staying(routine, requests)
        tables = self.scoring.tables_at_once(routine.plan)
        if tables is None or not requests:
            return requests
        began = time.perf_counter()
        numbers = routine.numbers(requests)
        assembled = time.perf_counter()
        if not all_finite(numbers):
            alone = [all_finite(routine.numbers([one])) for one in requests]
            good = [one for one, finite in zip(requests, alone, strict=True) if finite]
            bad = [one for one, finite in zip(requests, alone, strict=True) if not finite]
            if bad:
                return [*bad, *(self._answer(routine, good, full=full) if good else ())]
        job = routine.together(numbers, tables)
        checked = time.perf_counter()
        found = self.engine.run_at_once(job, routine.job, len(requests), full=full)
        if found is None:
            return requests
        summaries = None
        if routine.plan.study is not None:
            summaries = self.scoring.summaries_at_once(routine.plan, found, len(requests))
            if summaries is None:
                return requests
        spent = Spent(assembled - began, found.compute, len(requests))
        queued, serialized = self.answers.reply(routine, requests, found, summaries, spent, began, checked - assembled)
        name, jobs = routine.job.graph.name, len(requests)
        self.statistics.answered(name, jobs, queued, spent.batch_assembly, spent.compute, serialized)
        return ()

    def _queue(self, routine: Routine, requests: Sequence[Waiting]) -> None:
        """Has these wait for a worker, as far as there is room."""
        for one in requests:
            try:
                if (refusal := self.attention.refusal(Load(1, routine.job.cells, large=False))) is not None:
                    raise refusal
                claim = self.arriving.keep(routine.length, self.settings.max_body_bytes)
            except Overloaded as error:
                one.answered = True
                self.answers.refuse(one.connection, routine.asked, routine.length, one.began, error)
            else:
                self.answers.kept.add(self._wait(routine, one, claim))

    async def _wait(self, routine: Routine, one: Waiting, claim: Callable[[], None] | None) -> None:
        """Has a worker run it, and answers. `claim` is given up where its body is needed no more."""
        deadline = Deadline.after(self.settings.deadline_seconds)
        failure: ServiceError | None = None
        try:
            with Leaving(partial(left, one.connection)):
                answered = await self._waited(routine, one, deadline)
        except ServiceError as error:
            answered, failure = False, error
        except Exception:
            answered = False
            logger.exception("a request failed, and is read again")
        finally:
            if claim is not None:
                claim()
        if answered or one.answered or not self.answers.staying(routine, [one]):
            return
        if failure is None:
            one.connection.decline(one.data)
        else:
            self.answers.refuse(one.connection, routine.asked, routine.length, one.began, failure)

    async def _waited(self, routine: Routine, one: Waiting, deadline: float) -> bool:
        """Whether it was answered: if not, something is wrong with its numbers, and the long way tells what."""
        began = time.perf_counter()
        numbers, tables = routine.numbers([one]), self.scoring.tables_at_once(routine.plan)
        if tables is None or not all_finite(numbers):
            return False
        job, checked = routine.alone(numbers, tables), time.perf_counter()
        (result,) = await self.scoring.engine.run([job], deadline)
        if result.nonfinite:
            return False
        spent = Spent(result.batch_assembly, result.compute, result.batch_jobs)
        self.answers.reply(routine, [one], result, None, spent, one.queued + result.queue, checked - began)
        return True


def _patient(asked: Asked) -> bool:
    """Whether a large answer to this is quickly made: it is written as it was computed."""
    whole = asked.query.dtype == "float32" and asked.query.options.top_k is None
    return whole and asked.accepted == media.SAFETENSORS
