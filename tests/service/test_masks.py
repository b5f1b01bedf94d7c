from __future__ import annotations

import numpy as np
import pytest

from service.errors import InvalidInput
from service.masks import Sight, SightMasks, Window, combine, mask_axes, read_mask
from service.positions import Positions

CAUSAL = Sight(causal=True)


def full(mask: np.ndarray, batch: int | None, heads: int, queries: int, keys: int) -> np.ndarray:
    return np.broadcast_to(read_mask(mask, batch, heads, queries, keys), (batch or 1, heads, queries, keys))


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape) < 0.5


def test_one_axis_is_keys() -> None:
    mask = random(5)
    np.testing.assert_array_equal(full(mask, 2, 3, 4, 5)[1, 2, 3], mask)


def test_two_axes_without_a_batch_are_queries_and_keys() -> None:
    mask = random(4, 5)
    np.testing.assert_array_equal(full(mask, None, 3, 4, 5)[0, 2], mask)


def test_two_axes_with_a_batch_are_batch_and_keys() -> None:
    mask = random(2, 5)
    np.testing.assert_array_equal(full(mask, 2, 3, 4, 5)[:, 1, 2], mask)


def test_two_axes_with_a_batch_of_another_size_are_queries_and_keys() -> None:
    mask = random(4, 5)
    np.testing.assert_array_equal(full(mask, 2, 3, 4, 5)[1, 2], mask)


def test_a_batch_as_large_as_the_queries_is_taken_for_padding_unless_the_mask_has_three_axes() -> None:
    mask = random(4, 5)
    np.testing.assert_array_equal(full(mask, 4, 3, 4, 5)[:, 1, 2], mask)
    np.testing.assert_array_equal(full(mask[None], 4, 3, 4, 5)[3, 2], mask)


def test_three_axes_are_batch_queries_and_keys_and_four_have_heads() -> None:
    mask = random(2, 4, 5)
    np.testing.assert_array_equal(full(mask, 2, 3, 4, 5)[:, 1], mask)
    mask = random(2, 3, 4, 5)
    np.testing.assert_array_equal(full(mask, 2, 3, 4, 5), mask)
    mask = random(2, 1, 1, 5)
    np.testing.assert_array_equal(full(mask, 2, 3, 4, 5)[:, 2, 1], mask[:, 0, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_ones_and_zeros_of_any_type_are_a_mask(dtype: type) -> None:
    mask = random(4, 5)
    read = read_mask(mask.astype(dtype), None, 1, 4, 5)
    assert read.dtype == np.bool_
    np.testing.assert_array_equal(read[0, 0], mask)


@pytest.mark.parametrize("shape", [(), (4,), (5, 4), (3, 5), (3, 4, 5), (2, 4, 4), (2, 2, 4, 5), (2, 3, 4, 5, 1)])
def test_another_shape_is_refused_naming_those_that_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"the mask has shape \[.*\]; allowed: \[keys\] = \[5\], ") as caught:
        read_mask(np.ones(shape, bool), 2, 3, 4, 5)
    assert str(list(shape)) in caught.value.detail
    assert "[batch, heads, queries, keys] = [2, 3, 4, 5]" in caught.value.detail
    assert caught.value.pointer == "/mask"


@pytest.mark.parametrize("value", [-1e9, 0.5, 2, np.nan])
def test_biases_are_no_mask(value: float) -> None:
    mask = np.ones((4, 5), np.float32)
    mask[2, 3] = value
    with pytest.raises(InvalidInput, match=r"mask\[2, 3\] is .*true or 1 where a key may be seen") as caught:
        read_mask(mask, None, 1, 4, 5)
    assert caught.value.pointer == "/mask/2/3"


def test_causal_follows_positions_not_indices() -> None:
    queries, keys = np.array([5.0, 0.0, 2.5]), np.array([0.0, 3.0, 2.5, 9.0])
    visible = SightMasks().get(CAUSAL, Positions.of(queries), Positions.of(keys))
    assert visible is not None
    expected = [[keys[n] <= queries[m] for n in range(4)] for m in range(3)]
    np.testing.assert_array_equal(visible, [[expected]])


def test_equal_positions_share_their_mask() -> None:
    masks = SightMasks()
    first = masks.get(CAUSAL, Positions.first(4), Positions.first(4))
    assert first is not None
    assert masks.get(CAUSAL, Positions.of(np.arange(4.0)), Positions.first(4)) is first
    with pytest.raises(ValueError, match="read-only"):
        first[...] = True


def test_where_every_key_is_visible_there_is_no_mask() -> None:
    last = Positions.of(np.array([3.0]))
    assert SightMasks().get(CAUSAL, last, Positions.first(4)) is None
    assert combine(np.ones((1, 1, 1, 4), bool), None, 4, 4) is None
    assert combine(None, None, 4, 4) is None


def test_a_window_hides_keys_by_distance_on_each_side() -> None:
    queries, keys = np.array([0.0, 4.0, 7.5]), np.arange(10.0)
    for causal in (True, False):
        visible = Sight(causal, Window(before=2, after=1)).mask(queries, keys)
        assert visible is not None
        for m, n in np.ndindex(3, 10):
            r = queries[m] - keys[n]
            assert visible[0, 0, m, n] == (-1 <= r <= 2 and (r >= 0 or not causal))


def test_within_its_window_a_layer_needs_no_mask() -> None:
    positions = Positions.first(4)
    assert SightMasks().get(Sight(False, Window(before=3, after=3)), positions, positions) is None
    assert SightMasks().get(Sight(False), positions, positions) is None
    assert SightMasks().get(Sight(False, Window(before=2, after=3)), positions, positions) is not None


def test_mask_and_causal_combine_as_booleans() -> None:
    causal = SightMasks().get(CAUSAL, Positions.first(4), Positions.first(4))
    mask = random(2, 1, 1, 4)
    combined = combine(mask, causal, 4, 4)
    assert combined is not None
    assert combined.shape == (2, 1, 4, 4)
    for b, m, n in np.ndindex(2, 4, 4):
        assert combined[b, 0, m, n] == (mask[b, 0, 0, n] and n <= m)


def test_a_mask_alone_is_given_all_its_rows() -> None:
    mask = np.array([True, False, True]).reshape(1, 1, 1, 3)
    combined = combine(mask, None, 4, 3)
    assert combined is not None
    assert combined.shape == (1, 1, 4, 3)
    assert combined.flags.c_contiguous


@pytest.mark.parametrize(
    ("shape", "batch", "axes"),
    [
        ((4,), None, ("keys",)),
        ((3, 4), None, ("queries", "keys")),
        ((3, 4), 3, ("batch", "keys")),
        ((1, 3, 4), 3, ("batch", "queries", "keys")),
        ((3, 2, 1, 4), 3, ("batch", "heads", "queries", "keys")),
        ((5, 4), 3, None),
    ],
)
def test_the_axes_of_a_mask_follow_from_its_shape(
    shape: tuple[int, ...], batch: int | None, axes: tuple[str, ...] | None
) -> None:
    assert mask_axes(shape, batch, heads=2, queries=3, keys=4) == axes
