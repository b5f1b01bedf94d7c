"""The Prometheus metrics. Every series exists from the start, and no label holds what a client sent."""

from __future__ import annotations

import platform
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from service import vitals
from service.board import Board
from service.engine.observer import TRIGGERS
from service.errors import failures
from service.exchange import Exchange
from service.gpu import Reading
from service.records import Timings
from service.series import Counter, Gauge, Histogram, Series, Snapshot, Totals
from service.wire import media

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAGS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
BATCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
TOKENS = (16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0)
BYTES = (1e3, 1e4, 1e5, 1e6, 4e6, 16e6, 64e6)
UNKNOWN = "unknown"
OTHER = "other"
STATUSES = tuple(sorted({200, *(failure.status for failure in failures())}))
SIZES = ("", "s", "m", "l")
"""Of a request: not known, up to 128 keys, up to 512, more."""
Queues = Mapping[str, tuple[int, float]]
"""Of each graph with jobs that wait: how many, and the seconds that the oldest of them has waited."""


@dataclass(frozen=True, slots=True)
class SessionLabels:
    """What `attention_session_info` says of one encoding that is served."""

    model: str
    encoding: str
    provider: str
    opset: str
    digest: str


@dataclass(frozen=True, slots=True)
class Requested:
    """The first columns of all that a request to one endpoint under one encoding moves."""

    requests: int
    """Of the first status; the others follow."""
    durations: tuple[int, ...]
    """By size."""
    stages: tuple[int, ...]
    received: Mapping[str, int]
    """By format."""
    sent: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Computed:
    """The same of runs under one encoding."""

    batches: Mapping[str, int]
    """By trigger."""
    jobs: int
    real: int
    padding: int
    queued: int
    oldest: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The same of answers under one encoding."""

    sequences: int
    lengths: int
    nonfinite: int


class Telemetry:
    """Counts requests, and observes the engine (an `EngineObserver`): its `batch_*` and `computed` come from worker
    threads.

    The numbers of all processes are on one board, so each of them can tell of all. Counters go on when a process is
    restarted; `forget` takes back what a dead one said of its present.
    """

    def __init__(self, registry: CollectorRegistry, board: Board | None = None) -> None:
        self.registry = registry
        self.board = board = board or Board()
        self._lock = threading.Lock()
        self._statuses = {status: i for i, status in enumerate(STATUSES)}
        self._graphs: dict[str, str] = {}
        self._served: list[SessionLabels] = []
        self._versions: dict[str, str] = {}
        self._loading = 0.0

        self._requests = Counter(
            board,
            "attention_requests",
            "Requests by outcome: 4xx, 5xx and 499 (the client left) included; each request moves one series. Encoding "
            "is the reference. What was refused before it could be read as a request counts under the endpoint other.",
            ("endpoint", "encoding", "status"),
        )
        self._durations = Histogram(
            board,
            "attention_request_duration_seconds",
            "From a request's arrival to the last byte handed over, whatever its outcome. Size by the longest "
            "sequence: s up to 128 tokens, m up to 512, l more; empty where it is not known.",
            SECONDS,
            ("endpoint", "encoding", "size"),
        )
        self._stages = Histogram(
            board,
            "attention_stage_duration_seconds",
            "Where the time of answered scoring requests went, by their reference encoding. decode: receiving, reading "
            "and checking the input; queue: waiting for the device; batch_assembly: copying into the batch; compute: "
            "in the model, the whole batch's time for each of its requests; postprocess: cutting the results; "
            "serialize: writing and handing over the answer.",
            SECONDS,
            ("stage", "encoding"),
        )
        self._sequences = Counter(
            board,
            "attention_sequences",
            "Sequences of answered scoring requests, under each encoding of a comparison.",
            ("encoding",),
        )
        self._lengths = Histogram(
            board,
            "attention_sequence_length_tokens",
            "Keys of those sequences, without padding.",
            TOKENS,
            ("encoding",),
        )
        self._nonfinite = Counter(
            board,
            "attention_nonfinite_outputs",
            "Answers that hold NaN or infinite numbers, under each encoding of a comparison.",
            ("encoding",),
        )
        self._received = Histogram(
            board,
            "attention_request_bytes",
            "Bodies of scoring requests that were read in full, as they came.",
            BYTES,
            ("endpoint", "format"),
        )
        self._sent = Histogram(
            board,
            "attention_response_bytes",
            "Bodies of the answers to scoring requests, refusals (problem) included: what was written of those whose "
            "clients left amid them.",
            BYTES,
            ("endpoint", "format"),
        )
        self._rejected = Counter(
            board,
            "attention_rejected",
            "Requests that were refused or failed, by reason: the client's (malformed, ...) or ours (queue_full, ...).",
            ("reason",),
        )
        self._batches = Counter(
            board,
            "attention_batches",
            "Runs of a model, those of the warm-up and those that failed included; a large request is several. "
            "trigger: why no more jobs shared it (idle: there were none, full: the policy's limit, rerun: a member of "
            "a batch that failed).",
            ("encoding", "trigger"),
        )
        self._batch_jobs = Histogram(
            board,
            "attention_batch_requests",
            "Jobs that shared a run: a job is one request under one encoding, or a block of a large one.",
            BATCHES,
            ("encoding",),
        )
        self._computing = Counter(
            board,
            "attention_batch_compute_seconds",
            "Time inside onnxruntime of runs that ended well, each run once: its rate is the share of one worker that "
            "is busy.",
            ("encoding", "provider"),
        )
        self._tokens = Counter(
            board,
            "attention_tokens",
            "Keys of the sequences that runs which ended well computed: those that came, and those they were padded "
            "with. A large request has them in each of its blocks.",
            ("encoding", "kind"),
        )
        self._lags = Histogram(
            board,
            "attention_event_loop_lag_seconds",
            "How late the event loop comes to what is due, looked at once a second in each process.",
            LAGS,
        )

        # What is known of the present of a process, which others see as it last published it.
        self._queued = Gauge(board, "attention_queue_requests", "Jobs that wait to be computed.", ("encoding",))
        self._oldest = Gauge(
            board,
            "attention_queue_oldest_seconds",
            "How long the oldest job that waits to be computed has waited.",
            ("encoding",),
            most=True,
        )
        self._inflight = Gauge(
            board, "attention_inflight_requests", "Requests whose answer has not been handed over.", ("endpoint",)
        )
        self._load = Gauge(
            board,
            "attention_model_load_seconds",
            "How long it took, before the service was ready, to read the models and to warm them up.",
            most=True,
        )
        self._ready, self._connections = board.take(1), board.take(1)
        self._memory, self._files, self._began = (board.take(count) for count in (2, 1, 1))
        self._asked: Callable[[], float] = lambda: 0.0
        self._waiting: Callable[[], Queues] = dict
        # What one of the processes tells of the GPU: its number and 1, bytes, whether its load is known, and that.
        self._gpu = board.take(4)
        # Counted by the system for each process anew.
        self._cpu, self._collections = board.take(1), board.take(3 * len(vitals.GENERATIONS))
        self._before = [0.0] * (1 + 3 * len(vitals.GENERATIONS))

        for reason in sorted({one.reason for one in failures()}):
            self._rejected.create(reason)
        self.listeners: list[Callable[[Exchange, float], None]] = []
        """Told of each request that is over, after so many seconds."""
        self._requested: dict[tuple[str, str], Requested] = {}
        self._inflight_at: dict[str, int] = {}
        self._computed: dict[str, Computed] = {}
        self._answered: dict[str, Answered] = {}
        self._request(OTHER, "", ())
        self._encoding(UNKNOWN)
        registry.register(_Read(self.snapshot))

    def tell(self, exchange: Exchange, seconds: float) -> None:
        """Those who listen, of a request that was counted by `answered`."""
        for told in self.listeners:
            told(exchange, seconds)

    def describe(self, **versions: str) -> None:
        """The labels of `attention_build_info`, beside Python's version."""
        self._versions = {"python": platform.python_version(), **versions}

    def expect(
        self,
        endpoints: Iterable[str],
        scoring: Iterable[str],
        encodings: Iterable[str],
        graphs: Mapping[str, str] | None = None,
        provider: str = "",
    ) -> None:
        """Makes every series exist: `scoring` are the endpoints whose requests have an encoding, `graphs` says of which
        encoding a graph is (or what it does, where it is of none), `provider` where they are run.
        """
        self._graphs.update(graphs or {})
        known = (*encodings, UNKNOWN)
        scoring = tuple(scoring)
        for encoding in dict.fromkeys((*known, *self._graphs.values())):
            self._encoding(encoding)
            if provider:
                self._computing.create(encoding, provider)
        for endpoint in (*endpoints, *scoring):
            self._request(endpoint, "", ())
        for endpoint in scoring:
            for encoding in known:
                self._request(endpoint, encoding, media.FORMATS.values())

    def know(self, graphs: Mapping[str, str]) -> None:
        """Graphs that are served now, and their encodings. Those that nobody expected count as unknown."""
        self._graphs.update({graph: one if one in self._computed else UNKNOWN for graph, one in graphs.items()})

    def _request(self, endpoint: str, encoding: str, formats: Iterable[str]) -> None:
        if (endpoint, encoding) in self._requested:
            return
        requests = [self._requests.create(endpoint, encoding, str(status)) for status in STATUSES]
        # Without an encoding there is nothing to have a length.
        sizes = [self._durations.create(endpoint, encoding, size) for size in (SIZES if encoding else SIZES[:1])]
        self._requested[endpoint, encoding] = Requested(
            requests[0],
            tuple(sizes) if encoding else (sizes[0],) * len(SIZES),
            tuple(self._stages.create(stage, encoding) for stage in Timings.STAGES),
            {format: self._received.create(endpoint, format) for format in formats},
            {format: self._sent.create(endpoint, format) for format in formats},
        )
        self._inflight_at[endpoint] = self._inflight.create(endpoint)

    def _encoding(self, encoding: str) -> None:
        if encoding in self._computed:
            return
        self._computed[encoding] = Computed(
            {trigger: self._batches.create(encoding, trigger) for trigger in TRIGGERS},
            self._batch_jobs.create(encoding),
            self._tokens.create(encoding, "real"),
            self._tokens.create(encoding, "padding"),
            self._queued.create(encoding),
            self._oldest.create(encoding),
        )
        self._answered[encoding] = Answered(
            self._sequences.create(encoding), self._lengths.create(encoding), self._nonfinite.create(encoding)
        )

    def watch(self, *, queues: Callable[[], Queues], ready: Callable[[], float]) -> None:
        """Where this process looks when it tells of its present."""
        self._waiting, self._asked = queues, ready

    def serve(self, sessions: Iterable[SessionLabels]) -> None:
        """States what is served."""
        self._served = list(sessions)

    def loaded(self, seconds: float) -> None:
        """So long it took to read the models, or to warm them up."""
        self._loading += seconds

    def lagged(self, seconds: float) -> None:
        """So late the event loop came to what was due."""
        self._lags.observe(self._lags.columns[()], seconds)

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
        waiting: dict[str, tuple[int, float]] = {}
        for graph, (jobs, seconds) in self._waiting().items():
            encoding = self._graphs.get(graph, UNKNOWN)
            others, longest = waiting.get(encoding, (0, 0.0))
            waiting[encoding] = others + jobs, max(longest, seconds)
        for encoding, columns in self._computed.items():
            row[columns.queued], row[columns.oldest] = waiting.get(encoding, (0, 0.0))
        row[self._ready] = self._asked()
        row[self._load.columns[()]] = self._loading
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
        for gauge in (self._queued, self._oldest, self._inflight, self._load):
            for column in gauge.columns.values():
                self.board.erase(process, column, 1)
        self.board.erase(process, self._ready, self._began + 1 - self._ready)
        self.board.erase(process, self._gpu, 4)

    def gpu(self, reading: Reading | None) -> None:
        """The GPU is like this now; None: it does not say. From a thread of its own."""
        row, first = self.board.row, self._gpu
        if reading is None:
            row[first] = 0
            return
        row[first + 1], row[first + 2], row[first + 3] = reading.used, reading.busy is not None, reading.busy or 0.0
        row[first] = reading.gpu + 1

    def processes(self) -> dict[str, int]:
        """How many processes there are and how many take work, this one as it is now, the others as they last said."""
        self.board.row[self._ready] = self._asked()
        return {"ready": int(self.board.column(self._ready).sum()), "all": self.board.processes}

    def loads(self) -> list[float]:
        """Open connections of each process, infinitely many of one that takes no work, as far as it has said so."""
        present = self.board.columns(self._ready, 2)
        return [connections if ready else inf for ready, connections in present]

    def leave(self) -> None:
        """This process takes no more work."""
        self.board.row[self._ready] = 0

    def connected(self) -> None:
        """One connection more is open."""
        self.board.row[self._connections] += 1

    def disconnected(self) -> None:
        """One connection less is open."""
        self.board.row[self._connections] -= 1

    def began(self, endpoint: str) -> None:
        """One request is under way."""
        self.board.row[self._inflight_at.get(endpoint, self._inflight_at[OTHER])] += 1

    def finished(self, exchange: Exchange, seconds: float) -> None:
        """One request that had begun is over."""
        # Written out: `Histogram.observe` for each of these would take twice as long, and this is every request's.
        row, tokens, endpoint = self.board.row, exchange.tokens, exchange.endpoint
        columns = (
            self._requested.get((endpoint, exchange.encoding))
            or self._requested.get((endpoint, UNKNOWN if exchange.encoding else ""))
            or self._requested[OTHER, ""]
        )
        row[self._inflight_at.get(endpoint, self._inflight_at[OTHER])] -= 1
        row[columns.requests + self._statuses.get(exchange.status, self._statuses[500])] += 1
        first = columns.durations[(tokens > 0) + (tokens > 128) + (tokens > 512)]
        row[first + bisect_left(SECONDS, seconds)] += 1
        row[first + _SECONDS_SUM] += seconds
        if exchange.timings is not None:
            for first, spent in zip(columns.stages, exchange.timings.stages, strict=True):
                row[first + bisect_left(SECONDS, spent) if spent > SECONDS[0] else first] += 1
                row[first + _SECONDS_SUM] += spent
        received, sent = columns.received.get(exchange.received_as), columns.sent.get(exchange.sent_as)
        if received is not None:
            row[received + bisect_left(BYTES, exchange.received)] += 1
            row[received + _BYTES_SUM] += exchange.received
        if sent is not None:
            row[sent + bisect_left(BYTES, exchange.sent)] += 1
            row[sent + _BYTES_SUM] += exchange.sent
        for encoding in exchange.encodings:
            answered, sequences = self._answered.get(encoding, self._answered[UNKNOWN]), exchange.sequences
            row[answered.sequences] += sequences
            row[answered.lengths + bisect_left(TOKENS, tokens)] += sequences
            row[answered.lengths + _TOKENS_SUM] += sequences * tokens
        if exchange.reason is not None:
            row[self._rejected.columns[exchange.reason,]] += 1
        for told in self.listeners:
            told(exchange, seconds)
        for encoding in exchange.nonfinite:
            row[self._answered.get(encoding, self._answered[UNKNOWN]).nonfinite] += 1

    def answered(
        self,
        like: Exchange,
        seconds: Sequence[float],
        stages: Iterable[Sequence[float] | float],
        sent: Sequence[int],
        nonfinite: int,
    ) -> None:
        """As many requests like this one were answered with 200 as there are numbers in `seconds`, so many each, of
        which so many went into each of `Timings.STAGES`: a number for each of them, or one that is the same for all.
        Of all, so many bytes were sent, and so many answers are not all finite.

        That they had begun was not told.
        """
        row, count, tokens = self.board.row, len(seconds), like.tokens
        columns = self._requested.get((like.endpoint, like.encoding)) or self._requested[like.endpoint, UNKNOWN]
        row[columns.requests + self._statuses[200]] += count
        first = columns.durations[(tokens > 0) + (tokens > 128) + (tokens > 512)]
        _observe(row, first, SECONDS, seconds)
        for first, spent in zip(columns.stages, stages, strict=True):
            if isinstance(spent, float):
                row[first + bisect_left(SECONDS, spent)] += count
                row[first + _SECONDS_SUM] += count * spent
            else:
                _observe(row, first, SECONDS, spent)
        received = columns.received[like.received_as]
        row[received + bisect_left(BYTES, like.received)] += count
        row[received + _BYTES_SUM] += count * like.received
        _observe(row, columns.sent[like.sent_as], BYTES, sent)
        for encoding in like.encodings:
            answered, sequences = self._answered.get(encoding, self._answered[UNKNOWN]), count * like.sequences
            row[answered.sequences] += sequences
            row[answered.lengths + bisect_left(TOKENS, tokens)] += sequences
            row[answered.lengths + _TOKENS_SUM] += sequences * tokens
            row[answered.nonfinite] += nonfinite

    # What the engine tells. Requests it refuses or drops are counted where their answer is sent.

    def queued(self, graph: str, jobs: int) -> None: ...

    def batch_started(self, graph: str, jobs: int, trigger: str) -> None:
        computed = self._computed[self._graphs.get(graph, UNKNOWN)]
        with self._lock:
            self.board.row[computed.batches[trigger]] += 1
            self._batch_jobs.observe(computed.jobs, jobs)

    def batch_finished(self, graph: str, jobs: int, seconds: float, provider: str, trigger: str) -> None:
        with self._lock:
            self.board.row[self._computing.columns[self._graphs.get(graph, UNKNOWN), provider]] += seconds

    def computed(self, graph: str, real: int, padding: int) -> None:
        columns = self._computed[self._graphs.get(graph, UNKNOWN)]
        with self._lock:
            self.board.row[columns.real] += real
            self.board.row[columns.padding] += padding

    def batch_failed(self, graph: str, jobs: int, trigger: str) -> None: ...

    def dropped(self, jobs: int, reason: str) -> None: ...

    def rejected(self, reason: str) -> None: ...

    # What Prometheus reads

    def snapshot(self) -> Snapshot:
        """All that is known now."""
        self.publish()
        totals = self.board.totals()
        series: tuple[Series, ...] = (
            self._requests,
            self._durations,
            self._stages,
            self._received,
            self._sent,
            self._rejected,
            self._sequences,
            self._lengths,
            self._nonfinite,
            self._batches,
            self._batch_jobs,
            self._computing,
            self._tokens,
            self._queued,
            self._oldest,
            self._inflight,
            self._lags,
            self._load,
        )
        families: list[Callable[[], Metric]] = [partial(one.family, totals) for one in series]
        present = [*self._of_service(totals), *(self._of_processes(totals) if vitals.known() else ())]
        return Snapshot([*families, *(partial(_same, one) for one in present)])

    def _of_service(self, totals: Totals) -> list[Metric]:
        ready = float(totals[self._ready])
        taking = _gauge("attention_ready", "1 where the service takes work, as /health/ready says.", min(1.0, ready))
        processes = GaugeMetricFamily(
            "attention_processes", "Processes that serve, by whether they take work.", labels=("state",)
        )
        processes.add_metric(("ready",), ready)
        processes.add_metric(("not_ready",), self.board.processes - ready)
        sessions = GaugeMetricFamily(
            "attention_session_info",
            "1 for each encoding served: where it computes, and from which file.",
            labels=("model", "encoding", "provider", "opset", "digest"),
        )
        for one in self._served:
            sessions.add_metric((one.model, one.encoding, one.provider, one.opset, one.digest), 1.0)
        build = InfoMetricFamily("attention_build", "What this process is made of.", self._versions)
        connections = GaugeMetricFamily(
            "attention_connections", "Open connections of each process that serves.", labels=("process",)
        )
        for process, count in enumerate(self.board.column(self._connections)):
            connections.add_metric((str(process),), float(count))
        return [taking, processes, connections, sessions, build, *self._of_gpu()]

    def _of_gpu(self) -> list[Metric]:
        """Of the device, whichever process has told of it; without series where none has."""
        memory = GaugeMetricFamily(
            "attention_gpu_memory_used_bytes",
            "Memory of the GPU that is in use, by whatever program. Absent where NVML does not tell.",
            labels=("gpu",),
        )
        busy = GaugeMetricFamily(
            "attention_gpu_utilization_ratio",
            "The part of the last moment in which the GPU computed anything, from 0 to 1. Absent where NVML does not "
            "tell.",
            labels=("gpu",),
        )
        numbers, used, known, loads = (self.board.column(self._gpu + i) for i in range(4))
        for process in numbers.nonzero()[0][:1]:
            gpu = str(int(numbers[process]) - 1)
            memory.add_metric((gpu,), float(used[process]))
            if known[process]:
                busy.add_metric((gpu,), float(loads[process]))
        return [memory, busy]

    def _of_processes(self, totals: Totals) -> list[Metric]:
        memory = GaugeMetricFamily(
            "attention_process_resident_bytes", "Resident memory of each process that serves.", labels=("process",)
        )
        for process, resident in enumerate(self.board.column(self._memory + 1)):
            memory.add_metric((str(process),), float(resident))
        found: list[Metric] = [
            memory,
            _gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", totals[self._memory]),
            _gauge(
                "process_resident_memory_bytes",
                "Resident memory size in bytes, pages that processes share counted for each.",
                totals[self._memory + 1],
            ),
            _gauge(
                "process_start_time_seconds",
                "Start time of the process that was started last since unix epoch in seconds.",
                self.board.column(self._began).max(),
            ),
            CounterMetricFamily(
                "process_cpu_seconds", "Total user and system CPU time spent in seconds.", float(totals[self._cpu])
            ),
            _gauge("process_open_fds", "Number of open file descriptors.", totals[self._files]),
            _gauge("process_max_fds", "Maximum number of open file descriptors.", vitals.most_files()),
        ]
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
            found.append(family)
        return found


_SECONDS_SUM, _BYTES_SUM, _TOKENS_SUM = (len(limits) + 1 for limits in (SECONDS, BYTES, TOKENS))
"""How far the column of the sum is from the first."""


def _observe(row: memoryview[float], first: int, limits: Sequence[float], values: Sequence[float]) -> None:
    """Of values that mostly fall into one bucket."""
    row[first + len(limits) + 1] += sum(values)
    bucket = bisect_left(limits, max(values))
    if bucket == bisect_left(limits, min(values)):
        row[first + bucket] += len(values)
        return
    for value in values:
        row[first + bisect_left(limits, value)] += 1


class _Read(Collector):
    """What a registry asks."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        return self._snapshot().collect()


def _same(family: Metric) -> Metric:
    return family


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, float(value))
