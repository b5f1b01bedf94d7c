"""The share of position, beside least squares with a column for every row and every distance."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Bool, Float64

from service.positions import Positions
from service.probes.distances import Distances
from service.probes.records import NotApplicable
from service.probes.share import DENSE, Share, Shares

Matrix = Float64[np.ndarray, "batch heads queries keys"]
Cells = Bool[np.ndarray, "#batch #heads queries keys"]
Places = Float64[np.ndarray, " tokens"]


def fitted(scores: Matrix, visible: Cells | None, m: Places, n: Places, cuts: tuple[int, ...] = ()) -> Shares:
    share = Share(Distances.of(Positions.of(m), Positions.of(n)), scores.shape[0], scores.shape[1], len(m))
    edges = [0, *cuts, len(m)]
    for start, stop in pairwise(edges):
        seen = None if visible is None else visible[:, :, start:stop]
        share.add(start, scores[:, :, start:stop].astype(np.float32), seen)
    return share.fit()


def least_squares(scores: np.ndarray, visible: np.ndarray, m: Places, n: Places) -> float:
    """One head's, from the definition."""
    r = m[:, None] - n
    visible = visible & (r != 0)
    y = scores.astype(np.float32).astype(np.float64)[visible]
    rows = np.nonzero(visible)[0]
    at = np.unique(r[visible], return_inverse=True)[1]
    row_columns, distance_columns = np.eye(len(m))[rows], np.eye(at.max() + 1)[at]

    def rss(columns: np.ndarray) -> float:
        return float(((y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]) ** 2).sum())

    return 1 - rss(np.hstack([row_columns, distance_columns])) / rss(row_columns)


def causal(m: Places) -> Cells:
    return (m[:, None] >= m)[None, None]


@given(
    seed=st.integers(0, 2**32 - 1),
    queries=st.integers(3, 9),
    keys=st.integers(3, 9),
    spacing=st.sampled_from(["even", "offset", "gaps", "descending", "twice"]),
    masking=st.sampled_from(["none", "causal", "window", "padding", "random", "random by head"]),
    strength=st.sampled_from([0.0, 0.1, 3.0]),
)
@settings(max_examples=150, deadline=None)
def test_the_share_is_that_of_least_squares(
    seed: int, queries: int, keys: int, spacing: str, masking: str, strength: float
) -> None:
    rng = np.random.default_rng(seed)
    m, n = np.arange(queries, dtype=np.float64), np.arange(keys, dtype=np.float64)
    match spacing:
        case "offset":
            m = m + 2.5
        case "gaps":
            m, n = (np.cumsum(rng.integers(1, 4, len(x))).astype(np.float64) for x in (m, n))
        case "descending":
            m, n = m[::-1].copy(), n[::-1].copy()
        case "twice":
            n = n // 2
    r = m[:, None] - n
    visible: Cells | None = None
    match masking:
        case "causal":
            visible = (r >= 0)[None, None]
        case "window":
            visible = (abs(r) <= 2)[None, None]
        case "padding":
            visible = np.broadcast_to(np.arange(keys) < keys - 1, (1, 1, queries, keys))
        case "random":
            visible = rng.random((1, 1, queries, keys)) < 0.7
        case "random by head":
            visible = rng.random((2, 3, queries, keys)) < 0.7
    scores = rng.standard_normal((2, 3, queries, keys)) - strength * abs(r) + rng.standard_normal((2, 3, queries, 1))
    got = fitted(scores, visible, m, n, cuts=(int(rng.integers(1, queries)),))
    seen = np.broadcast_to(np.ones((1, 1, 1, 1), bool) if visible is None else visible, scores.shape)
    for b, h in np.ndindex(2, 3):
        # Where rows see one key each, least squares leaves rounding alone, and there is nothing to explain.
        if ((seen[b, h] & (r != 0)).sum(-1) > 1).any():
            assert got.share[b, h] == pytest.approx(least_squares(scores[b, h], seen[b, h], m, n), abs=1e-6)


