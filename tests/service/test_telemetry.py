from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

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
