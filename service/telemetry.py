"""The Prometheus metrics. Every series exists from the start, and no label holds what a client sent."""

from __future__ import annotations

import platform
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Float64
from numpy import ndarray
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from service import vitals
from service.board import Board
from service.errors import failures
from service.exchange import Exchange
from service.records import Timings

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
UNKNOWN = "unknown"
OTHER = "other"
STATUSES = tuple(sorted({200, *(failure.status for failure in failures())}))

Totals = Float64[ndarray, " columns"]


@dataclass(frozen=True, slots=True)
class SessionLabels:
    """What `attention_session_info` says of one encoding that is served."""

    model: str
    encoding: str
    provider: str
    opset: str
    digest: str


class Buckets:
    """The columns of one histogram: one for each bucket, the last for what is beyond all limits, and the sum."""

    __slots__ = ("_board", "_first", "_limits", "_sum")

    def __init__(self, board: Board, limits: Sequence[float]) -> None:
        self._board = board
        self._limits = limits
        self._first = board.take(len(limits) + 2)
        self._sum = self._first + len(limits) + 1

    @property
    def columns(self) -> tuple[int, int]:
        """That of the first bucket and that of the sum."""
        return self._first, self._sum

    def observe(self, value: float) -> None:
        row = self._board.row
        row[self._first + bisect_left(self._limits, value)] += 1
        row[self._sum] += value

    def read(self, totals: Totals) -> tuple[list[tuple[str, float]], float]:
        """How many were at most each limit, and the sum of all."""
        counts = totals[self._first : self._sum].cumsum()
        names = (*map(floatToGoString, self._limits), "+Inf")
        return [(name, float(count)) for name, count in zip(names, counts, strict=True)], float(totals[self._sum])


