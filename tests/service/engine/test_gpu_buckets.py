from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.buckets import Ladder

LADDER = Ladder()


def test_the_ladder_is_short() -> None:
    assert LADDER.steps == (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@settings(deadline=None)
@given(st.integers(1, 1024))
def test_the_bucket_is_the_shortest_step_that_holds_the_length(length: int) -> None:
    bucket = LADDER.bucket(length)
    assert bucket is not None
    assert bucket >= length
    assert not [step for step in LADDER.steps if length <= step < bucket]


@pytest.mark.parametrize("step", LADDER.steps)
def test_a_step_is_its_own_bucket(step: int) -> None:
    assert LADDER.bucket(step) == step


@settings(deadline=None)
@given(st.integers(17, 1024), st.integers(17, 1024))
def test_above_the_shortest_step_a_matrix_grows_less_than_2_25_times(queries: int, keys: int) -> None:
    padded = (LADDER.bucket(queries) or 0) * (LADDER.bucket(keys) or 0)
    assert queries * keys <= padded < 2.25 * queries * keys


def test_on_average_a_length_grows_by_a_fifth_and_a_square_matrix_by_two_fifths() -> None:
    lengths = np.unique(np.geomspace(17, 1024, 4000).astype(int))
    weights = 1 / lengths
    growth = np.array([(LADDER.bucket(int(length)) or 0) / length for length in lengths])
    assert np.average(growth, weights=weights) == pytest.approx(1.2, abs=0.03)
    assert np.average(growth**2, weights=weights) == pytest.approx(1.45, abs=0.05)


def test_what_is_too_long_has_no_bucket() -> None:
    assert LADDER.bucket(1025) is None
    assert Ladder(longest=100).steps == (16, 24, 32, 48, 64, 96)


@pytest.mark.parametrize(("shortest", "longest"), [(0, 16), (15, 64), (32, 16)])
def test_a_ladder_that_cannot_be_climbed_is_refused(shortest: int, longest: int) -> None:
    with pytest.raises(ValueError, match=f"from {shortest} to {longest}"):
        Ladder(shortest, longest)
