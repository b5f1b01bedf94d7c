"""When requests are due."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, poisson

from load_tests.arrivals import due_times

STEPS = st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 10)), min_size=1, max_size=5)


@given(STEPS, st.integers(0, 2**32))
def test_arrivals_come_in_order_each_within_its_step(steps: list[tuple[float, float]], seed: int) -> None:
    ends = np.cumsum([seconds for _, seconds in steps])
    found = list(due_times(steps, random.Random(seed)))
    assert [due for due, _ in found] == sorted(due for due, _ in found)
    for due, number in found:
        assert (ends[number - 1] if number else 0.0) <= due < ends[number]
        assert steps[number][0] > 0


@given(STEPS, st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_arrivals(steps: list[tuple[float, float]], seed: int) -> None:
    assert list(due_times(steps, random.Random(seed))) == list(due_times(steps, random.Random(seed)))


def test_gaps_are_exponential_also_where_the_rate_changes() -> None:
    """A Poisson process whose gaps are measured in expected arrivals has gaps of mean 1, whatever the rates."""
    steps = [(5.0, 40.0), (50.0, 40.0), (0.5, 40.0), (20.0, 40.0)]
    before = np.cumsum([0.0, *(rate * seconds for rate, seconds in steps)])
    expected = [
        before[number] + steps[number][0] * (due - 40 * number) for due, number in due_times(steps, random.Random(1))
    ]
    assert kstest(np.diff(expected), "expon").pvalue > 0.01


def test_counts_are_those_of_a_poisson_process() -> None:
    counts = [sum(1 for _ in due_times([(10.0, 3.0)], random.Random(seed))) for seed in range(500)]
    seen = Counter(counts)
    assert np.mean(counts) == pytest.approx(30, abs=4 * np.sqrt(30 / 500))
    assert np.var(counts) == pytest.approx(30, rel=0.25)
    assert sum(seen[value] for value in range(20, 41)) / 500 == pytest.approx(
        poisson.cdf(40, 30) - poisson.cdf(19, 30), abs=0.04
    )
