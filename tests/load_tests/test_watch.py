"""Processor time, memory and the service's own numbers, between two moments."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from load_tests.metrics import Metrics
from load_tests.watch import Sample, Watch, cores, slope, spent, within

BEFORE = """\
# TYPE attention_requests_total counter
attention_requests_total{endpoint="/attention",encoding="rope",status="200"} 3
attention_requests_total{endpoint="/metrics",encoding="",status="200"} 9
# TYPE attention_batches_total counter
attention_batches_total{encoding="rope",trigger="idle"} 2
# TYPE attention_batch_requests histogram
attention_batch_requests_bucket{encoding="rope",le="+Inf"} 2
attention_batch_requests_count{encoding="rope"} 2
attention_batch_requests_sum{encoding="rope"} 2
# TYPE attention_stage_duration_seconds histogram
attention_stage_duration_seconds_bucket{encoding="rope",stage="compute",le="+Inf"} 2
attention_stage_duration_seconds_count{encoding="rope",stage="compute"} 2
attention_stage_duration_seconds_sum{encoding="rope",stage="compute"} 0.5
"""
AFTER = """\
# TYPE attention_requests_total counter
attention_requests_total{endpoint="/attention",encoding="rope",status="200"} 8
attention_requests_total{endpoint="/attention",encoding="alibi",status="200"} 1
attention_requests_total{endpoint="/attention",encoding="alibi",status="499"} 2
attention_requests_total{endpoint="/metrics",encoding="",status="200"} 20
# TYPE attention_batches_total counter
attention_batches_total{encoding="rope",trigger="idle"} 3
attention_batches_total{encoding="rope",trigger="full"} 1
# TYPE attention_batch_requests histogram
attention_batch_requests_bucket{encoding="rope",le="+Inf"} 4
attention_batch_requests_count{encoding="rope"} 4
attention_batch_requests_sum{encoding="rope"} 7
# TYPE attention_stage_duration_seconds histogram
attention_stage_duration_seconds_bucket{encoding="rope",stage="compute",le="+Inf"} 7
attention_stage_duration_seconds_count{encoding="rope",stage="compute"} 7
attention_stage_duration_seconds_sum{encoding="rope",stage="compute"} 0.51
"""


def test_metrics_are_subtracted() -> None:
    delta = Metrics.of(AFTER) - Metrics.of(BEFORE)
    assert delta.statuses() == {"200": 6, "499": 2}
    figures = delta.figures()
    assert figures["batches"] == 2
    assert figures["jobs_per_batch"] == 2.5
    assert figures["stage_means_ms"] == {"compute": 2.0}
    assert figures["padding"] is None


def test_a_scrape_is_condensed_to_what_its_figures_are_made_of() -> None:
    many = "".join(
        f'attention_stage_duration_seconds_{part}{{encoding="e{number}",stage="compute"}} {number}\n'
        for part in ("count", "sum")
        for number in range(500)
    )
    before, after = Metrics.of(BEFORE), Metrics.of(AFTER + many)
    assert (after.condensed() - before.condensed()).figures() == (after - before).figures()
    assert len(after.samples) > 1000
    assert len(after.condensed().samples) == 5


@pytest.fixture
def exposed() -> Iterator[str]:
    """The address of something that has the metrics of `AFTER`."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(AFTER.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_watch_keeps_no_whole_scrape(exposed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("load_tests.watch.SECOND", 0.01)
    watch = Watch(exposed, os.getpid(), os.getpid())
    watch.start()
    while len(watch.scrapes) < 3:
        time.sleep(0.01)
    watch.end()
    assert [kept for _, kept in watch.scrapes] == [Metrics.of(AFTER).condensed()] * len(watch.scrapes)


def test_processor_time_and_memory_between_samples() -> None:
    samples = [Sample(10.0 + at, 100 + 1.5 * at, 7 + 0.25 * at, 10**9 + 2_000_000 * at) for at in range(61)]
    assert cores(samples) == (1.5, 0.25)
    assert slope(samples) == pytest.approx(120)
    assert spent(samples, 60.0) == 15.0
    assert spent(samples, 69.0) is None
    assert within(samples, 10.0, 12.5) == samples[:3]
    assert cores(samples[:2]) is None
    assert slope([]) is None
