from __future__ import annotations

import gc
import shutil
import subprocess

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from service.app import create_app
from service.board import Board
from service.engine.device import CPU
from service.errors import failures
from service.exchange import Exchange
from service.records import Timings
from service.settings import Settings
from service.telemetry import SECONDS, SessionLabels, Telemetry
from tests.service import counts

ENDPOINTS, ENCODINGS = ["/attention", "/models"], ["rope", "t5"]
GRAPHS = {"identity.rope": "rope", "identity.t5": "t5", "tiny.rope": "rope"}


def expecting(board: Board | None = None) -> Telemetry:
    telemetry = Telemetry(CollectorRegistry(), board)
    telemetry.expect(ENDPOINTS, ["/attention"], ENCODINGS, GRAPHS, CPU)
    return telemetry


@pytest.fixture
def telemetry() -> Telemetry:
    return expecting()


def values(telemetry: Telemetry) -> dict[counts.Key, float]:
    return counts.parse(generate_latest(telemetry.registry).decode())


def finish(telemetry: Telemetry, exchange: Exchange, seconds: float) -> None:
    telemetry.began(exchange.endpoint)
    telemetry.finished(exchange, seconds)


def series(name: str, **labels: str) -> counts.Key:
    return name, tuple(sorted(labels.items()))


def test_two_registries_know_nothing_of_each_other() -> None:
    first, second = expecting(), expecting()
    first.batch_started("identity.rope", 4, "idle")
    assert counts.total(values(first), "attention_batches_total") == 1
    assert counts.total(values(second), "attention_batches_total") == 0


def test_a_request_moves_one_counter_one_histogram_and_its_stages(telemetry: Telemetry) -> None:
    before = values(telemetry)
    exchange = Exchange(
        "id", "/attention", encoding="rope", status=200, tokens=40, sequences=3, encodings=("rope", "t5")
    )
    exchange.timings = Timings(decode=0.001, queue=0.002, compute=0.003)
    exchange.nonfinite = ("t5",)
    exchange.received, exchange.received_as, exchange.sent, exchange.sent_as = 5000, "npy", 70_000_000, "safetensors"
    finish(telemetry, exchange, 0.0065)
    after = values(telemetry)
    assert counts.changes(before, after, "attention_requests_total") == {("rope", "/attention", "200"): 1}
    durations = counts.changes(before, after, "attention_request_duration_seconds_count")
    assert durations == {("rope", "/attention", "s"): 1}
    assert after[series("attention_stage_duration_seconds_sum", stage="compute", encoding="rope")] == 0.003
    stages = counts.changes(before, after, "attention_stage_duration_seconds_count")
    assert stages == {("rope", stage): 1 for stage in Timings.STAGES}
    assert counts.changes(before, after, "attention_nonfinite_outputs_total") == {("t5",): 1}
    assert counts.changes(before, after, "attention_sequences_total") == {("rope",): 3, ("t5",): 3}
    assert counts.changes(before, after, "attention_sequence_length_tokens_count") == {("rope",): 3, ("t5",): 3}
    assert after[series("attention_sequence_length_tokens_bucket", encoding="t5", le="32.0")] == 0
    assert after[series("attention_sequence_length_tokens_bucket", encoding="t5", le="64.0")] == 3
    assert after[series("attention_sequence_length_tokens_sum", encoding="t5")] == 120
    assert after[series("attention_request_bytes_sum", endpoint="/attention", format="npy")] == 5000
    assert (
        after[series("attention_response_bytes_bucket", endpoint="/attention", format="safetensors", le="6.4e+07")] == 0
    )
    assert counts.changes(before, after, "attention_response_bytes_count") == {("/attention", "safetensors"): 1}
    assert not counts.changes(before, after, "attention_rejected_total")
    assert counts.total(after, "attention_inflight_requests") == 0


