"""Statistics of each model since the service became ready, in the shape of Triton's statistics extension.

An inference is one request under one encoding, however many rows its batch axis has, and whichever endpoint it came by:
`POST /attention` asks the same models.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from service.engine.job import Job, JobResult
from service.engine.observer import EngineObserver
from service.scoring import Runs


@dataclass(slots=True)
class Duration:
    """How often, and how many seconds in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds

    def report(self) -> dict[str, int]:
        return {"count": self.count, "ns": round(self.seconds * 1e9)}


@dataclass(slots=True)
class Executions:
    """Runs of one batch size. Results are views of a run's outputs, so nothing is left for `compute_output`."""

    input: Duration = field(default_factory=Duration)
    infer: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class Counts:
    """Of one model. `success` = `queue` + `input` (copying into the batch) + `infer` + `output` (handing back)."""

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    input: Duration = field(default_factory=Duration)
    infer: Duration = field(default_factory=Duration)
    output: Duration = field(default_factory=Duration)
    last: int = 0
    """Milliseconds since 1970."""
    batches: dict[int, Executions] = field(default_factory=dict)


class Statistics:
    """Counts by the names of graphs. The event loop reads and writes it, and the engine's worker threads do."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._counts: dict[str, Counts] = {}

    def clear(self) -> None:
        """Forgets everything: what the warm-up ran was nobody's request."""
        with self._lock:
            self._counts.clear()

    def succeeded(self, name: str, result: JobResult, handing_back: float) -> None:
        with self._lock:
            counts = self._of(name)
            for duration, seconds in (
                (counts.queue, result.queue),
                (counts.input, result.batch_assembly),
                (counts.infer, result.compute),
                (counts.output, handing_back),
                (counts.success, result.queue + result.batch_assembly + result.compute + handing_back),
            ):
                duration.add(seconds)
            counts.last = round(self._wall_clock() * 1e3)

    def failed(self, name: str, seconds: float) -> None:
        with self._lock:
            counts = self._of(name)
            counts.fail.add(seconds)
            counts.last = round(self._wall_clock() * 1e3)

    def executed(self, name: str, jobs: int, assembly: float, compute: float) -> None:
        with self._lock:
            executions = self._of(name).batches.setdefault(jobs, Executions())
            executions.input.add(assembly)
            executions.infer.add(compute)

    def report(self, name: str, version: str) -> dict[str, Any]:
        with self._lock:
            counts = self._counts.get(name, Counts())
            none = Duration().report()
            return {
                "name": name,
                "version": version,
                "last_inference": counts.last,
                "inference_count": counts.success.count,
                "execution_count": sum(one.infer.count for one in counts.batches.values()),
                "inference_stats": {
                    "success": counts.success.report(),
                    "fail": counts.fail.report(),
                    "queue": counts.queue.report(),
                    "compute_input": counts.input.report(),
                    "compute_infer": counts.infer.report(),
                    "compute_output": counts.output.report(),
                    "cache_hit": none,
                    "cache_miss": none,
                },
                "batch_stats": [
                    {
                        "batch_size": size,
                        "compute_input": one.input.report(),
                        "compute_infer": one.infer.report(),
                        "compute_output": {"count": one.infer.count, "ns": 0},
                    }
                    for size, one in sorted(counts.batches.items())
                ],
            }

    def _of(self, name: str) -> Counts:
        return self._counts.setdefault(name, Counts())


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

    def batch_failed(self, graph: str, jobs: int, trigger: str) -> None:
        self._observer.batch_failed(graph, jobs, trigger)

    def dropped(self, jobs: int, reason: str) -> None:
        self._observer.dropped(jobs, reason)

    def rejected(self, reason: str) -> None:
        self._observer.rejected(reason)
