from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import selection
from service.errors import InvalidInput
from service.selection import Selection, at, choose, index, largest, pick

bounds = st.none() | st.integers(-15, 15)
slices = st.tuples(bounds, bounds, st.none() | st.integers(-3, 3).filter(bool))


def chosen(text: str, count: int) -> list[int] | None:
    found = Selection.of("rows", text.split(",")).indices(count)
    return None if found is None else found.tolist()


def written(part: int | tuple[int | None, int | None, int | None]) -> str:
    if isinstance(part, int):
        return str(part)
    start, stop, step = ("" if bound is None else str(bound) for bound in part)
    return f"{start}:{stop}" + (f":{step}" if step else "")


@given(st.lists(st.integers(-12, 12) | slices, min_size=1, max_size=4), st.integers(1, 12))
def test_indices_and_slices_are_those_of_python_each_once_in_order(
    parts: list[int | tuple[int | None, int | None, int | None]], count: int
) -> None:
    everything, expected, sound = list(range(count)), dict[int, None](), True
    for part in parts:
        try:
            found = [everything[part]] if isinstance(part, int) else everything[slice(*part)]
        except IndexError:
            found = []
        sound = sound and bool(found)
        expected |= dict.fromkeys(found)
    text = ",".join(map(written, parts))
    if not sound:
        with pytest.raises(InvalidInput, match=f"there (is 1 query|are {count} queries), 0") as caught:
            chosen(text, count)
        assert caught.value.pointer == "query:rows"
    else:
        assert chosen(text, count) == (None if list(expected) == everything else list(expected))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("11", "rows=11 is not there: there are 11 queries, 0 to 10 (or -11 to -1)"),
        ("-12", "rows=-12 is not there: there are 11 queries"),
        ("20:30", "rows=20:30 selects nothing: there are 11 queries, 0 to 10 (or -11 to -1)"),
        ("5:5", "rows=5:5 selects nothing"),
        ("8:2:1", "rows=8:2:1 selects nothing"),
        ("0,20:", "rows=20: selects nothing"),
        ("1::0", "has the step 0"),
        ("a", "rows=a is neither an index nor a slice; as in Python: rows=-1, rows=0:16, rows=3,5"),
        ("1.5", "neither an index nor a slice"),
        ("1:2:3:4", "neither"),
        ("٣", "neither"),
        ("+1", "neither"),
        ("9999999999", "neither"),
        ("--1", "neither"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(text: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        chosen(text, 11)
    assert words in caught.value.detail
    assert caught.value.pointer == "query:rows"


def test_heads_are_called_heads() -> None:
    with pytest.raises(InvalidInput, match="head=3 is not there: there are 2 heads, 0 to 1") as caught:
        choose(None, Selection.of("head", ["3"]), None, queries=5, heads=2, keys=5)
    assert caught.value.pointer == "query:head"


def test_parts_are_bounded() -> None:
    with pytest.raises(InvalidInput, match="has 1025 parts, at most 1024"):
        Selection.of("rows", ["0"] * 1025)


def test_more_keys_than_there_are_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match="top_k=6 asks for more keys than the 5 there are; it may be 1 to 5"
    ) as caught:
        choose(None, None, 6, queries=2, heads=1, keys=5)
    assert caught.value.extra == {"limit": 5}
    assert choose(None, None, 5, queries=2, heads=1, keys=5).top_k == 5


def test_what_follows_is_a_view() -> None:
    assert index(np.array([3, 4, 5])) == slice(3, 6)
    assert index(np.array([3])) == slice(3, 4)
    np.testing.assert_array_equal(index(np.array([5, 4])), [5, 4])


# The largest keys


def oracle(weights: np.ndarray, visible: np.ndarray, k: int) -> np.ndarray:
    """Row by row: sorted by weight, then by index; only what is visible."""
    found = np.full((*weights.shape[:-1], k), -1)
    for row in np.ndindex(weights.shape[:-1]):
        seen = [key for key in range(weights.shape[-1]) if visible[row][key]]
        seen.sort(key=lambda key: (-weights[row][key], key))
        found[row][: len(seen[:k])] = seen[:k]
    return found


@st.composite
def ranked(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Weights of few values, so that many are equal, and masks of any broadcast shape."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.tuples(*(st.integers(1, 3),) * 3, st.integers(1, 24)))
    values = draw(st.sampled_from([[0.0, 0.25, 0.5], [0.0, 1e-45, 1e-38, 0.1], [0.1]]))
    weights = random.choice(np.array(values, np.float32), shape)
    mask = random.random([size if random.random() < 0.5 else 1 for size in shape[:3]] + [shape[3]]) < 0.6
    return weights, mask, draw(st.integers(1, shape[3]))


@given(ranked(), st.sampled_from([0, selection.FEW]))
def test_the_largest_keys_are_those_of_a_sort_ties_to_the_first_and_hidden_ones_left_out(
    drawn: tuple[np.ndarray, np.ndarray, int], few: int
) -> None:
    weights, mask, k = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "FEW", few)
        found = largest(weights, mask, k)
    visible = np.broadcast_to(mask, weights.shape)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, oracle(weights, visible, k))
    np.testing.assert_array_equal(largest(weights, None, k), oracle(weights, np.ones(weights.shape, bool), k))
    picked = at(weights, found)
    for place in np.ndindex(found.shape):
        expected = weights[place[:-1]][found[place]] if found[place] >= 0 else 0
        assert picked[place] == expected