@pytest.mark.parametrize(
    ("tokens", "size"), [(0, ""), (1, "s"), (128, "s"), (129, "m"), (512, "m"), (513, "l"), (32_768, "l")]
)
def test_a_request_has_a_size(telemetry: Telemetry, tokens: int, size: str) -> None:
    finish(telemetry, Exchange("id", "/attention", encoding="rope", status=200, tokens=tokens), 0.001)
    found = counts.changes({}, values(telemetry), "attention_request_duration_seconds_count")
    assert found == {("rope", "/attention", size): 1}


def test_a_refusal_moves_its_reason_and_no_stage(telemetry: Telemetry) -> None:
    before = values(telemetry)
    exchange = Exchange("id", "/attention", encoding="unknown", timings=Timings(), encodings=("rope",))
    exchange.fails(429, "queue_full")
    finish(telemetry, exchange, 0.001)
    after = values(telemetry)
    assert counts.changes(before, after, "attention_requests_total") == {("unknown", "/attention", "429"): 1}
    assert counts.changes(before, after, "attention_rejected_total") == {("queue_full",): 1}
    assert not counts.changes(before, after, "attention_stage_duration_seconds_count")
    assert not counts.changes(before, after, "attention_sequences_total")


def test_requests_are_in_flight_at_their_endpoints(telemetry: Telemetry) -> None:
    for endpoint in ("/attention", "/attention", "/models", "/nowhere"):
        telemetry.began(endpoint)
    found = counts.changes({}, values(telemetry), "attention_inflight_requests")
    assert found == {("/attention",): 2, ("/models",): 1, ("other",): 1}
    for endpoint in ("/attention", "/nowhere"):
        telemetry.finished(Exchange("id", endpoint, encoding="made up", status=200), 0.001)
    found = counts.changes({}, values(telemetry), "attention_inflight_requests")
    assert found == {("/attention",): 1, ("/models",): 1}


def test_runs_are_counted_by_encoding_and_by_what_formed_them(telemetry: Telemetry) -> None:
    for graph, jobs, trigger in (("identity.rope", 4, "idle"), ("tiny.rope", 1, "full"), ("identity.t5", 2, "rerun")):
        telemetry.batch_started(graph, jobs, trigger)
        telemetry.batch_finished(graph, jobs, 0.25, CPU, trigger)
        telemetry.computed(graph, 100 * jobs, jobs)
    telemetry.batch_started("made.up", 1, "idle")
    after = values(telemetry)
    assert counts.changes({}, after, "attention_batches_total") == {
        ("rope", "idle"): 1,
        ("rope", "full"): 1,
        ("t5", "rerun"): 1,
        ("unknown", "idle"): 1,
    }
    assert after[series("attention_batch_requests_sum", encoding="rope")] == 5
    assert after[series("attention_batch_compute_seconds_total", encoding="rope", provider=CPU)] == 0.5
    assert counts.changes({}, after, "attention_tokens_total") == {
        ("rope", "real"): 500,
        ("rope", "padding"): 5,
        ("t5", "real"): 200,
        ("t5", "padding"): 2,
    }


def test_gauges_look_when_they_are_read(telemetry: Telemetry) -> None:
    waiting = {"identity.rope": (3, 1.5), "tiny.rope": (1, 2.5), "identity.t5": (1, 0.5)}
    telemetry.watch(queues=lambda: waiting, ready=lambda: 1)
    found = values(telemetry)
    assert counts.changes({}, found, "attention_queue_requests") == {("rope",): 4, ("t5",): 1}
    assert found[series("attention_queue_oldest_seconds", encoding="rope")] == 2.5
    assert found[series("attention_queue_oldest_seconds", encoding="t5")] == 0.5
    waiting.clear()
    assert counts.total(values(telemetry), "attention_queue_requests") == 0
    assert counts.total(values(telemetry), "attention_queue_oldest_seconds") == 0
    assert values(telemetry)["attention_ready", ()] == 1


def of_two() -> tuple[Telemetry, Board]:
    """Two processes, of which this is the first."""
    board = Board(2)
    telemetry = expecting(board)
    telemetry.watch(queues=lambda: {"identity.rope": (2, 1.0 + board.process)}, ready=lambda: 1)
    telemetry.enter(0)
    return telemetry, board


