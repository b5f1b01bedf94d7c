"""The Prometheus metrics. Every series exists from the start, and no label holds what a client sent."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from service.errors import failures
from service.exchange import Exchange
from service.records import Timings

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
UNKNOWN = "unknown"
OTHER = "other"
STATUSES = tuple(sorted({200, *(failure.status for failure in failures())}))


@dataclass(frozen=True, slots=True)
class SessionLabels:
    """What `attention_session_info` says of one encoding that is served."""

    model: str
    encoding: str
    provider: str
    opset: str
    digest: str


class Telemetry:
    """Counts requests, and observes the engine (an `EngineObserver`): its `batch_*` come from worker threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each counter, which nobody reads
        self.registry = registry
        self._requests = Counter(
            "attention_requests",
            "Requests by outcome: 4xx, 5xx and 499 (the client left) included; each request moves one series.",
            ("endpoint", "encoding", "status"),
            registry=registry,
        )
        self._durations = Histogram(
            "attention_request_duration_seconds",
            "From a request's arrival to the last byte handed over, whatever its outcome.",
            ("endpoint", "encoding"),
            buckets=SECONDS,
            registry=registry,
        )
        stages = Histogram(
            "attention_stage_duration_seconds",
            "Where the time of answered scoring requests went. decode: receiving, reading and checking the input; "
            "queue: waiting for the device; batch_assembly: copying into the batch; compute: in the model, the whole "
            "batch's time for each of its requests; postprocess: cutting the results; serialize: writing and handing "
            "over the answer.",
            ("stage",),
            buckets=SECONDS,
            registry=registry,
        )
        self._stages = {stage: stages.labels(stage) for stage in Timings.STAGES}
        self._batches = Counter(
            "attention_batches", "Runs of a model, those of the warm-up included.", registry=registry
        )
        self._batch_requests = Histogram(
            "attention_batch_requests",
            "Jobs that shared a run: a job is one request under one encoding.",
            buckets=BATCHES,
            registry=registry,
        )
        self._queued = Gauge("attention_queue_requests", "Jobs that wait to be computed.", registry=registry)
        self._inflight = Gauge(
            "attention_inflight_requests",
            "Requests whose answer has not been handed over; the one that reads this is among them.",
            registry=registry,
        )
        rejected = Counter(
            "attention_rejected",
            "Requests that were refused or failed, by reason: the client's (malformed, ...) or ours (queue_full, ...).",
            ("reason",),
            registry=registry,
        )
        self._rejected = {reason: rejected.labels(reason) for reason in sorted({one.reason for one in failures()})}
        self._nonfinite = Counter(
            "attention_nonfinite_outputs", "Answers that hold NaN or infinite numbers.", registry=registry
        )
        self._sessions = Gauge(
            "attention_session_info",
            "1 for each encoding served: where it computes, and from which file.",
            ("model", "encoding", "provider", "opset", "digest"),
            registry=registry,
        )
        self._ready = Gauge(
            "attention_ready", "1 where the process takes work, as /health/ready says.", registry=registry
        )
        self._build = Info("attention_build", "What this process is made of.", registry=registry)
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)

    def describe(self, **versions: str) -> None:
        """The labels of `attention_build_info`, beside Python's version."""
        self._build.info({"python": platform.python_version(), **versions})

    def expect(self, endpoints: Iterable[str], scoring: Iterable[str], encodings: Iterable[str]) -> None:
        """Makes every series exist: `scoring` are the endpoints whose requests have an encoding."""
        for endpoint in endpoints:
            self._create(endpoint, "")
        for endpoint in scoring:
            for encoding in (*encodings, UNKNOWN):
                self._create(endpoint, encoding)

    def _create(self, endpoint: str, encoding: str) -> None:
        self._durations.labels(endpoint, encoding)
        for status in STATUSES:
            self._requests.labels(endpoint, encoding, str(status))

    def watch(self, *, queued: Callable[[], float], inflight: Callable[[], float], ready: Callable[[], float]) -> None:
        """Where the gauges look when they are read."""
        self._queued.set_function(queued)
        self._inflight.set_function(inflight)
        self._ready.set_function(ready)

    def serve(self, sessions: Iterable[SessionLabels]) -> None:
        """States what is served."""
        self._sessions.clear()
        for one in sessions:
            self._sessions.labels(one.model, one.encoding, one.provider, one.opset, one.digest).set(1)

    def finished(self, exchange: Exchange, seconds: float) -> None:
        """One request is over."""
        self._requests.labels(exchange.endpoint, exchange.encoding, str(exchange.status)).inc()
        self._durations.labels(exchange.endpoint, exchange.encoding).observe(seconds)
        if exchange.reason is not None:
            self._rejected[exchange.reason].inc()
        if exchange.nonfinite:
            self._nonfinite.inc()
        if exchange.timings is not None:
            for stage, child in self._stages.items():
                child.observe(getattr(exchange.timings, stage))

    # What the engine tells. Requests it refuses or drops are counted where their answer is sent.

    def queued(self, graph: str, jobs: int) -> None: ...

    def batch_started(self, graph: str, jobs: int, trigger: str) -> None:
        self._batches.inc()
        self._batch_requests.observe(jobs)

    def batch_finished(self, graph: str, jobs: int, seconds: float, provider: str, trigger: str) -> None: ...

    def batch_failed(self, graph: str, jobs: int, trigger: str) -> None: ...

    def dropped(self, jobs: int, reason: str) -> None: ...

    def rejected(self, reason: str) -> None: ...
