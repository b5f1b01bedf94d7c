from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs import make_colours
from service.pictures.colours import CENTRE, MASKED, NAN, SIGNED, VIRIDIS, WHITE, Scale, bounds, hatched

FINITE = st.floats(-1e6, 1e6)


def test_the_tables_are_what_their_script_writes() -> None:
    assert np.array_equal(VIRIDIS, make_colours.viridis())
    assert np.array_equal(SIGNED, make_colours.signed())
    assert make_colours.PAGE.read_text() == make_colours.module()


def test_zero_is_white_on_a_signed_scale_and_nothing_else_is() -> None:
    scale = Scale.of([np.array([-1.0, 2.0])])
    assert scale.colour(0.0) == WHITE
    assert [tuple(colour) for colour in SIGNED].count(WHITE) == 1


def test_both_signs_get_darker_alike() -> None:
    brightness = SIGNED.astype(float).sum(1)
    assert (np.diff(brightness[1 : CENTRE + 1]) > 0).all()
    assert (np.diff(brightness[CENTRE:]) < 0).all()


def test_blue_is_below_zero_and_orange_above() -> None:
    scale = Scale.of([np.array([-3.0, 3.0])])
    red, _, blue = scale.colour(-2.0)
    assert blue > red
    red, _, blue = scale.colour(2.0)
    assert red > blue


@pytest.mark.parametrize(
    ("numbers", "from_zero", "kind", "low", "high"),
    [
        ([-1.0, 4.0], False, "signed", -4.0, 4.0),
        ([-8.0, 0.0], False, "sequential", -8.0, 0.0),
        ([3.0, 4.0], False, "sequential", 3.0, 4.0),
        ([0.1, 0.4], True, "sequential", 0.0, 0.4),
        ([5.0, 5.0], False, "sequential", 0.0, 5.0),
        ([-5.0, -5.0], False, "sequential", -5.0, 0.0),
        ([0.0, 0.0], False, "sequential", 0.0, 1.0),
        ([], False, "sequential", 0.0, 1.0),
        ([-1e-9, 5.0], False, "sequential", -1e-9, 5.0),
        ([np.nan, np.inf, 1.0, 2.0], False, "sequential", 1.0, 2.0),
    ],
)
def test_a_scale_spans_its_finite_numbers(
    numbers: list[float], from_zero: bool, kind: str, low: float, high: float
) -> None:
    scale = Scale.of([np.array(numbers)], from_zero=from_zero)
    assert (scale.kind, scale.low, scale.high) == (kind, low, high)


def test_bounds_are_those_of_all_arrays() -> None:
    assert bounds([np.array([1.0, np.nan]), np.array([-2.0]), np.array([])]) == (-2.0, 1.0)


@given(st.lists(FINITE, min_size=1, max_size=20))
def test_the_colour_of_a_number_stands_at_its_place_in_the_legend(numbers: list[float]) -> None:
    scale = Scale.of([np.array(numbers)])
    for number in numbers:
        place = min(scale.place(number), 255.5)
        # A number on the border of two colours may be rounded to either side of it.
        assert abs(int(scale.entries(np.array(number))) - place) <= 1.001


@given(st.lists(FINITE, min_size=2, max_size=20))
def test_a_larger_number_is_never_further_back_in_the_table(numbers: list[float]) -> None:
    numbers.sort()
    entries = Scale.of([np.array(numbers)]).entries(np.array(numbers)).astype(int)
    assert (np.diff(entries) >= 0).all()


def test_masked_and_broken_cells_look_like_no_number() -> None:
    for table in (VIRIDIS, SIGNED):
        for colour in (MASKED, NAN):
            assert np.abs(table.astype(int) - colour).sum(1).min() > 24


def test_a_hatch_covers_a_sixth_whatever_its_period() -> None:
    for period in (1, 2, 3):
        assert hatched(36, 36, period).mean() == pytest.approx(1 / 6, abs=0.02)