def test_the_metrics_are_those_of_all_processes() -> None:
    telemetry, _ = of_two()
    telemetry.loaded(2.0)
    exchange = Exchange("id", "/attention", encoding="rope", status=200, timings=Timings(compute=0.003), tokens=300)
    for process in (1, 0, 0):
        telemetry.enter(process)
        finish(telemetry, exchange, 0.0065)
        telemetry.batch_started("identity.rope", 4, "idle")
        telemetry.began("/models")
        telemetry.lagged(0.002)
    found = values(telemetry)
    labels = {"encoding": "rope", "endpoint": "/attention"}
    assert found[series("attention_requests_total", **labels, status="200")] == 3
    sized = {**labels, "size": "m"}
    assert found[series("attention_request_duration_seconds_count", **sized)] == 3
    assert found[series("attention_request_duration_seconds_bucket", **sized, le="0.005")] == 0
    assert found[series("attention_request_duration_seconds_bucket", **sized, le="0.01")] == 3
    compute = found[series("attention_stage_duration_seconds_sum", stage="compute", encoding="rope")]
    assert compute == pytest.approx(0.009)
    assert found[series("attention_batches_total", encoding="rope", trigger="idle")] == 3
    assert found[series("attention_batch_requests_sum", encoding="rope")] == 12
    assert found[series("attention_queue_requests", encoding="rope")] == 4
    assert found[series("attention_queue_oldest_seconds", encoding="rope")] == 2, (
        "the oldest of any process, not the sum"
    )
    assert found[series("attention_inflight_requests", endpoint="/models")] == 3
    assert found["attention_event_loop_lag_seconds_count", ()] == 3
    assert found["attention_model_load_seconds", ()] == 2
    assert found["attention_ready", ()] == 1
    assert found[series("attention_processes", state="ready")] == 2


def test_a_dead_process_has_no_present_but_its_counts_stay() -> None:
    telemetry, _ = of_two()
    telemetry.enter(1)
    finish(telemetry, Exchange("id", "/attention", encoding="rope", status=200), 0.0065)
    telemetry.began("/attention")
    telemetry.connected()
    telemetry.enter(0)
    before = values(telemetry)
    telemetry.forget(1)
    after = values(telemetry)
    assert counts.changes({}, after, "attention_requests_total") == {("rope", "/attention", "200"): 1}
    assert counts.total(before, "attention_inflight_requests") == 1
    assert counts.total(after, "attention_inflight_requests") == 0
    assert before[series("attention_connections", process="1")] == 1
    assert after[series("attention_connections", process="1")] == 0
    assert after[series("attention_queue_requests", encoding="rope")] == 2
    assert after[series("attention_queue_oldest_seconds", encoding="rope")] == 1
    assert after[series("attention_processes", state="ready")] == 1
    assert after[series("attention_processes", state="not_ready")] == 1
    assert after["attention_ready", ()] == 1
    assert after[series("attention_process_resident_bytes", process="1")] == 0
    assert after[series("attention_process_resident_bytes", process="0")] > 1 << 20
    assert after["process_start_time_seconds", ()] > 0
    assert after["process_cpu_seconds_total", ()] >= before["process_cpu_seconds_total", ()] > 0


def test_time_and_collections_go_on_from_where_the_process_before_ended() -> None:
    telemetry, _ = of_two()
    for _ in range(3):
        telemetry.enter(1)
        gc.collect()
        telemetry.publish()
    telemetry.enter(0)
    collections = values(telemetry)["python_gc_collections_total", (("generation", "2"),)]
    gc.collect()
    assert values(telemetry)["python_gc_collections_total", (("generation", "2"),)] == collections + 1
    assert 3 <= collections < gc.get_stats()[2]["collections"] + 3


def test_what_nobody_knows_is_counted_as_unknown_and_other(telemetry: Telemetry) -> None:
    finish(telemetry, Exchange("id", "/attention", encoding="made up", status=418), 0.001)
    finish(telemetry, Exchange("id", "/made/up", encoding="made up", status=200), 0.001)
    assert counts.changes({}, values(telemetry), "attention_requests_total") == {
        ("unknown", "/attention", "500"): 1,
        ("", "other", "200"): 1,
    }


