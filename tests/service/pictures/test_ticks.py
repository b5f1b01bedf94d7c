from __future__ import annotations

import numpy as np
import pytest

from service.pictures.ticks import between, decades, digits, places, step


@pytest.mark.parametrize(("least", "expected"), [(0.2, 1), (1, 1), (1.01, 2), (3, 5), (7, 10), (10, 10), (11, 20)])
def test_steps_are_one_two_five(least: float, expected: int) -> None:
    assert step(least) == expected


def test_consecutive_positions_get_round_numbers() -> None:
    assert places(range(3, 24), 10) == [7, 17]
    assert places(range(5), 1) == [0, 1, 2, 3, 4]


def test_other_positions_get_every_so_manieth() -> None:
    assert places([0.5, 1.5, 2.5], 2) == [0, 2]
    assert places([0, 10, 20, 30, 40], 2) == [0, 2, 4]
    assert places([101, 102], 10) == [0]


def test_round_numbers_lie_strictly_between_the_bounds() -> None:
    assert between(0, 1) == pytest.approx([0.5])
    assert between(-3.2, 3.2) == [-2, 0, 2]
    for low, high in ((0.0, 1e-7), (1e6, 1e6 + 3), (-1.672, 4.0)):
        found = between(low, high)
        assert 1 <= len(found) <= 5
        assert all(low < number < high for number in found)


def test_decades_are_thinned_out() -> None:
    assert decades(0.001, 1) == pytest.approx([0.001, 0.01, 0.1, 1])
    many = decades(1e-15, 1)
    assert len(many) <= 8
    assert np.allclose(np.diff(np.log10(many)), 2)


def test_digits_say_what_can_be_told_apart() -> None:
    assert digits(-15.75, 15.75) == "-15.75"
    assert digits(1e-9, 1.0) == "0"
    assert digits(16_000, 1.0) == "16,000"
    assert digits(1e-5, 1e-5) == "1e-05"
