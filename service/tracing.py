"""OpenTelemetry traces of requests, where the environment says where to send them: `OTEL_EXPORTER_OTLP_ENDPOINT` and
the SDK's other variables (sampling, headers, the service's name) mean what its documentation says.

A request is a server span, a child of the caller's where it sent `traceparent`; its stages are spans of their own,
one after the other, so that a trace shows what `Server-Timing` tells.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service import __version__
from service.exchange import Exchange

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
NAME = "attention-scoring-service"


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether traces are to be sent anywhere."""
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not off and any(environment.get(name) for name in ENDPOINTS)


class Tracing:
    """Told of every request that is over, it makes the spans. Its exporter has a thread, so a process makes its own
    after it was forked.
    """

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        named = {} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: NAME}
        self._provider = TracerProvider(resource=Resource.create({**named, SERVICE_VERSION: __version__}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(NAME, __version__)
        self._propagator = TraceContextTextMapPropagator()

    def __call__(self, exchange: Exchange, seconds: float) -> None:
        """A request that has just ended, after so many seconds."""
        # Its times are those of a clock that has no date.
        began = time.time_ns() - int(1e9 * (time.perf_counter() - exchange.began))
        parent = self._propagator.extract(exchange.trace)
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.endpoint}".strip(),
            context=parent,
            kind=SpanKind.SERVER,
            attributes=_attributes(exchange),
            start_time=began,
        )
        if exchange.status >= 500 or (exchange.status == 0 and exchange.reason is not None):
            span.set_status(Status(StatusCode.ERROR, exchange.reason))
        if exchange.timings is not None and span.is_recording():
            inside, start = set_span_in_context(span), began
            for stage, spent in zip(exchange.timings.STAGES, exchange.timings.stages, strict=True):
                end = start + int(1e9 * spent)
                self._tracer.start_span(stage, context=inside, start_time=start).end(end)
                start = end
        span.end(began + int(1e9 * seconds))

    def close(self) -> None:
        """Sends what is left, within the exporter's own time."""
        self._provider.shutdown()


def _attributes(exchange: Exchange) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "http.request.method": exchange.method,
        "http.route": exchange.endpoint,
        "http.response.status_code": exchange.status,
        "http.request.body.size": exchange.received,
        "http.response.body.size": exchange.sent,
        "error.type": exchange.reason or "",
        "attention.request_id": exchange.request_id,
        "attention.encoding": exchange.encoding,
        "attention.encodings": ",".join(exchange.encodings),
        "attention.tokens": exchange.tokens,
        "attention.batch_jobs": exchange.timings.batch_jobs if exchange.timings is not None else 0,
    }
    return {name: value for name, value in found.items() if value}
