"""Statistics of each model since the service became ready, in the shape of Triton's statistics extension.

An inference is one request under one encoding, however many rows its batch axis has, and whichever endpoint it came by:
`POST /attention` asks the same models.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

from service.board import Board
from service.engine.job import Job, JobResult
from service.engine.observer import EngineObserver
from service.plan import Runs

# The columns of a model: how many succeeded, and seconds of each part of that; how many failed, and how long they took.
SUCCEEDED, QUEUE, INPUT, INFER, OUTPUT, FAILED, FAIL = range(7)
LAST = 7
"""Milliseconds since 1970."""
BATCHES, EACH = 8, 3
"""From here on, for every number of jobs that can share a run: how many runs, seconds of copying and of computing."""
MOST_JOBS = 64
COLUMNS = BATCHES + EACH * MOST_JOBS


class Statistics:
    """Counts by the names of graphs, on a board: the reports are those of all processes. `success` = `queue` + `input`
    (copying into the batch) + `infer` + `output` (handing back). Results are views of a run's outputs, so a run leaves
    nothing for `compute_output`.

    The event loop reads and writes it; worker threads call `executed`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
        board: Board | None = None,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._board = board or Board()
        self._lock = threading.Lock()
        self._first: dict[str, int] = {}
        self._before: dict[str, Sequence[float]] = {}
        self._spare: list[int] = []
        self._rest: int | None = None
        """The columns of all names for which none are left. A process that took some would take what others use."""

    def expect(self, names: Iterable[str], spare: int = 0) -> None:
        """Takes the columns of these, and of so many whose names are not known yet."""
        for name in names:
            self._of(name)
        if spare:
            self._spare = [self._board.take(COLUMNS) for _ in range(spare)]
            self._rest = self._board.take(COLUMNS)

    def more(self, names: Sequence[str]) -> None:
        """Names that came later: in every process the same in the same order, some more each time."""
        for name, first in zip(names, self._spare, strict=False):
            self._first.setdefault(name, first)

    def enter(self) -> None:
        """This process has got its row of the board: what is there already was counted by the one before it."""
        row = self._board.row
        self._before = {name: row[first : first + COLUMNS].tolist() for name, first in self._first.items()}

    def clear(self) -> None:
        """Forgets what this process has counted: what the warm-up ran was nobody's request."""
        with self._lock:
            row = self._board.row
            for name, first in self._first.items():
                for i, value in enumerate(self._before.get(name, (0.0,) * COLUMNS)):
                    row[first + i] = value

    def succeeded(self, name: str, result: JobResult, handing_back: float) -> None:
        row, first = self._board.row, self._of(name)
        row[first] += 1
        row[first + QUEUE] += result.queue
        row[first + INPUT] += result.batch_assembly
        row[first + INFER] += result.compute
        row[first + OUTPUT] += handing_back
        row[first + LAST] = round(self._wall_clock() * 1e3)

    def failed(self, name: str, seconds: float) -> None:
        row, first = self._board.row, self._of(name)
        row[first + FAILED] += 1
        row[first + FAIL] += seconds
        row[first + LAST] = round(self._wall_clock() * 1e3)

    def answered(
        self, name: str, count: int, queue: float, assembly: float, compute: float, handing_back: float
    ) -> None:
        """So many requests succeeded: seconds that they waited in all, those that their run took, and those in which
        all of them were answered."""
        row, first = self._board.row, self._of(name)
        row[first] += count
        row[first + QUEUE] += queue
        row[first + INPUT] += count * assembly
        row[first + INFER] += count * compute
        row[first + OUTPUT] += handing_back
        row[first + LAST] = round(self._wall_clock() * 1e3)

    def executed(self, name: str, jobs: int, assembly: float, compute: float) -> None:
        with self._lock:
            row, column = self._board.row, self._of(name) + BATCHES + EACH * (min(jobs, MOST_JOBS) - 1)
            row[column] += 1
            row[column + 1] += assembly
            row[column + 2] += compute

    def report(self, name: str, version: str) -> dict[str, Any]:
        first = self._of(name)
        known = first != self._rest
        numbers = self._board.totals()[first : first + COLUMNS].tolist() if known else [0.0] * COLUMNS
        runs = [(i + 1, *numbers[at : at + EACH]) for i, at in enumerate(range(BATCHES, COLUMNS, EACH)) if numbers[at]]
        succeeded = numbers[SUCCEEDED]
        none = _duration(0, 0.0)
        return {
            "name": name,
            "version": version,
            "last_inference": int(self._board.column(first + LAST).max()) if known else 0,
            "inference_count": int(succeeded),
            "execution_count": int(sum(count for _, count, *_ in runs)),
            "inference_stats": {
                "success": _duration(succeeded, sum(numbers[QUEUE : OUTPUT + 1])),
                "fail": _duration(numbers[FAILED], numbers[FAIL]),
                "queue": _duration(succeeded, numbers[QUEUE]),
                "compute_input": _duration(succeeded, numbers[INPUT]),
                "compute_infer": _duration(succeeded, numbers[INFER]),
                "compute_output": _duration(succeeded, numbers[OUTPUT]),
                "cache_hit": none,
                "cache_miss": none,
            },
            "batch_stats": [
                {
                    "batch_size": jobs,
                    "compute_input": _duration(count, assembly),
                    "compute_infer": _duration(count, compute),
                    "compute_output": _duration(count, 0.0),
                }
                for jobs, count, assembly, compute in runs
            ],
        }

    def _of(self, name: str) -> int:
        first = self._first.get(name, self._rest)
        if first is None:
            first = self._first[name] = self._board.take(COLUMNS)
        return first


