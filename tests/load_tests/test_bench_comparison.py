"""Which setting of a server is measured in rounds."""

from __future__ import annotations

import pytest

from load_tests.bench import comparison
from load_tests.bench.contenders import Setting
from load_tests.bench.records import Trial
from load_tests.bench.wrk import Run

Tried = tuple[Trial, Setting]


def tried(label: str, rate: int, alone_us: int) -> Tried:
    def run(requests: int, p50_us: int) -> Run:
        return Run(requests, 1_000_000, 1, p50_us, p50_us, p50_us, status=0, connect=0, read=0, write=0, timeout=0)

    return Trial(contender="x", setting=label, many=run(rate, 1), one=run(1, alone_us)), Setting(label)


FAILED: Tried = (Trial(contender="x", setting="broken", many=None, one=None, failed="exit code 1"), Setting("broken"))


@pytest.mark.parametrize(
    ("trials", "many", "one"),
    [
        ([tried("a", 100, 500)], "a", "a"),
        ([tried("a", 100, 500), tried("b", 200, 500)], "b", "b"),
        ([tried("a", 100, 200), tried("b", 200, 500)], "b", "a"),
        ([tried("a", 100, 480), tried("b", 200, 500)], "b", "b"),
        ([FAILED, tried("a", 100, 500)], "a", "a"),
    ],
)
def test_the_fastest_over_many_connections_and_alone_another_only_where_it_is_much_sooner(
    trials: list[Tried], many: str, one: str
) -> None:
    chosen = comparison.best(trials)
    assert (chosen[comparison.MANY].label, chosen[comparison.ONE].label) == (many, one)
