"""Pairs by distance, beside a look at every pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.positions import Positions
from service.probes.curve import Curve
from service.probes.distances import Distances, Groups
from service.probes.records import NotApplicable


@given(
    seed=st.integers(0, 2**32 - 1),
    queries=st.integers(1, 9),
    keys=st.integers(1, 9),
    spacing=st.sampled_from(["even", "half steps", "gaps", "descending", "twice", "apart"]),
)
def test_every_pair_has_the_index_of_its_distance(seed: int, queries: int, keys: int, spacing: str) -> None:
    rng = np.random.default_rng(seed)
    m, n = np.arange(queries, dtype=np.float64), np.arange(keys, dtype=np.float64)
    match spacing:
        case "half steps":
            m, n = m / 2, n / 2
        case "gaps":
            m, n = (np.cumsum(rng.integers(1, 3, len(x))).astype(np.float64) for x in (m, n))
        case "descending":
            m, n = m[::-1].copy(), n[::-1].copy()
        case "twice":
            m, n = m // 2, n // 2
        case "apart":
            m = m + 100.25
    distances = Distances.of(Positions.of(m), Positions.of(n))
    assert (np.diff(distances.values) > 0).all()
    assert set(np.unique(m[:, None] - n)) == set(distances.values)
    start = int(rng.integers(0, queries))
    assert (distances.values[distances.indices(start, queries)] == m[start:, None] - n).all()


def test_positions_without_any_order_in_them_are_refused() -> None:
    positions = Positions.of(np.random.default_rng(0).random(50))
    with pytest.raises(NotApplicable, match="irregular"):
        Distances.of(positions, positions)


def test_evenly_spaced_positions_in_fractions_have_as_many_distances_as_there_are_steps() -> None:
    positions = Positions.of(np.arange(100) * 0.1)  # whose differences differ in their last bits
    assert len(Distances.of(positions, positions)) == 199


@given(seed=st.integers(0, 2**32 - 1), visible=st.booleans())
def test_groups_reduce_what_is_chosen(seed: int, visible: bool) -> None:
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, 5, (4, 6))
    chosen = rng.random((4, 6)) < 0.5 if visible else None
    values = rng.standard_normal((3, 4, 6)).astype(np.float32)
    groups = Groups.of(indices, chosen)
    seen = np.ones((4, 6), bool) if chosen is None else chosen
    assert list(groups.ids) == sorted(set(indices[seen]))
    for reduced, of in ((groups.reduce(np.add, values), np.sum), (groups.reduce(np.maximum, values), np.max)):
        for i, id in enumerate(groups.ids):
            members = values[:, seen & (indices == id)].astype(np.float64)
            assert reduced[:, i] == pytest.approx(of(members, axis=-1))
            assert groups.counts[i] == members.shape[1]


@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(1, 6), visible=st.booleans())
def test_a_curve_is_the_mean_and_the_spread_at_each_distance(seed: int, cut: int, visible: bool) -> None:
    rng = np.random.default_rng(seed)
    positions = Positions.first(7)
    scores = rng.standard_normal((2, 7, 7)).astype(np.float32)
    seen = np.tri(7, dtype=bool) if visible else None
    curve = Curve(Distances.of(positions, positions), 2)
    for start, stop in ((0, cut), (cut, 7)):
        curve.add(start, scores[:, start:stop], None if seen is None else seen[start:stop])
    r = positions.values[:, None] - positions.values
    values = curve.distances.values[curve.seen]
    assert list(values) == list(range(0 if visible else -6, 7))
    for i, d in enumerate(values):
        at = scores[:, r == d].astype(np.float64)
        assert curve.mean[:, i] == pytest.approx(at.mean(-1))
        assert curve.spread[:, i] == pytest.approx(np.ptp(at, axis=-1))
        assert curve.pairs[curve.seen][i] == at.shape[1]
    assert curve.at_zero() == pytest.approx(np.diagonal(scores, axis1=1, axis2=2).astype(np.float64).mean(-1))