def _duration(count: float, seconds: float) -> dict[str, int]:
    return {"count": int(count), "ns": round(seconds * 1e9)}


_reached: ContextVar[bool] = ContextVar("reached")


class Counted:
    """The engine, with what it is asked counted."""

    def __init__(self, engine: Runs, statistics: Statistics, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._statistics = statistics
        self._clock = clock

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        _reached.set(True)
        began = self._clock()
        try:
            results = await self._engine.run(jobs, deadline)
        except BaseException:
            spent = self._clock() - began
            for job in jobs:
                self._statistics.failed(job.graph.name, spent)
            raise
        spent = self._clock() - began
        # The last of several jobs decides how long handing back took; the others waited for it.
        handing_back = max(0.0, min(spent - one.queue - one.batch_assembly - one.compute for one in results))
        for job, result in zip(jobs, results, strict=True):
            self._statistics.succeeded(job.graph.name, result, handing_back)
        return results


class Refusals:
    """`with Refusals(statistics, name): ...` counts as failed what is refused before it reaches the engine."""

    def __init__(self, statistics: Statistics, name: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._statistics = statistics
        self._name = name
        self._clock = clock

    def __enter__(self) -> None:
        _reached.set(False)
        self._began = self._clock()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not _reached.get():
            self._statistics.failed(self._name, self._clock() - self._began)


class Observers:
    """An observer of the engine, and the count of its executions."""

    def __init__(
        self, observer: EngineObserver, statistics: Statistics, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._observer = observer
        self._statistics = statistics
        self._local = threading.local()
        self._clock = clock

    def queued(self, graph: str, jobs: int) -> None:
        self._observer.queued(graph, jobs)

    def batch_started(self, graph: str, jobs: int, trigger: str) -> None:
        self._observer.batch_started(graph, jobs, trigger)
        self._local.began = self._clock()

    def batch_finished(self, graph: str, jobs: int, seconds: float, provider: str, trigger: str) -> None:
        self._statistics.executed(graph, jobs, max(0.0, self._clock() - self._local.began - seconds), seconds)
        self._observer.batch_finished(graph, jobs, seconds, provider, trigger)

    def computed(self, graph: str, real: int, padding: int) -> None:
        self._observer.computed(graph, real, padding)

    def batch_failed(self, graph: str, jobs: int, trigger: str) -> None:
        self._observer.batch_failed(graph, jobs, trigger)

    def dropped(self, jobs: int, reason: str) -> None:
        self._observer.dropped(jobs, reason)

    def rejected(self, reason: str) -> None:
        self._observer.rejected(reason)