class Telemetry:
    """Counts requests, and observes the engine (an `EngineObserver`): its `batch_*` come from worker threads.

    The numbers of all processes are on one board, so each of them can tell of all. Counters go on when a process is
    restarted; `forget` takes back what a dead one said of its present.
    """

    def __init__(self, registry: CollectorRegistry, board: Board | None = None) -> None:
        self.registry = registry
        self.board = board or Board()
        take = self.board.take
        self._durations: dict[tuple[str, str], Buckets] = {}
        self._requests: dict[tuple[str, str], int] = {}
        """The column of the first status."""
        self._statuses = {status: i for i, status in enumerate(STATUSES)}
        self._stages = [Buckets(self.board, SECONDS) for _ in Timings.STAGES]
        self._stage_columns = [one.columns for one in self._stages]
        self._batches = take(1)
        self._batch_requests = Buckets(self.board, BATCHES)
        self._lock = threading.Lock()
        self._rejected = {reason: take(1) for reason in sorted({one.reason for one in failures()})}
        self._nonfinite = take(1)
        self._served: list[SessionLabels] = []
        self._versions: dict[str, str] = {}

        # What is known of the present of a process, which others see as it last published it.
        self._queued, self._inflight, self._ready = take(1), take(1), take(1)
        self._memory, self._files, self._began = take(2), take(1), take(1)
        self._look: tuple[Callable[[], float], ...] = (lambda: 0.0,) * 3
        # Counted by the system for each process anew.
        self._cpu, self._collections = take(1), take(3 * len(vitals.GENERATIONS))
        self._before = [0.0] * (1 + 3 * len(vitals.GENERATIONS))
        self._create(OTHER, "")
        registry.register(_Read(self._collect))

    def describe(self, **versions: str) -> None:
        """The labels of `attention_build_info`, beside Python's version."""
        self._versions = {"python": platform.python_version(), **versions}

    def expect(self, endpoints: Iterable[str], scoring: Iterable[str], encodings: Iterable[str]) -> None:
        """Makes every series exist: `scoring` are the endpoints whose requests have an encoding."""
        for endpoint in endpoints:
            self._create(endpoint, "")
        for endpoint in scoring:
            for encoding in (*encodings, UNKNOWN):
                self._create(endpoint, encoding)

    def _create(self, endpoint: str, encoding: str) -> None:
        series = endpoint, encoding
        if series not in self._requests:
            self._requests[series] = self.board.take(len(STATUSES))
            self._durations[series] = Buckets(self.board, SECONDS)

    def watch(self, *, queued: Callable[[], float], inflight: Callable[[], float], ready: Callable[[], float]) -> None:
        """Where this process looks when it tells of its present."""
        self._look = queued, inflight, ready

    def serve(self, sessions: Iterable[SessionLabels]) -> None:
        """States what is served."""
        self._served = list(sessions)

    def enter(self, process: int) -> None:
        """Begins to count in the row of this process, after what was counted there before."""
        self.board.enter(process)
        row = self.board.row
        now = [vitals.cpu_seconds(), *vitals.collections()]
        columns = self._cpu, *range(self._collections, self._collections + len(now) - 1)
        self._before = [row[column] - value for column, value in zip(columns, now, strict=True)]
        self.publish()

    def publish(self) -> None:
        """Tells the other processes of the present of this one."""
        row = self.board.row
        for column, look in zip((self._queued, self._inflight, self._ready), self._look, strict=True):
            row[column] = look()
        if not vitals.known():
            return
        row[self._memory], row[self._memory + 1] = vitals.memory()
        row[self._files] = vitals.open_files()
        row[self._began] = row[self._began] or vitals.began()
        cpu, *collections = self._before
        row[self._cpu] = cpu + vitals.cpu_seconds()
        for i, (before, value) in enumerate(zip(collections, vitals.collections(), strict=True)):
            row[self._collections + i] = before + value

    def forget(self, process: int) -> None:
        """That process is dead: it has no present."""
        self.board.erase(process, self._queued, self._began + 1 - self._queued)

    def processes(self) -> dict[str, int]:
        """How many processes there are and how many take work, this one as it is now, the others as they last said."""
        self.board.row[self._ready] = self._look[2]()
        return {"ready": int(self.board.column(self._ready).sum()), "all": self.board.processes}

    def finished(self, exchange: Exchange, seconds: float) -> None:
        """One request is over."""
        row, series = self.board.row, (exchange.endpoint, exchange.encoding)
        if series not in self._requests:
            series = OTHER, ""
        row[self._requests[series] + self._statuses.get(exchange.status, self._statuses[500])] += 1
        self._durations[series].observe(seconds)
        if exchange.reason is not None:
            row[self._rejected[exchange.reason]] += 1
        if exchange.nonfinite:
            row[self._nonfinite] += 1
        if exchange.timings is not None:
            for (first, total), spent in zip(self._stage_columns, exchange.timings.stages, strict=True):
                row[first + bisect_left(SECONDS, spent) if spent > SECONDS[0] else first] += 1
                row[total] += spent
        row[self._inflight] = self._look[1]()

    # What the engine tells. Requests it refuses or drops are counted where their answer is sent.

    def queued(self, graph: str, jobs: int) -> None: ...

    def batch_started(self, graph: str, jobs: int, trigger: str) -> None:
        with self._lock:
            self.board.row[self._batches] += 1
            self._batch_requests.observe(jobs)

    def batch_finished(self, graph: str, jobs: int, seconds: float, provider: str, trigger: str) -> None: ...

    def batch_failed(self, graph: str, jobs: int, trigger: str) -> None: ...

    def dropped(self, jobs: int, reason: str) -> None: ...

    def rejected(self, reason: str) -> None: ...

    # What Prometheus reads

    def _collect(self) -> Iterator[Metric]:
        self.publish()
        totals = self.board.totals()
        yield from self._of_requests(totals)
        yield from self._of_engine(totals)
        yield from self._of_service(totals)
        if vitals.known():
            yield from self._of_processes(totals)

    def _of_requests(self, totals: Totals) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "attention_requests",
            "Requests by outcome: 4xx, 5xx and 499 (the client left) included; each request moves one series.",
            labels=("endpoint", "encoding", "status"),
        )
        durations = HistogramMetricFamily(
            "attention_request_duration_seconds",
            "From a request's arrival to the last byte handed over, whatever its outcome.",
            labels=("endpoint", "encoding"),
        )
        for (endpoint, encoding), first in self._requests.items():
            for status, i in self._statuses.items():
                requests.add_metric((endpoint, encoding, str(status)), float(totals[first + i]))
            durations.add_metric((endpoint, encoding), *self._durations[endpoint, encoding].read(totals))
        yield requests
        yield durations
        stages = HistogramMetricFamily(
            "attention_stage_duration_seconds",
            "Where the time of answered scoring requests went. decode: receiving, reading and checking the input; "
            "queue: waiting for the device; batch_assembly: copying into the batch; compute: in the model, the whole "
            "batch's time for each of its requests; postprocess: cutting the results; serialize: writing and handing "
            "over the answer.",
            labels=("stage",),
        )
        for name, stage in zip(Timings.STAGES, self._stages, strict=True):
            stages.add_metric((name,), *stage.read(totals))
        yield stages
        rejected = CounterMetricFamily(
            "attention_rejected",
            "Requests that were refused or failed, by reason: the client's (malformed, ...) or ours (queue_full, ...).",
            labels=("reason",),
        )
        for reason, column in self._rejected.items():
            rejected.add_metric((reason,), float(totals[column]))
        yield rejected
        yield _counter(
            "attention_nonfinite_outputs", "Answers that hold NaN or infinite numbers.", totals[self._nonfinite]
        )

    def _of_engine(self, totals: Totals) -> Iterator[Metric]:
        yield _counter("attention_batches", "Runs of a model, those of the warm-up included.", totals[self._batches])
        batches = HistogramMetricFamily(
            "attention_batch_requests", "Jobs that shared a run: a job is one request under one encoding."
        )
        batches.add_metric((), *self._batch_requests.read(totals))
        yield batches
        yield _gauge("attention_queue_requests", "Jobs that wait to be computed.", totals[self._queued])
        yield _gauge(
            "attention_inflight_requests", "Requests whose answer has not been handed over.", totals[self._inflight]
        )

    def _of_service(self, totals: Totals) -> Iterator[Metric]:
        ready = float(totals[self._ready])
        yield _gauge("attention_ready", "1 where the service takes work, as /health/ready says.", min(1.0, ready))
        processes = GaugeMetricFamily(
            "attention_processes", "Processes that serve, by whether they take work.", labels=("state",)
        )
        processes.add_metric(("ready",), ready)
        processes.add_metric(("not_ready",), self.board.processes - ready)
        yield processes
        sessions = GaugeMetricFamily(
            "attention_session_info",
            "1 for each encoding served: where it computes, and from which file.",
            labels=("model", "encoding", "provider", "opset", "digest"),
        )
        for one in self._served:
            sessions.add_metric((one.model, one.encoding, one.provider, one.opset, one.digest), 1.0)
        yield sessions
        yield InfoMetricFamily("attention_build", "What this process is made of.", self._versions)

    def _of_processes(self, totals: Totals) -> Iterator[Metric]:
        memory = GaugeMetricFamily(
            "attention_process_resident_bytes", "Resident memory of each process that serves.", labels=("process",)
        )
        for process, resident in enumerate(self.board.column(self._memory + 1)):
            memory.add_metric((str(process),), float(resident))
        yield memory
        yield _gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", totals[self._memory])
        yield _gauge(
            "process_resident_memory_bytes",
            "Resident memory size in bytes, pages that processes share counted for each.",
            totals[self._memory + 1],
        )
        yield _gauge(
            "process_start_time_seconds",
            "Start time of the process that was started last since unix epoch in seconds.",
            self.board.column(self._began).max(),
        )
        yield _counter("process_cpu_seconds", "Total user and system CPU time spent in seconds.", totals[self._cpu])
        yield _gauge("process_open_fds", "Number of open file descriptors.", totals[self._files])
        yield _gauge("process_max_fds", "Maximum number of open file descriptors.", vitals.most_files())
        column = self._collections
        for name, meaning in (
            ("python_gc_objects_collected", "Objects collected during gc"),
            ("python_gc_objects_uncollectable", "Uncollectable objects found during GC"),
            ("python_gc_collections", "Number of times this generation was collected"),
        ):
            family = CounterMetricFamily(name, meaning, labels=("generation",))
            for generation in vitals.GENERATIONS:
                family.add_metric((str(generation),), float(totals[column]))
                column += 1
            yield family


class _Read(Collector):
    """What a registry asks."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


def _counter(name: str, meaning: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, meaning, float(value))


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, float(value))
