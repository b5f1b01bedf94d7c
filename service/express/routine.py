"""Requests that differ in their numbers alone, and those of them that wait for the run they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from service.engine.job import Job, Tables
from service.express.connection import Connection
from service.express.template import Template
from service.plan import Plan
from service.routes.attention import Asked

_NO_TABLES = Tables("", {})


@dataclass(slots=True, eq=False)
class Waiting:
    """One request. `data` is all that came, of which `start` is where its numbers begin, unless they are in `numbers`
    already. Times are those of `perf_counter`: when it came, and when it had been read.
    """

    connection: Connection
    data: bytes | bytearray
    start: int
    numbers: np.ndarray | None
    began: float
    queued: float
    answered: bool = False


@dataclass(slots=True, eq=False)
class Routine:
    """All that they have in common. `job` is that of one of them, without its numbers."""

    asked: Asked
    length: int
    """Bytes of their bodies."""
    plan: Plan
    job: Job
    lessons: int = 3
    """How many more answers are looked at for a template."""
    template: Template | None = None
    """How an answer is made from the one before it, once there was one of which that is known."""
    waiting: list[Waiting] = field(default_factory=list)
    patient: bool = False
    """Whether one of them may wait here for a worker."""

    @classmethod
    def of(cls, asked: Asked, length: int, plan: Plan, job: Job, *, patient: bool = False) -> Routine:
        """From the first of them."""
        queries, keys = _shape_of(job.queries), _shape_of(job.keys)
        if job.keys is job.queries:
            keys = queries
        own = replace(job, queries=queries, keys=keys, tables=_NO_TABLES, known_key=job.key)
        return cls(asked, length, plan, own, patient=patient)

    def numbers(self, requests: Sequence[Waiting]) -> np.ndarray:
        """Of these, one after the other, copied once. They came in one format."""
        decoded = [one.numbers for one in requests if one.numbers is not None]
        if decoded:
            return np.concatenate(decoded, axis=None)
        return np.frombuffer(b"".join([memoryview(one.data)[one.start :] for one in requests]), "<f4")

    def alone(self, numbers: np.ndarray, tables: Tables) -> Job:
        """The job of one request's numbers."""
        keys = numbers.reshape(self.plan.layout.query_shape)
        return replace(self.job, tables=tables, queries=self.plan.layout.chosen(keys), keys=keys)

    def together(self, numbers: np.ndarray, tables: Tables) -> Job:
        """One job of these requests' numbers."""
        one, shape = self.job, self.plan.layout.query_shape
        keys = numbers.reshape(-1, *shape[1:])
        queries = self.plan.layout.chosen(keys)
        count = len(keys) // shape[0]
        return Job(one.graph, tables, one.outputs, queries, keys, one.visible, count * one.cells, one.switches)


def _shape_of(array: np.ndarray) -> np.ndarray:
    """An array of that shape which takes no memory."""
    return np.broadcast_to(np.float32(0), array.shape)
