"""Traces, as a collector gets them from a real service."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from service.tracing import wanted
from tests.service import samples
from tests.service.process import serving

STAGES = ["decode", "queue", "batch_assembly", "compute", "postprocess", "serialize"]


@contextmanager
def collector() -> Iterator[tuple[int, list[Any]]]:
    """One that keeps the spans it is sent, each with its attributes and the attributes of its service."""
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = {one.key: one.value.string_value for one in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        values = {one.key: one.value for one in span.attributes}
                        spans.append((span, values, service))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_requests_are_spans_with_a_span_for_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with collector() as (port, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        began = time.time_ns()
        with serving(workers="1", processes="2") as process:
            ids = []
            with httpx.Client(base_url=f"http://127.0.0.1:{process.port}", timeout=20) as client:
                body = samples.npy(np.ones((5, 8), np.float32))
                headers = {"content-type": "application/x-npy", "accept": "application/vnd.safetensors"}
                for i in range(5):
                    more = {"traceparent": f"00-{trace}-{parent}-01"} if i == 0 else {}
                    answer = client.post("/attention?encoding=t5&return=weights", content=body, headers=headers | more)
                    ids.append(answer.headers["x-request-id"])
                client.post("/attention", json={})
            process.child.terminate()
            assert process.wait() == 0
        ended = time.time_ns()
    requests = {one[1]["attention.request_id"].string_value: one for one in spans if "http.route" in one[1]}
    assert set(ids) <= set(requests)
    for i, request_id in enumerate(ids):
        span, values, service = requests[request_id]
        assert span.name == "POST /attention"
        assert service["service.name"] == "attention-scoring-service"
        assert values["http.response.status_code"].int_value == 200
        assert values["attention.encoding"].string_value == "t5"
        assert values["attention.tokens"].int_value == 5
        assert began < span.start_time_unix_nano < span.end_time_unix_nano < ended
        inside = [one for one, _, _ in spans if one.parent_span_id == span.span_id]
        assert [one.name for one in inside] == STAGES
        assert all(one.trace_id == span.trace_id for one in inside)
        assert inside[0].start_time_unix_nano == span.start_time_unix_nano
        assert inside[-1].end_time_unix_nano <= span.end_time_unix_nano + 1000
        if i == 0:
            assert (span.trace_id.hex(), span.parent_span_id.hex()) == (trace, parent)
        else:
            assert span.trace_id.hex() != trace
    (refused,) = [one for one in requests.values() if one[1]["http.response.status_code"].int_value == 422]
    assert refused[1]["error.type"].string_value == "invalid"
    assert refused[0].status.code == 0  # it is the client's fault, and no error of the service


def test_traces_are_made_only_where_they_can_be_sent() -> None:
    assert not wanted({})
    assert wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})
    assert wanted({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"})
    assert not wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "true"})
