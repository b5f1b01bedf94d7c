"""Comparisons of two matrices, on the exported graph: beside loops and SciPy, and where the answer is known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import Bool, Float, Int64
from scipy.spatial.distance import jensenshannon
from scipy.stats import wasserstein_distance

from service.comparisons.comparison import Comparison, compare
from service.comparisons.metrics import DEFAULT, NAMES, outputs_for
from service.engine.session import Sessions
from service.summaries.layout import Layout
from service.summaries.profile import Profile
from service.summaries.rows import concatenate
from tests.service.comparisons.comparer import Comparer
from tests.service.summaries.summariser import Summariser

ANALYSIS = Path(__file__).parents[3] / "exported" / "analysis"

Matrix = Float[np.ndarray, "batch heads queries keys"]


@pytest.fixture(scope="module")
def sessions() -> Sessions:
    return Sessions("cpu")


@pytest.fixture(scope="module")
def comparer(sessions: Sessions) -> Comparer:
    return Comparer(sessions, ANALYSIS)


@pytest.fixture(scope="module")
def summariser(sessions: Sessions) -> Summariser:
    return Summariser(sessions, ANALYSIS)


def causal(size: int) -> Bool[np.ndarray, "1 1 size size"]:
    return np.tril(np.ones((1, 1, size, size), bool))


def scores_of(seed: int, *shape: int) -> Matrix:
    return 2 * np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def softmax(scores: Matrix, visible: Bool[np.ndarray, "..."] | bool = True) -> Matrix:
    exps = np.where(visible, np.exp(scores.astype(np.float64)), 0)
    return np.asarray(exps / np.maximum(exps.sum(-1, keepdims=True), 1e-300), np.float32)


def two(*shape: int) -> tuple[Matrix, Matrix]:
    return softmax(scores_of(1, *shape)), softmax(scores_of(2, *shape))


def value(comparison: Comparison, name: str) -> float:
    return float(comparison.metrics[name].mean[0, 0])


def ranked(row: Float[np.ndarray, " keys"], seen: Int64[np.ndarray, " seen"]) -> list[int]:
    """Visible keys, the largest weight first, the first of equals first."""
    return sorted((int(j) for j in seen), key=lambda j: (-row[j], j))


@pytest.mark.parametrize("seed", range(30))
def test_a_comparison_is_what_scipy_and_loops_give(comparer: Comparer, seed: int) -> None:
    random = np.random.default_rng(seed)
    heads, size = int(random.integers(1, 4)), int(random.integers(2, 40))
    visible = causal(size) if seed % 2 else np.ones((1, 1, size, size), bool)
    visible = visible & (random.random(visible.shape) < random.choice([0.5, 1.0]))
    scores = scores_of(seed, 1, heads, size, size), scores_of(seed + 1000, 1, heads, size, size)
    a, b = softmax(scores[0], visible), softmax(scores[1], visible)
    if seed % 3 == 0:
        b[0, 0, -1] = np.nan
    top = int(random.integers(1, 6))
    found = comparer.compare(
        a, b, Layout.first(size), visible=visible, scores=scores, metrics=NAMES, top=top, block_cells=3 * heads * size
    )
    for h in range(heads):
        expected: dict[str, list[float]] = {name: [] for name in NAMES}
        squares = [0.0, 0.0]
        for i in range(size):
            seen = np.flatnonzero(visible[0, 0, i])
            x, y = a[0, h, i].astype(np.float64), b[0, h, i].astype(np.float64)
            if len(seen) < 2 or not np.isfinite(y).all():
                continue
            where = np.arange(size)
            expected["jsd"].append(jensenshannon(x, y, base=2) ** 2)
            expected["w1"].append(wasserstein_distance(where, where, x, y))
            expected["tv"].append(abs(x - y).sum() / 2)
            expected["kl"].append(sum(p * math.log2(p / q) for p, q in zip(x, y, strict=True) if p > 0))
            first, second = ranked(x, seen), ranked(y, seen)
            expected["argmax_agree"].append(first[0] == second[0])
            expected["topk_overlap"].append(len({*first[:top]} & {*second[:top]}) / min(top, len(seen)))
            s, t = (one[0, h, i, seen] - one[0, h, i, seen].mean(dtype=np.float64) for one in scores)
            expected["logit_rmse"].append(math.sqrt(((s - t) ** 2).mean()))
            expected["logit_r"].append(np.corrcoef(s, t)[0, 1])
            squares = [squares[0] + ((x - y) ** 2).sum(), squares[1] + (x * x).sum()]
        count = len(expected["jsd"])
        for name, metric in found.metrics.items():
            assert metric.rows[0, h] == count, name
            if not count:
                assert metric.reason, name
            elif name == "frobenius_rel":
                assert metric.mean[0, h] == pytest.approx(math.sqrt(squares[0] / squares[1]), rel=1e-5)
            else:
                assert metric.mean[0, h] == pytest.approx(np.mean(expected[name]), rel=1e-5, abs=1e-5), name
                assert metric.p50 is not None
                assert metric.p50[0, h] == pytest.approx(np.median(expected[name]), rel=1e-5, abs=1e-5), name


def test_forced_rows_stay_out(comparer: Comparer) -> None:
    """Row 0 of a causal mask agrees whatever the matrices are."""
    size = 3
    a = np.eye(size, dtype=np.float32)[None, None]
    b = np.zeros_like(a)
    b[..., 0] = 1
    found = comparer.compare(a, b, Layout.first(size), visible=causal(size))
    assert found.rows_counted.tolist() == [[3]]
    assert found.rows_forced.tolist() == [[1]]
    for name in ("jsd", "tv"):
        assert value(found, name) == pytest.approx(1, abs=1e-6)
    assert value(found, "argmax_agree") == 0
    assert value(found, "w1") == pytest.approx(1.5)


def test_a_row_must_count_in_both(comparer: Comparer) -> None:
    a, b = two(1, 1, 5, 5)
    a[0, 0, 1] *= 0.9
    b[0, 0, 3, 2] = np.inf
    found = comparer.compare(a, b, Layout.first(5))
    assert found.rows_counted.tolist() == [[3]]
    assert found.rows_invalid.tolist() == [[2]]
    assert found.metrics["jsd"].rows.tolist() == [[3]]
    padding = np.array([[False, True, False, False, True]])
    padded = comparer.compare(a, b, Layout.first(5), padding=padding)
    assert padded.rows_counted.tolist() == [[2]]
    assert padded.rows_invalid.tolist() == [[1]]


def test_a_half_precision_copy_is_called_identical_and_a_difference_is_not(comparer: Comparer) -> None:
    scores = scores_of(3, 1, 2, 64, 64)
    weights = softmax(scores)
    layout = Layout.first(64)
    copied = comparer.compare(weights, weights.astype(np.float16), layout)
    assert copied.identical is not None
    assert copied.identical.all()
    assert copied.floor["jsd"] == 1e-4
    again = comparer.compare(weights, softmax(scores * (1 + 1e-6)), layout)
    assert again.identical is not None
    assert again.identical.all()
    assert again.floor["jsd"] == 1e-6
    moved = weights.copy()
    moved[0, 1] = softmax(scores[:, 1:] * 1.01)[0, 0]
    found = comparer.compare(weights, moved, layout)
    assert found.identical is not None
    assert found.identical.tolist() == [[True, False]]
    only = comparer.compare(weights, moved, layout, metrics=("w1",))
    assert only.identical is None


def test_equal_matrices_have_the_ends_of_every_scale(comparer: Comparer) -> None:
    scores = scores_of(4, 1, 1, 20, 20)
    weights = softmax(scores)
    found = comparer.compare(weights, weights, Layout.first(20), scores=(scores, scores), metrics=NAMES)
    for name in ("jsd", "tv", "w1", "kl", "frobenius_rel", "logit_rmse"):
        assert value(found, name) == 0, name
    for name in ("argmax_agree", "topk_overlap"):
        assert value(found, name) == 1, name
    assert value(found, "logit_r") == pytest.approx(1)


def test_a_constant_for_each_row_of_scores_is_no_difference(comparer: Comparer) -> None:
    scores = scores_of(5, 1, 1, 20, 20)
    shifted = scores + 10 * np.arange(20, dtype=np.float32)[:, None]
    found = comparer.compare(
        softmax(scores), softmax(shifted), Layout.first(20), scores=(scores, shifted), metrics=NAMES
    )
    assert value(found, "logit_rmse") < 1e-4
    assert value(found, "logit_r") == pytest.approx(1, abs=1e-6)


def test_scores_that_do_not_vary_have_no_correlation(comparer: Comparer) -> None:
    scores, same = scores_of(6, 1, 1, 8, 8), np.full((1, 1, 8, 8), 3.3, np.float32)
    found = comparer.compare(softmax(scores), softmax(same), Layout.first(8), scores=(scores, same), metrics=NAMES)
    assert math.isnan(value(found, "logit_r"))
    assert "vary" in str(found.metrics["logit_r"].reason)
    assert math.isfinite(value(found, "logit_rmse"))


def test_kl_that_is_infinite_is_null_with_a_reason(comparer: Comparer) -> None:
    a = np.full((1, 1, 2, 2), 0.5, np.float32)
    b = np.array([[[[1, 0], [0.5, 0.5]]]], np.float32)
    answer = comparer.compare(a, b, Layout.first(2), metrics=("kl", "jsd")).json()
    assert answer["kl"]["mean"] == [[None]]
    assert "infinite" in answer["kl"]["reason"]
    json.dumps(answer, allow_nan=False)


def test_one_query_of_one_key_compares_to_nothing(comparer: Comparer) -> None:
    one = np.ones((1, 1, 1, 1), np.float32)
    answer = comparer.compare(one, one, Layout.first(1), scores=(one, one), metrics=NAMES).json()
    for name, metric in answer.items():
        if isinstance(metric, dict) and "mean" in metric:
            assert metric["mean"] == [[None]], name
            assert metric["reason"], name
    assert answer["identical"] == [[None]]
    json.dumps(answer, allow_nan=False)


def test_profiles_differ_by_the_share_of_mass_at_another_distance(comparer: Comparer, summariser: Summariser) -> None:
    size = 9
    one_back, two_back = (np.eye(size, k=-k, dtype=np.float32)[None, None] for k in (1, 2))
    one_back[..., 0, 0] = two_back[..., :2, 0] = 1
    layout, visible = Layout.first(size), causal(size)
    profiles = [
        summariser.summarise(one, layout, visible=visible, metrics=("distance_profile",)).profile
        for one in (one_back, two_back)
    ]
    first, second = (profile for profile in profiles if isinstance(profile, Profile))
    found = comparer.compare(one_back, two_back, layout, visible=visible, metrics=NAMES, profiles=(first, second))
    assert value(found, "profile_tv") == pytest.approx((size - 2) / (size - 1)), "row 1 agrees, row 0 is forced"
    assert "profile_tv" not in comparer.compare(one_back, two_back, layout, visible=visible, metrics=NAMES).metrics


def test_sinks_of_either_side_are_taken_out(comparer: Comparer) -> None:
    weights = softmax(scores_of(7, 1, 2, 12, 12))
    layout = Layout.first(12)
    found = comparer.compare(weights, 0.3 * weights, layout, sinks=(False, True))
    assert found.rows_counted.tolist() == [[12, 12]]
    assert found.metrics["tv"].mean == pytest.approx(0, abs=1e-6)
    assert comparer.compare(weights, 0.3 * weights, layout).rows_invalid.tolist() == [[12, 12]]


def test_keys_out_of_order_have_no_distance_to_move_mass_by(comparer: Comparer) -> None:
    layout = Layout(np.array([2.0, 1.0, 3.0]), np.array([2.0, 1.0, 3.0]))
    found = comparer.compare(*two(1, 1, 3, 3), layout)
    assert "order" in str(found.metrics["w1"].reason)
    assert math.isfinite(value(found, "jsd"))


def test_shapes_must_be_the_same(comparer: Comparer) -> None:
    a, b = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 2, 3), np.float32)
    with pytest.raises(ValueError, match=r"\[1, 1, 2, 3\] cannot be compared with one of \[1, 1, 2, 2\]"):
        comparer.compare(a, b, Layout.first(2))


def test_only_what_is_asked_for_is_computed(comparer: Comparer) -> None:
    layout = Layout.first(3)
    assert outputs_for(["tv"], layout, scored=False) == ("counted", "tv")
    assert outputs_for(["logit_r"], layout, scored=False) == ("counted",)
    assert "kl" not in outputs_for(DEFAULT, layout, scored=True)
    with pytest.raises(ValueError, match="no metric 'jds'; there are jsd, "):
        outputs_for(["jds"], layout, scored=False)
    without = comparer.compare(*two(1, 1, 3, 3), layout)
    assert set(without.metrics) == set(DEFAULT) - {"logit_rmse"}


def test_matrices_that_are_never_whole_can_be_compared(comparer: Comparer) -> None:
    a, b = two(1, 2, 10, 10)
    layout = Layout.first(10)
    blocks = [comparer.rows(a[:, :, i : i + 4], b[:, :, i : i + 4], layout) for i in range(0, 10, 4)]
    found = compare(concatenate(blocks), layout)
    whole = comparer.compare(a, b, layout)
    for name, metric in whole.metrics.items():
        assert found.metrics[name].mean == pytest.approx(metric.mean, rel=1e-6), name
