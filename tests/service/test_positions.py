from __future__ import annotations

import numpy as np
import pytest

from service.positions import Positions


def test_the_first_ones_are_counted_from_0_and_shared() -> None:
    positions = Positions.first(3)
    np.testing.assert_array_equal(positions.values, [0.0, 1.0, 2.0])
    assert Positions.first(3) is positions
    assert (len(positions), positions.smallest, positions.largest) == (3, 0.0, 2.0)


def test_equal_digests_mean_equal_positions() -> None:
    assert Positions.of(np.arange(3.0)).digest == Positions.first(3).digest
    assert Positions.of(np.arange(3.0) + 1e-9).digest != Positions.first(3).digest


def test_the_first_fractional_position_is_found() -> None:
    assert Positions.of(np.array([-1.0, 2.0, 0.5, 0.25])).fractional() == 2
    assert Positions.first(5).fractional() is None


def test_they_are_copied_and_cannot_be_written_to() -> None:
    values = np.arange(3.0)
    positions = Positions.of(values)
    values[0] = 7
    assert positions.values[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        positions.values[0] = 7
