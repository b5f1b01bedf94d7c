from __future__ import annotations

import numpy as np
import pytest

from service.arrays import DefaultArrays, draw
from service.encoding import Initial


def test_the_stream_is_the_published_one() -> None:
    """The first numbers of seed 12345 as they are printed in many books."""
    values = draw(Initial("normal", mean=0.0, deviation=1.0, seed=12345), (2, 2))
    np.testing.assert_allclose(values, [[-0.20470766, 0.47894334], [-0.51943872, -0.5557303]], rtol=1e-6)
    assert values.dtype == np.float32


def test_xavier_keeps_within_its_bound() -> None:
    values = draw(Initial("xavier_uniform", seed=1), (33, 64))
    bound = np.sqrt(6 / (33 + 64))
    assert 0.98 * bound < np.abs(values).max() <= bound


@pytest.mark.parametrize(("distribution", "value"), [("zeros", 0.0), ("ones", 1.0)])
def test_constants(distribution: str, value: float) -> None:
    np.testing.assert_array_equal(draw(Initial(distribution), (3,)), [value] * 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "initial", [Initial("normal", 0.0, 0.02, seed=7), Initial("uniform", low=-2.0, high=3.0, seed=7)]
)
def test_a_longer_table_begins_with_the_shorter_one(initial: Initial) -> None:
    arrays = DefaultArrays()
    short = arrays.get(initial, (5, 3)).copy()
    long = arrays.get(initial, (9, 3))
    np.testing.assert_array_equal(long[:5], short)
    np.testing.assert_array_equal(arrays.get(initial, (5, 3)), draw(initial, (5, 3)))
    assert long.shape == (9, 3)


def test_xavier_is_drawn_for_each_shape() -> None:
    arrays, initial = DefaultArrays(), Initial("xavier_uniform", seed=3)
    arrays.get(initial, (9, 3))
    np.testing.assert_array_equal(arrays.get(initial, (5, 3)), draw(initial, (5, 3)))


def test_defaults_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        DefaultArrays().get(Initial("zeros"), (2,))[0] = 1
