"""When figures mean something, and when counts agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.markdown import written
from load_tests.report import Part
from load_tests.verdict import Check, checks, exit_code, findings, invalid, promised, reconcile


def part(**changes: Any) -> dict[str, Any]:
    found = Part("only", 0.0, 10.0, 5.0)
    found.add("POST /attention [s npy]", 0.010, 200, received=100)
    found.late.append(0.001)
    usual = {"service_cores": 0.5, "generator_cores": 0.3, "jobs_per_batch": 1.0}
    return found.as_dict() | usual | changes


def summary(**changes: Any) -> dict[str, Any]:
    return {
        "scenario": "formats",
        "about": "what it is",
        "at": "2030-01-01T00:00:00+00:00",
        "commit": "abcdef0",
        "seed": 7,
        "encodings": 25,
        "providers": ["CPUExecutionProvider"],
        "capacity": 100.0,
        "parts": [part()],
        "reasons": {},
        "sent": {"200": 1},
        "told": {"200": 1},
        "left_behind": 0,
        "invalid": [],
        "findings": [],
        "service": {
            "batches": 1,
            "jobs_per_batch": 1.0,
            "stage_means_ms": {"compute": 1.5},
            "resident_mb": None,
            "open_files": {"before": 50, "after": 50},
            "resident_mb_per_minute": None,
        },
    } | changes


def soak(seconds: float, **changes: Any) -> list[Check]:
    """Of a soak whose open steps last so long each, and whose memory grows."""
    parts = [part(name=name, seconds=seconds) for name in ("settling", "first", "middle", "last")]
    service = summary()["service"] | {"resident_mb_per_minute": 30.0}
    return checks(summary(scenario="soak", parts=parts, service=service, **changes))


def soaked(seconds: float, **changes: Any) -> set[str]:
    return {check.name for check in soak(seconds, **changes) if not check.passed}


def failed(**changes: Any) -> set[str]:
    return {check.name for check in checks(summary(**changes)) if not check.passed}


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50))
def test_percentiles_are_of_the_seconds_since_a_request_was_due(seconds: list[float]) -> None:
    found = Part("only", 0.0, 10.0, 5.0)
    for value in seconds:
        found.add("name", value, 200)
    (row,) = found.as_dict()["requests"]
    assert row["count"] == len(seconds)
    assert row["max_ms"] == pytest.approx(1e3 * max(seconds), abs=1e-3)
    ordered = sorted(seconds)
    place = 0.95 * (len(ordered) - 1)
    low, high = ordered[int(np.floor(place))], ordered[int(np.ceil(place))]
    assert 1e3 * low - 1e-3 <= row["p95_ms"] <= 1e3 * high + 1e-3
    assert row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"] <= row["max_ms"]


def test_a_run_whose_generator_was_late_or_busy_is_invalid_by_name() -> None:
    assert invalid([part()]) == []
    (late,) = invalid([part(lag_p99_ms=34.0)])
    assert late.startswith("schedule-lag: p99 of 34.0 ms in 'only'")
    (busy,) = invalid([part(generator_cores=0.97)])
    assert busy.startswith("generator-cpu: 97% of a core in 'only'")
    assert invalid([part(generator_cores=0.97, judged=False)]) == []
    assert invalid([part(lag_p99_ms=None, generator_cores=None)]) == []
    assert invalid([part(lag_p99_ms=10.0, generator_cores=0.9)]) == []


def test_counts_agree_only_if_every_request_has_exactly_one_outcome() -> None:
    assert reconcile({"200": 5, "422": 2}, {"200": 5, "422": 2}) == []
    assert reconcile({"200": 5}, {"200": 6})
    assert reconcile({"200": 5}, {"200": 4})
    assert reconcile({"200": 5, "422": 2}, {"200": 6, "422": 1})
    assert reconcile({"200": 5, "0": 1}, {"200": 6})


def test_a_request_that_was_left_counts_once_as_an_answer_or_as_cancelled() -> None:
    assert reconcile({"200": 5, "left": 3}, {"200": 6, "499": 2}) == []
    assert reconcile({"200": 5, "left": 3}, {"200": 5, "499": 2})
    assert reconcile({"200": 5, "left": 3}, {"200": 5, "499": 4})
    assert reconcile({"200": 5, "left": 1}, {"200": 5, "500": 1})


@given(st.dictionaries(st.sampled_from(["200", "400", "422", "429"]), st.integers(1, 9)), st.integers(0, 5), st.data())
def test_one_request_more_or_less_on_either_side_never_agrees(
    sent: dict[str, int], left: int, data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, left))
    told = sent | {"499": gone, "200": sent.get("200", 0) + left - gone}
    seen = sent | {"left": left}
    assert reconcile(seen, told) == []
    status = data.draw(st.sampled_from(sorted(told)))
    assert reconcile(seen, told | {status: told[status] + 1})
    assert reconcile(seen | {status: seen.get(status, 0) + 1}, told)


def test_what_a_step_promised_is_kept_only_without_refusals_and_drops() -> None:
    def step(**changes: Any) -> Part:
        found = Part("step", 0.0, 10.0, 5.0)
        found.add("POST /attention [s npy]", changes.get("seconds", 0.05), changes.get("status", 200))
        found.dropped = changes.get("dropped", 0)
        return found

    assert promised(step())
    assert not promised(step(seconds=0.15))
    assert not promised(step(dropped=1))
    assert not promised(step(status=429))


def test_each_kind_of_wrong_run_fails_its_own_check() -> None:
    assert failed() == set()
    assert failed(told={"200": 2}) == {"counts agree"}
    assert failed(left_behind=1) == {"nothing left behind"}
    wrong = part()
    wrong["requests"][0]["failed"] = 1
    assert failed(parts=[wrong]) == {"no failures"}
    assert failed(parts=[part(dropped=3)]) == {"nothing dropped"}
    assert failed(parts=[part(refused=3)]) == {"nothing refused that was not meant to be"}
    assert failed(parts=[part(refused=3, refusable=True)]) == set()


def test_overload_is_judged_by_what_is_still_answered() -> None:
    def run(answered: int, cpu: float) -> set[str]:
        parts = [part(name=name, answered_200=answered) for name in ("twice", "five times")]
        capacity = part(name="capacity", rate=None, answered_200=1000, service_cores=2.0)
        service = summary()["service"] | {"open_cpu_seconds": cpu}
        return failed(scenario="overload", parts=[capacity, *parts], service=service)

    assert run(801, 40.0) == set()
    assert len(run(799, 39.0)) == 2
    assert run(801, 41.0) == {"a second of the processors answers >= 80% of what it did"}


def test_a_short_soak_is_not_judged_by_its_drift() -> None:
    assert soaked(30.0) == set()
    assert soaked(500.0) == {"memory grows by < 1 MB a minute"}


def test_a_soak_has_no_5xx_on_either_side_and_memory_counts_however_late_the_generator_was() -> None:
    left = {"200": 4, "left": 3}
    assert soaked(30.0, sent=left, told={"200": 5, "499": 2}) == set()
    assert soaked(30.0, sent=left, told={"200": 6, "503": 1}) == {"no 5xx, seen or counted"}
    assert len(soaked(30.0, sent=left | {"500": 1}, told={"200": 5, "499": 2, "500": 1})) == 1
    (grown,) = (check for check in soak(500.0) if check.name.startswith("memory"))
    assert exit_code([grown], True, True) == 1


def test_a_report_says_how_those_counted_that_left() -> None:
    (said,) = findings(summary(scenario="soak", sent={"200": 4, "left": 3}, told={"200": 5, "499": 2}))
    assert said == "Of 3 requests whose clients left, 2 counted as 499, the others as they ended."


def test_the_knee_is_the_last_step_that_was_as_fast_as_promised() -> None:
    steps = [
        part(name=f"{what}, step {number}", rate=rate, promised=kept)
        for what, number, rate, kept in (
            ("a", 0, 10.0, True),
            ("a", 1, 12.0, True),
            ("a", 2, 14.4, False),
            ("b", 0, 5.0, False),
        )
    ]
    assert findings(summary(scenario="knee", parts=steps)) == [
        "a: as fast as promised up to 12/s, 1.0 jobs in a batch.",
        "b: not even the first step was as fast as promised.",
    ]


def test_what_a_mix_costs_is_a_ratio() -> None:
    parts = [part(name="1 encoding", answered_200=500), part(name="8 encodings", answered_200=125)]
    (said,) = findings(summary(scenario="mix-cost", parts=parts))
    assert said == "Eight encodings: 0.25 of the throughput of one (12 and 50/s)."


def test_exit_codes() -> None:
    right, slow, wrong = Check("a", True, ""), Check("b", False, "", speed=True), Check("c", False, "")
    assert exit_code([right], False, True) == 0
    assert exit_code([right, slow], False, True) == 1
    assert exit_code([right, slow], False, False) == 0
    assert exit_code([right, slow], True, True) == 3
    assert exit_code([right], True, True) == 3
    assert exit_code([right, wrong], True, False) == 1


def test_a_report_says_first_that_its_run_is_invalid() -> None:
    bad = summary(invalid=["schedule-lag: p99 of 34.0 ms in 'only', above 10 ms"])
    shown = written(bad, [Check("p95", False, "300 ms", speed=True), Check("counts agree", True, "1 requests")])
    assert "INVALID" in shown.partition("| check |")[0]
    assert "| p95 | not judged | 300 ms |" in shown
    assert "| counts agree | passed | 1 requests |" in shown
    assert "seed 7" in shown
    assert "| only | POST /attention [s npy] | 1 | 0 | 10.0 | 10.0 | 10.0 | 10.0 | 100 |" in shown
    assert "INVALID" not in written(summary(), [])