@pytest.mark.parametrize("tokens", [3, 16, 257])
@pytest.mark.parametrize("masked", [True, False])
def test_pure_alibi_is_all_position_whatever_its_rows_are_raised_by(tokens: int, masked: bool) -> None:
    m = np.arange(tokens, dtype=np.float64)
    rows = np.random.default_rng(0).standard_normal((1, 1, tokens, 1))
    for scores in (-0.25 * abs(m[:, None] - m)[None, None], -0.25 * abs(m[:, None] - m) + rows):
        assert fitted(scores, causal(m) if masked else None, m, m).share[0, 0] == pytest.approx(1, abs=1e-6)


def test_centring_rows_first_would_not_do() -> None:
    """What the joint fit is for: the naive share of pure causal ALiBi is 0.75."""
    m = np.arange(64, dtype=np.float64)
    r = m[:, None] - m
    seen = r >= 0
    centred = np.where(seen, -r - (np.where(seen, -r, 0).sum(-1) / seen.sum(-1))[:, None], 0)
    rest = centred.copy()
    for d in range(64):
        rest[seen & (r == d)] -= centred[seen & (r == d)].mean()
    naive = 1 - (rest[seen] ** 2).sum() / (centred[seen] ** 2).sum()
    assert naive == pytest.approx(0.75, abs=0.02)
    assert fitted(-r[None, None], causal(m), m, m).share[0, 0] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("masked", [True, False])
def test_noise_has_the_chance_level(masked: bool) -> None:
    m = np.arange(64, dtype=np.float64)
    scores = np.random.default_rng(1).standard_normal((8, 8, 64, 64))
    found = fitted(scores, causal(m) if masked else None, m, m)
    assert found.share.mean() == pytest.approx(found.chance.mean(), rel=0.05)
    assert found.chance[0, 0] == pytest.approx(2 / 64, rel=0.05)


def test_a_tokens_likeness_to_itself_is_no_position() -> None:
    m = np.arange(128, dtype=np.float64)
    scores = np.random.default_rng(2).standard_normal((1, 1, 128, 128)) + 8 * np.eye(128)
    assert fitted(scores, None, m, m).share[0, 0] < 0.05


def test_scores_that_do_not_vary_have_no_share() -> None:
    m = np.arange(5, dtype=np.float64)
    scores = np.stack([np.ones((5, 5)), -abs(m[:, None] - m)])[None]
    found = fitted(scores, None, m, m)
    assert np.isnan(found.share[0, 0])
    assert found.share[0, 1] == pytest.approx(1)
    assert found.reason is not None


@pytest.mark.parametrize("tokens", [1, 2])
def test_too_few_tokens_have_no_share(tokens: int) -> None:
    m = np.arange(tokens, dtype=np.float64)
    found = fitted(np.ones((1, 1, tokens, tokens)), causal(m), m, m)
    assert np.isnan(found.share).all()
    assert np.isnan(found.chance).all()


def test_scores_that_are_no_numbers_have_no_share() -> None:
    m = np.arange(3, dtype=np.float64)
    scores = np.zeros((1, 1, 3, 3))
    scores[0, 0, 2, 0] = np.inf
    with pytest.raises(NotApplicable, match="NaN or infinity"):
        fitted(scores, None, m, m)
    scores[0, 0, 2, 0], scores[0, 0, 0, 2] = 1, np.nan  # which nothing sees
    assert np.isfinite(fitted(scores, causal(m), m, m).share).all()


def test_a_mask_with_gaps_is_fitted_up_to_a_limit() -> None:
    m = np.arange(64, dtype=np.float64)
    heads = DENSE // (64 * 126)
    visible = np.ones((1, heads + 1, 64, 64), bool)
    visible[..., 5] = False
    share = Share(Distances.of(Positions.of(m), Positions.of(m)), 1, heads + 1, 64)
    with pytest.raises(NotApplicable, match="gaps"):
        share.add(0, np.zeros((1, heads + 1, 1, 64), np.float32), visible[:, :, :1])
    share = Share(Distances.of(Positions.of(m), Positions.of(m)), 1, heads, 64)
    share.add(0, np.zeros((1, heads, 1, 64), np.float32), visible[:, 1:, :1])
