from __future__ import annotations

import gc

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from service.board import Board
from service.exchange import Exchange
from service.records import Timings
from service.telemetry import SECONDS, SessionLabels, Telemetry
from tests.service import counts


@pytest.fixture
def telemetry() -> Telemetry:
    telemetry = Telemetry(CollectorRegistry())
    telemetry.expect(["/attention", "other"], ["/attention"], ["rope"])
    return telemetry


def values(telemetry: Telemetry) -> dict[counts.Key, float]:
    return counts.parse(generate_latest(telemetry.registry).decode())


def test_two_registries_know_nothing_of_each_other() -> None:
    first, second = Telemetry(CollectorRegistry()), Telemetry(CollectorRegistry())
    first.batch_started("identity.rope", 4, "idle")
    assert values(first)["attention_batches_total", ()] == 1
    assert values(second)["attention_batches_total", ()] == 0


def test_a_request_moves_one_counter_one_histogram_and_its_stages(telemetry: Telemetry) -> None:
    before = values(telemetry)
    exchange = Exchange("id", "/attention", encoding="rope", status=200, nonfinite=True)
    exchange.timings = Timings(decode=0.001, queue=0.002, compute=0.003)
    telemetry.finished(exchange, 0.0065)
    after = values(telemetry)
    assert counts.changes(before, after, "attention_requests_total") == {("rope", "/attention", "200"): 1}
    assert counts.changes(before, after, "attention_request_duration_seconds_count") == {("rope", "/attention"): 1}
    assert after["attention_stage_duration_seconds_sum", (("stage", "compute"),)] == 0.003
    assert after["attention_stage_duration_seconds_count", (("stage", "serialize"),)] == 1
    assert after["attention_nonfinite_outputs_total", ()] == 1
    assert not counts.changes(before, after, "attention_rejected_total")


def test_a_refusal_moves_its_reason_and_no_stage(telemetry: Telemetry) -> None:
    before = values(telemetry)
    telemetry.finished(Exchange("id", "/attention", encoding="unknown", status=429, reason="queue_full"), 0.001)
    after = values(telemetry)
    assert counts.changes(before, after, "attention_requests_total") == {("unknown", "/attention", "429"): 1}
    assert counts.changes(before, after, "attention_rejected_total") == {("queue_full",): 1}
    assert not counts.changes(before, after, "attention_stage_duration_seconds_count")


def test_gauges_look_when_they_are_read(telemetry: Telemetry) -> None:
    queue = [3.0]
    telemetry.watch(queued=lambda: queue[0], inflight=lambda: 2, ready=lambda: 1)
    assert values(telemetry)["attention_queue_requests", ()] == 3
    queue[0] = 0
    assert values(telemetry)["attention_queue_requests", ()] == 0
    assert values(telemetry)["attention_ready", ()] == 1


def of_two() -> tuple[Telemetry, Board]:
    """Two processes, of which this is the first."""
    board = Board(2)
    telemetry = Telemetry(CollectorRegistry(), board)
    telemetry.expect(["/attention"], ["/attention"], ["rope"])
    telemetry.watch(queued=lambda: 2, inflight=lambda: 3, ready=lambda: 1)
    telemetry.enter(0)
    return telemetry, board


def test_the_metrics_are_those_of_all_processes() -> None:
    telemetry, _ = of_two()
    exchange = Exchange("id", "/attention", encoding="rope", status=200, timings=Timings(compute=0.003))
    for process in (1, 0, 0):
        telemetry.enter(process)
        telemetry.finished(exchange, 0.0065)
        telemetry.batch_started("identity.rope", 4, "idle")
    found = values(telemetry)
    labels = (("encoding", "rope"), ("endpoint", "/attention"))
    assert found["attention_requests_total", (*labels, ("status", "200"))] == 3
    assert found["attention_request_duration_seconds_count", labels] == 3
    assert found["attention_request_duration_seconds_bucket", (*labels, ("le", "0.005"))] == 0
    assert found["attention_request_duration_seconds_bucket", (*labels, ("le", "0.01"))] == 3
    assert found["attention_stage_duration_seconds_sum", (("stage", "compute"),)] == pytest.approx(0.009)
    assert found["attention_batches_total", ()] == 3
    assert found["attention_batch_requests_sum", ()] == 12
    assert found["attention_queue_requests", ()] == 4
    assert found["attention_inflight_requests", ()] == 6
    assert found["attention_ready", ()] == 1
    assert found["attention_processes", (("state", "ready"),)] == 2


def test_a_dead_process_has_no_present_but_its_counts_stay() -> None:
    telemetry, _ = of_two()
    telemetry.enter(1)
    telemetry.finished(Exchange("id", "/attention", encoding="rope", status=200), 0.0065)
    telemetry.enter(0)
    before = values(telemetry)
    telemetry.forget(1)
    after = values(telemetry)
    assert counts.changes({}, after, "attention_requests_total") == {("rope", "/attention", "200"): 1}
    assert after["attention_queue_requests", ()] == 2
    assert after["attention_processes", (("state", "ready"),)] == 1
    assert after["attention_processes", (("state", "not_ready"),)] == 1
    assert after["attention_ready", ()] == 1
    assert after["attention_process_resident_bytes", (("process", "1"),)] == 0
    assert after["attention_process_resident_bytes", (("process", "0"),)] > 1 << 20
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


def test_a_request_to_nowhere_known_is_counted_as_other(telemetry: Telemetry) -> None:
    telemetry.finished(Exchange("id", "/attention", encoding="made up", status=418), 0.001)
    assert counts.changes({}, values(telemetry), "attention_requests_total") == {("", "other", "500"): 1}


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


@pytest.mark.parametrize("timings", [None, Timings(decode=0.0005)])
def test_server_timing_is_a_list_of_durations_in_milliseconds(timings: Timings | None) -> None:
    exchange = Exchange("id", "/attention", timings=timings)
    parts = exchange.server_timing.split(", ")
    assert parts[-1].startswith("total;dur=")
    assert (len(parts) == 1) == (timings is None)
    assert timings is None or parts[0] == "decode;dur=0.500"