@pytest.mark.parametrize("shape", [(3, 2, 5, 7), (1, 1, 40, 7), (1, 1, 1, 500), (2, 3, 1, 90)])
def test_blocks_have_no_seams(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    weights, mask = random.random(shape, dtype=np.float32), random.random((*shape[:1], 1, *shape[2:])) < 0.7
    whole = largest(weights, mask, 4)
    monkeypatch.setattr(selection, "BLOCK", 64)
    monkeypatch.setattr(selection, "FEW", 32)
    np.testing.assert_array_equal(largest(weights, mask, 4), whole)
    np.testing.assert_array_equal(largest(weights, None, 4), oracle(weights, np.ones(shape, bool), 4))


@pytest.mark.parametrize("keys", [999, 1024, 4097])
@pytest.mark.parametrize("k", [1, 8, 200])
def test_long_rows_are_ranked_by_groups_and_none_of_the_largest_is_lost(keys: int, k: int) -> None:
    random = np.random.default_rng(k)
    rows = np.stack(
        [
            random.random((12, keys), np.float32),
            random.integers(0, 3, (12, keys)).astype(np.float32),  # ties
            np.tile(np.linspace(0, 1, keys, dtype=np.float32), (12, 1)),  # all of the largest in one place
        ]
    )[None]
    mask = random.random((1, 1, 12, keys)) < 0.7
    assert rows.size > selection.FEW
    np.testing.assert_array_equal(largest(rows, mask, k), oracle(rows, np.broadcast_to(mask, rows.shape), k))
    np.testing.assert_array_equal(largest(rows, None, k), oracle(rows, np.ones(rows.shape, bool), k))


def test_a_key_that_is_seen_comes_before_one_that_is_not_whatever_its_weight() -> None:
    weights = np.array([[[[0.0, np.nan, 0.0, -0.0, 0.5]]]], np.float32)
    mask = np.array([[[[True, True, False, True, False]]]])
    assert largest(weights, mask, 5).tolist() == [[[[0, 1, 3, -1, -1]]]]


@pytest.mark.parametrize("view", [lambda w: w[:, :, :4, :6], lambda w: w[..., ::2], lambda w: w.swapaxes(2, 3)])
def test_views_are_ranked_too(view: Callable[[np.ndarray], np.ndarray]) -> None:
    weights = view(np.random.default_rng(0).random((2, 3, 8, 8), dtype=np.float32))
    np.testing.assert_array_equal(largest(weights, None, 3), oracle(weights, np.ones(weights.shape, bool), 3))


def test_heads_are_picked_before_keys_are_ranked_and_outputs_keep_their_shape() -> None:
    random = np.random.default_rng(0)
    outputs = {name: random.random((1, 3, 2, 5), dtype=np.float32) for name in ("weights", "scores")}
    outputs["output"] = random.random((1, 2, 3, 4), dtype=np.float32)
    visible = random.random((1, 3, 2, 5)) < 0.7
    choice = choose(None, Selection.of("head", ["2", "0"]), 2, queries=2, heads=3, keys=5)
    picked, keys = pick(choice, outputs, visible)
    expected = oracle(outputs["weights"][:, [2, 0]], visible[:, [2, 0]], 2)
    assert keys is not None
    np.testing.assert_array_equal(keys, expected)
    np.testing.assert_array_equal(picked["scores"], at(outputs["scores"][:, [2, 0]], keys))
    np.testing.assert_array_equal(picked["output"], outputs["output"][:, :, [2, 0]])