def test_what_is_served_is_stated_with_where_it_computes(telemetry: Telemetry) -> None:
    telemetry.serve([SessionLabels("identity", "rope", "CPUExecutionProvider", "18", "abc")])
    telemetry.describe(version="1", device="cpu")
    text = generate_latest(telemetry.registry).decode()
    assert (
        'attention_session_info{digest="abc",encoding="rope",model="identity",opset="18",'
        'provider="CPUExecutionProvider"} 1.0' in text
    )
    assert 'attention_build_info{device="cpu",python="' in text


def test_every_limit_that_an_objective_may_name_is_a_bucket_edge() -> None:
    assert {0.1, 0.25, 1.0} <= set(SECONDS)
    assert list(SECONDS) == sorted(SECONDS)


def test_every_series_exists_before_the_first_request(application: FastAPI, client: TestClient) -> None:
    """And no request makes another one, whatever it names."""

    def read() -> set[counts.Key]:
        return {key for key in counts.read(client) if not key[0].endswith("_created")}

    before = read()
    for encoding in ("rope", "made-up", "rope@label"):
        for body in ({"embeddings": [[1, 2], [3, 4]]}, {"embeddings": [[1], [2, 3]]}, {"nonsense": 1}):
            client.post(f"/attention?encoding={encoding}", json=body)
    client.get("/encodings/made-up/positions")
    client.post("/v2/models/made.up/infer", json={})
    client.get("/nowhere/at/all")
    assert read() == before
    assert len(before) < 10_000


def test_all_that_can_happen_stands_at_0_before_anything_has() -> None:
    """TEI#520: metrics were empty until the first request, and a rate has no beginning then."""
    service = create_app(Settings(device="cpu")).state.service
    found = counts.parse(generate_latest(service.telemetry.registry).decode())
    encodings = [*{one.id for one in service.catalogue.encodings}, "unknown"]
    expected = [series("attention_rejected_total", reason=one.reason) for one in failures()]
    for encoding in encodings:
        expected += [series("attention_batches_total", encoding=encoding, trigger=one) for one in ("idle", "full")]
        expected += [
            series(f"attention_{name}_total", encoding=encoding) for name in ("nonfinite_outputs", "sequences")
        ]
        for endpoint in ("/attention", "/v2/models/{model}/infer"):
            labels = {"endpoint": endpoint, "encoding": encoding}
            expected += [series("attention_requests_total", **labels, status=str(one.status)) for one in failures()]
            expected.append(series("attention_requests_total", **labels, status="200"))
            expected += [
                series("attention_request_duration_seconds_count", **labels, size=size) for size in ("", "s", "m", "l")
            ]
    assert {key: found.get(key) for key in expected} == dict.fromkeys(expected, 0.0)
    assert counts.total(found, "attention_requests_total") == 0


def test_the_text_is_read_as_prometheus_reads_it(client: TestClient) -> None:
    client.post("/attention?compare=t5", json={"embeddings": [[1, 2], [3, 4]]})
    text = client.get("/metrics").text
    assert counts.parse(text) == {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("state", ["at the start", "after requests"])
def test_promtool_finds_nothing_to_complain_of(client: TestClient, state: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    if state == "after requests":
        client.post("/attention?compare=t5", json={"embeddings": [[1, 2], [3, 4]]})
    found = subprocess.run(
        [promtool, "check", "metrics"], input=client.get("/metrics").text, capture_output=True, text=True, check=False
    )
    assert found.stdout + found.stderr == ""
    assert found.returncode == 0


@pytest.mark.parametrize("timings", [None, Timings(decode=0.0005)])
def test_server_timing_is_a_list_of_durations_in_milliseconds(timings: Timings | None) -> None:
    exchange = Exchange("id", "/attention", timings=timings)
    parts = exchange.server_timing.split(", ")
    assert parts[-1].startswith("total;dur=")
    assert (len(parts) == 1) == (timings is None)
    assert timings is None or parts[0] == "decode;dur=0.500"
