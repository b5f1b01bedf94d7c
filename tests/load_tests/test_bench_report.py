"""Tables and ratios of the page are those of the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from load_tests.bench import plot, report, scaling, statistics
from load_tests.bench.job import Format
from load_tests.bench.records import Bare, BareRow, Memory, Peers, Sample, Scaling, ScalingRow, Trial
from load_tests.bench.report import Findings
from load_tests.bench.wrk import Run

WHEN = {"date": "2026-01-02 03:04", "commit": "abc1234", "busy": 0.25, "seconds": 12.0}


def run(rate: int, p50_us: int = 1000, p99_us: int = 2000) -> Run:
    return Run(rate, 1_000_000, 1, p50_us, p99_us, p99_us, status=0, connect=0, read=0, write=0, timeout=0)


def samples(name: str, rates: Sequence[int], format: Format = "binary", connections: int = 64) -> list[Sample]:
    return [
        Sample(contender=name, format=format, connections=connections, round=number, run=run(rate), others=0.02)
        for number, rate in enumerate(rates)
    ]


def peers(measured: list[Sample], absent: dict[str, str] | None = None) -> Peers:
    trials = [
        Trial(contender="mosec", setting="slow", many=run(100), one=run(10)),
        Trial(contender="mosec", setting="fast", many=run(200), one=run(10, p50_us=1234)),
        Trial(contender="mosec", setting="broken", many=None, one=None, failed="exit code 1\n| trace |"),
    ]
    return Peers(
        **WHEN,
        trials=trials,
        chosen={"mosec": {64: "fast", 1: "slow"}, "this service": {64: "defaults", 1: "defaults"}},
        samples=measured,
        errors={"this service": 2e-7, "mosec": 3e-7},
        resident={"this service": 150_000_000},
        model_us={"this service": [60.0, 480.4], "mosec": [61.2, 470.0]},
        absent=absent or {},
        run_seconds=3,
    )


def cells(page: str, start: str) -> list[str]:
    """The cells of the first row of a table whose first cell is `start`."""
    for line in page.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if row[0] == start:
            return row
    raise AssertionError(f"no row {start}")


def test_medians_spreads_ratios_and_drift_of_the_rounds() -> None:
    measured = samples("this service", [900, 1000, 1100, 1200, 1300]) + samples("mosec", [600, 500, 550, 400, 560])
    page = report.peers_section(peers(measured))
    assert cells(page, "**this service**") == [
        "**this service**",
        "defaults",
        "1,100",
        "900 to 1,300",
        "",
        "1.00",
        "2.00",
        "0.76",
        "2%",
    ]
    assert cells(page, "mosec") == ["mosec", "fast", "550", "400 to 600", "2.00 x", "1.00", "2.00", "1.15", "2%"]


def test_each_format_and_number_of_connections_has_its_own_table() -> None:
    measured = [
        *samples("this service", [10]),
        *samples("this service", [20], connections=1),
        *samples("this service", [30], "json"),
    ]
    page = report.peers_section(peers(measured))
    assert "### Binary both ways, 64 connections" in page
    assert "### Binary both ways, 1 connection\n" in page
    assert "### JSON both ways, 64 connections" in page
    assert "### JSON both ways, 1 connection\n" not in page


def test_a_peer_that_could_not_be_measured_is_named_with_the_reason() -> None:
    page = report.peers_section(peers(samples("this service", [10]), {"LitServe": "could not be installed: no\nwheel"}))
    assert "Not measured: LitServe, which could not be installed: no wheel." in page


def test_settings_that_failed_and_the_one_used_are_shown() -> None:
    page = report.peers_section(peers(samples("this service", [10]) + samples("mosec", [5])))
    assert "| mosec | fast (used at 64) | 200 | 1.23 |" in page
    assert "| mosec | slow (used at 1) | 100 | 1.00 |" in page
    assert "alone and in a batch of 16: this service 60.0 and 480; mosec 61.2 and 470." in page
    assert "| mosec | broken | exit code 1 / trace / |  |" in page


def test_the_ratio_to_the_bare_model_is_taken_round_by_round() -> None:
    row = BareRow(
        tokens=128,
        megabytes=1.05,
        service=[50.0, 90.0, 70.0],
        bare=[100.0, 100.0, 140.0],
        sending=[300.0, 300.0, 420.0],
        others=[0.0, 0.0, 0.0],
    )
    page = report.bare_section(Bare(**WHEN, rows=[row], connections=8, heads=8, width=256))
    assert cells(page, "128")[8:11] == ["0.50", "0.67", "0.67 to 1.20"]


def memory_of(resident: list[int]) -> Memory:
    requests = [100 * i for i in range(len(resident))]
    parts = {"requests": requests, "resident": resident, "started": 90_000_000}
    return Memory(**WHEN, **parts, processes=2, largest=512, connections=4)


def test_steady_memory_is_flat_and_growing_memory_is_not() -> None:
    steady = report.memory_section(memory_of([200_000_000] * 51))
    assert "**Flat**: +0.00 MB" in steady
    assert "90.0 MB at the start" in steady
    rising = [200_000_000 + 1_000_000 * i for i in range(51)]
    assert "**Rising**: +10.00 MB for 1,000 requests" in report.memory_section(memory_of(rising))
    # What was given back may be taken again, but no more than that.
    turned = [300_000_000] * 15 + [200_000_000 + 1_000_000 * i for i in range(36)]
    page = report.memory_section(memory_of(turned))
    assert "**Flat**: -" in page
    assert "in the\nsecond half +10.00 MB, +11.2%. The most was 300 MB, +0.0%" in page
    assert "**Rising**: -" in report.memory_section(memory_of([turned[0], *(size + 90_000_000 for size in turned[1:])]))


def test_the_whole_page_says_where_when_and_on_what_it_was_measured(tmp_path: Path) -> None:
    points = [
        ScalingRow(tokens=tokens, rows=rows, service=[2.0 * tokens], bare=[1.0 * tokens], others=[0.3])
        for tokens, rows in scaling.grid(64)
    ]
    found = Findings(
        [("CPU", "a fast one")], None, None, Scaling(**WHEN, points=points, heads=4, width=64), memory_of([1, 1, 1])
    )
    page = report.render(found)
    assert "| CPU | a fast one |" in page
    assert "| scaling | 2026-01-02 03:04 | abc1234 | 12 | 0.25 |" in page
    assert "| 64 | last 16 | 128 | 128 to 128 | 64.0 | 64.0 to 64.0 | 2.00 | 30% |" in page
    assert "used 30% of the cores in the median run, at most 30%: **this was not a quiet machine**" in page
    assert "## 1." not in page
    plot.draw(points, tmp_path / report.PICTURE)
    assert (tmp_path / report.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_parts_are_kept_and_read_back(tmp_path: Path) -> None:
    assert Peers.read(tmp_path) is None
    found = peers(samples("mosec", [1, 2]))
    found.write(tmp_path)
    assert Peers.read(tmp_path) == found


def test_lengths_are_powers_of_two_within_the_limit_of_a_request() -> None:
    points = list(scaling.grid())
    whole = [tokens for tokens, rows in points if rows is None]
    last = [tokens for tokens, rows in points if rows is not None]
    assert whole == [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert last == [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12345.6, "12,346"), (100.4, "100"), (12.34, "12.3"), (1.234, "1.23"), (0.01234, "0.0123")],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert report.number(value) == text


def test_halves_leave_out_the_middle_round() -> None:
    assert statistics.summarise([2.0, 4.0, 100.0, 1.0, 2.0]).halves == 2.0
    assert statistics.summarise([5.0]).halves == 1.0
