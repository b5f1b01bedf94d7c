"""Summaries of one matrix, on the exported graph: beside loops, and for matrices whose numbers are known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Bool, Float, Float64

from service.engine.session import Sessions
from service.summaries.layout import Layout
from service.summaries.lists import plain
from service.summaries.metric import Metric
from service.summaries.metrics import DEFAULT, NAMES, Outputs, outputs_for
from service.summaries.summary import Summary
from tests.service.summaries.summariser import Summariser, finish

ANALYSIS = Path(__file__).parents[3] / "exported" / "analysis"

Matrix = Float[np.ndarray, "batch heads queries keys"]


@pytest.fixture(scope="module")
def summariser() -> Summariser:
    return Summariser(Sessions("cpu"), ANALYSIS)


def causal(size: int) -> Bool[np.ndarray, "1 1 size size"]:
    return np.tril(np.ones((1, 1, size, size), bool))


def attention(seed: int, *shape: int, visible: Bool[np.ndarray, "..."] | bool = True, peak: float = 1.0) -> Matrix:
    scores = np.where(visible, peak * np.random.default_rng(seed).normal(size=shape), -np.inf)
    exps = np.where(visible, np.exp(scores), 0)
    return np.asarray(exps / np.maximum(exps.sum(-1, keepdims=True), 1e-300), np.float32)


def uniform(visible: Bool[np.ndarray, "..."]) -> Matrix:
    return np.asarray(visible / np.maximum(visible.sum(-1, keepdims=True), 1), np.float32)


def value(metric: Metric) -> float:
    return float(metric.mean[0, 0])


# Known answers.


def test_uniform_causal_attention_reads_one_where_it_is_divided_by_uniform(summariser: Summariser) -> None:
    size = 64
    visible = causal(size)
    found = summariser.summarise(uniform(visible), Layout.first(size), visible=visible, metrics=NAMES)
    metrics = found.metrics
    assert value(metrics["entropy_norm"]) == pytest.approx(1.000, abs=1e-6)
    assert value(metrics["mean_distance_ratio"]) == pytest.approx(1, abs=1e-6)
    assert value(metrics["mean_distance"]) == pytest.approx(size / 4, rel=1e-6), "(N-1)/4 with the forced row of 0"
    assert value(metrics["effective_keys"]) == pytest.approx((size + 1) / 2, rel=1e-6)
    assert value(metrics["sink_mass_1"]) == pytest.approx(0.059, abs=5e-4)
    harmonic = sum(1 / n for n in range(1, size + 1))
    assert value(metrics["sink_mass_1"]) == pytest.approx((harmonic - 1) / (size - 1), abs=1e-6)
    for name, metric in metrics.items():
        if metric.uniform is not None and metric.reason is None:
            assert metric.uniform == pytest.approx(metric.mean, abs=1e-5), name
    assert found.is_sink is not None
    assert not found.is_sink.any()
    assert found.rows_counted.tolist() == [[size]]
    assert found.rows_forced.tolist() == [[1]]
    assert found.rows_invalid.tolist() == [[0]]


def test_attention_to_the_previous_token_is_told(summariser: Summariser) -> None:
    size = 16
    weights = np.eye(size, k=-1, dtype=np.float32)[None, None]
    weights[..., 0, 0] = 1
    found = summariser.summarise(weights, Layout.first(size), visible=causal(size), metrics=NAMES)
    metrics = found.metrics
    assert value(metrics["previous_token"]) == 1
    assert value(metrics["self_token"]) == 0
    assert value(metrics["entropy"]) == 0
    assert value(metrics["effective_keys"]) == 1
    assert value(metrics["mean_distance"]) == 1
    assert value(metrics["half_mass_distance"]) == 1
    assert value(metrics["local_mass_1"]) == 1
    assert value(metrics["first_token"]) == pytest.approx(1 / (size - 1)), "row 1's previous token is the first"
    assert found.profile is not None
    assert found.profile.weights[0, 0, found.profile.distances == 1] == 1
    assert found.profile.weights.sum() == 1


def test_a_sink_is_told_with_its_baseline(summariser: Summariser) -> None:
    weights = np.zeros((1, 2, 8, 8), np.float32)
    weights[:, 0, :, 0] = 1
    weights[:, 1] = np.eye(8)
    found = summariser.summarise(weights, Layout.first(8), metrics=NAMES)
    assert found.metrics["sink_mass_1"].mean.tolist() == [[1, 0]]
    assert found.metrics["alpha_0"].mean.tolist() == [[1, 1 / 8]]
    assert found.metrics["sink_mass_4"].uniform == pytest.approx(0.5)
    assert found.is_sink is not None
    assert found.is_sink.tolist() == [[True, False]]


# Beside loops.


def loops(
    weights: Float64[np.ndarray, "queries keys"], visible: Bool[np.ndarray, "queries keys"], tokens: list[int]
) -> dict[str, list[float]]:
    """The rows that each metric is the mean of, for self-attention at 0, 1, 2, ..., as section 2.2 writes them."""
    size = len(weights)
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for i in range(size):
        seen = [j for j in range(size) if visible[i, j]]
        row = [float(weights[i, j]) for j in range(size)]
        if not seen or not all(math.isfinite(row[j]) for j in seen) or abs(sum(row[j] for j in seen) - 1) > 1e-5:
            continue
        p, n = [row[j] if j in seen else 0.0 for j in range(size)], len(seen)
        entropy = sum(-x * math.log(x) for x in p if x > 0)
        found["entropy"].append(entropy)
        found["effective_keys"].append(math.exp(entropy))
        found["max_weight"].append(max(p))
        if i >= 1:
            found["previous_token"].append(p[i - 1])
            found["self_token"].append(p[i])
            found["first_token"].append(p[0])
        duplicate = [j for j in seen if tokens[j] == tokens[i] and j < i]
        induction = [j for j in seen if 1 <= j <= i and tokens[j - 1] == tokens[i]]
        found["duplicate_token"] += [sum(p[j] for j in duplicate)] if duplicate else []
        found["induction"] += [sum(p[j] for j in induction)] if induction else []
        if n == 1:
            continue
        found["entropy_norm"].append(entropy / math.log(n))
        found["mean_distance"].append(sum(p[j] * abs(i - j) for j in range(size)))
        within = [sum(p[j] for j in range(size) if abs(i - j) <= w) for w in range(size)]
        found["half_mass_distance"].append(next(w for w in range(size) if within[w] >= 0.5 - 1e-5))
        for w in (1, 4, 16, 64):
            found[f"local_mass_{w}"].append(within[min(w, size - 1)])
        found["alpha_0"].append(p[0])
        for k in (1, 4):
            if i >= k:
                found[f"sink_mass_{k}"].append(sum(p[:k]))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_summary_is_what_loops_over_rows_give(summariser: Summariser, seed: int) -> None:
    random = np.random.default_rng(seed)
    batch, heads, size = (int(random.integers(1, high)) for high in (3, 4, 20))
    visible = np.broadcast_to(causal(size) if seed % 2 else np.ones((1, 1, size, size), bool), (batch, 1, size, size))
    visible = visible & (random.random(visible.shape) < random.choice([0.3, 0.8, 1.0]))
    weights = attention(seed, batch, heads, size, size, visible=visible, peak=3)
    if seed % 3 == 0:
        weights[0, 0, random.integers(size)] = np.nan
        weights[-1, -1, random.integers(size)] *= 0.5
    tokens = random.integers(0, 5, size)
    layout = Layout.first(size).with_tokens(tokens, tokens)
    found = summariser.summarise(weights, layout, visible=visible, metrics=NAMES)
    assert found.profile is not None
    assert (found.rows_counted + found.rows_invalid == size).all()
    for b, h in np.ndindex(batch, heads):
        expected = loops(weights[b, h].astype(np.float64), visible[b, 0], tokens.tolist())
        assert found.rows_counted[b, h] == len(expected["entropy"])
        assert found.rows_forced[b, h] == len(expected["entropy"]) - len(expected["entropy_norm"])
        for name, metric in found.metrics.items():
            if name == "mean_distance_ratio":
                continue
            assert metric.rows[b, h] == len(expected[name]), name
            if not expected[name]:
                assert math.isnan(metric.mean[b, h])
                assert metric.reason, name
                continue
            assert metric.mean[b, h] == pytest.approx(np.mean(expected[name]), rel=1e-5, abs=1e-5), name
            for quantile, got in ((10, metric.p10), (50, metric.p50), (90, metric.p90)):
                assert got is not None
                assert got[b, h] == pytest.approx(np.percentile(expected[name], quantile), rel=1e-5, abs=1e-5), name
        total = found.profile.weights[b, h].sum()
        assert total == pytest.approx(1, abs=1e-5) if expected["mean_distance"] else math.isnan(total)


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
@pytest.mark.parametrize("masked", [True, False])
def test_blocks_of_rows_give_what_the_whole_gives(summariser: Summariser, rows: int, masked: bool) -> None:
    size = 21
    visible = causal(size) if masked else None
    weights = attention(1, 2, 3, size, size, visible=causal(size) if masked else True)
    layout = Layout.first(size).with_tokens(np.arange(size) % 5, np.arange(size) % 5)
    whole, parts = (
        summariser.summarise(weights, layout, visible=visible, metrics=NAMES, block_cells=cells)
        for cells in (1 << 30, rows * 2 * 3 * size)
    )
    assert _close(whole.json(), parts.json())


def test_a_matrix_that_is_never_whole_can_be_summarised(summariser: Summariser) -> None:
    size = 12
    weights, layout = attention(2, 1, 2, size, size), Layout.first(size)
    rows = [slice(i, i + 5) for i in range(0, size, 5)]
    blocks = [summariser.block(weights[:, :, part], layout.rows(part)) for part in rows]
    assert _close(finish(blocks, layout).json(), summariser.summarise(weights, layout).json())


# Which rows count, and what is undefined.


def test_a_row_that_sees_nothing_is_invalid_and_not_uniform(summariser: Summariser) -> None:
    visible = np.ones((1, 1, 4, 4), bool)
    visible[0, 0, 2] = False
    found = summariser.summarise(uniform(visible), Layout.first(4), visible=visible)
    assert found.rows_invalid.tolist() == [[1]]
    assert found.rows_counted.tolist() == [[3]]
    assert value(found.metrics["entropy"]) == pytest.approx(math.log(4), abs=1e-6)


def test_a_nan_spoils_its_row_only_and_is_counted(summariser: Summariser) -> None:
    weights = uniform(np.ones((1, 2, 4, 4), bool))
    weights[0, 1, 2, 3] = np.nan
    weights[0, 1, 3, 3] = np.inf
    found = summariser.summarise(weights, Layout.first(4), metrics=NAMES)
    assert found.rows_invalid.tolist() == [[0, 2]]
    assert found.nonfinite_cells is not None
    assert found.nonfinite_cells.tolist() == [[0, 2]]
    assert found.metrics["entropy"].mean == pytest.approx(math.log(4), abs=1e-6)


def test_a_nan_that_is_masked_spoils_nothing_but_is_counted(summariser: Summariser) -> None:
    weights, visible = uniform(causal(4)), causal(4)
    weights[0, 0, 0, 3] = np.nan
    found = summariser.summarise(weights, Layout.first(4), visible=visible, metrics=NAMES)
    assert found.rows_invalid.tolist() == [[0]]
    assert found.nonfinite_cells is not None
    assert found.nonfinite_cells.tolist() == [[1]]
    assert value(found.metrics["entropy_norm"]) == pytest.approx(1, abs=1e-6)


def test_health_is_told_apart(summariser: Summariser) -> None:
    weights, visible = uniform(causal(4)), causal(4)
    weights[0, 0, 1, 3] = 0.25
    weights[0, 0, 3] *= 1.01
    names = ("row_sum_error", "mask_leak")
    found = summariser.summarise(weights, Layout.first(4), visible=visible, metrics=names)
    assert found.mask_leak == pytest.approx(0.25)
    assert found.row_sum_error == pytest.approx(0.01, abs=1e-6)
    assert found.rows_invalid.tolist() == [[1]]
    assert not found.metrics
    unmasked = summariser.summarise(weights, Layout.first(4), metrics=names)
    assert unmasked.mask_leak == 0


def test_padding_is_neither_counted_nor_invalid(summariser: Summariser) -> None:
    size, real = 6, 4
    weights = attention(3, 2, 2, size, size)
    padding = np.zeros((2, size), bool)
    padding[1, real:] = True
    layout = Layout.first(size)
    found = summariser.summarise(weights, layout, metrics=NAMES, padding=padding)
    assert found.rows_counted.tolist() == [[size, size], [real, real]]
    assert found.rows_invalid.tolist() == [[0, 0], [0, 0]]
    alone = summariser.summarise(
        weights[1:, :, :real], Layout(layout.query_positions[:real], layout.key_positions), metrics=NAMES
    )
    for name, metric in alone.metrics.items():
        if not metric.reason:
            assert found.metrics[name].mean[1] == pytest.approx(metric.mean[0], rel=1e-6), name
    assert found.profile is not None
    assert alone.profile is not None
    assert found.profile.weights[1] == pytest.approx(alone.profile.weights[0])
    assert found.profile.pairs[1].sum() == 2 * real * size


def test_what_is_undefined_is_null_with_a_reason(summariser: Summariser) -> None:
    """One query of one key: forced, so that only what a forced row may say is said."""
    found = summariser.summarise(np.ones((1, 1, 1, 1), np.float32), Layout.first(1), metrics=NAMES)
    answer = found.json()
    assert answer["entropy"]["mean"] == [[0.0]]
    assert answer["max_weight"]["mean"] == [[1.0]]
    for name in ("entropy_norm", "mean_distance", "mean_distance_ratio", "half_mass_distance", "sink_mass_1"):
        assert answer[name]["mean"] == [[None]], name
        assert answer[name]["reason"], name
        assert answer[name]["rows"] == [[0]], name
    assert "place 1+" in answer["previous_token"]["reason"]
    assert "which tokens" in answer["induction"]["reason"]
    assert answer["reasons"]["distance_profile"]
    assert answer["is_sink"] == [[None]]
    json.dumps(answer, allow_nan=False)


def test_nothing_on_the_wire_is_nan_even_when_every_cell_is(summariser: Summariser) -> None:
    found = summariser.summarise(np.full((2, 2, 3, 3), np.nan, np.float32), Layout.first(3), metrics=NAMES)
    answer = json.loads(json.dumps(found.json(), allow_nan=False))
    assert answer["rows_invalid"] == [[3, 3], [3, 3]]
    assert answer["nonfinite_cells"] == [[9, 9], [9, 9]]
    assert answer["entropy"]["mean"] == [[None, None], [None, None]]
    assert "NaN" in answer["entropy"]["reason"]
    assert answer["row_sum_error"] == [[None, None], [None, None]]
    assert answer["reasons"]["row_sum_error"]


def test_all_padding_is_said_to_be_padding(summariser: Summariser) -> None:
    padding = np.ones((1, 3), bool)
    found = summariser.summarise(attention(0, 1, 1, 3, 3), Layout.first(3), padding=padding)
    assert found.metrics["entropy"].reason == "all rows are padding"
    assert found.rows_counted.tolist() == found.rows_invalid.tolist() == [[0]]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, {"first_token": 3, "sink_mass_1": 3, "alpha_0": 4, "self_token": 3, "entropy": 4, "mean_distance": 4}),
        (causal(4), {"first_token": 3, "sink_mass_1": 3, "alpha_0": 3, "self_token": 3, "mean_distance": 3}),
        (np.eye(4, dtype=bool)[None, None], {"first_token": 3, "sink_mass_1": 0, "alpha_0": 0, "self_token": 3}),
    ],
)
def test_each_metric_is_over_the_rows_that_are_documented(
    summariser: Summariser, visible: Any, expected: dict[str, int]
) -> None:
    """The first token is left out from place 1 on; forced rows from distances and sinks."""
    weights = attention(8, 1, 1, 4, 4, visible=True if visible is None else visible)
    found = summariser.summarise(weights, Layout.first(4), visible=visible, metrics=NAMES)
    assert {name: int(found.metrics[name].rows[0, 0]) for name in expected} == expected


def test_the_ratio_is_of_means_over_rows_and_no_mean_of_ratios(summariser: Summariser) -> None:
    size, visible = 5, causal(5)
    weights = attention(9, 1, 1, size, size, visible=visible)
    found = summariser.summarise(weights, Layout.first(size), visible=visible, metrics=NAMES)
    own = [sum(float(weights[0, 0, i, j]) * (i - j) for j in range(i + 1)) for i in range(1, size)]
    even = [i / 2 for i in range(1, size)]
    assert value(found.metrics["mean_distance_ratio"]) == pytest.approx(sum(own) / sum(even), rel=1e-5)
    assert value(found.metrics["mean_distance_ratio"]) != pytest.approx(np.mean(np.divide(own, even)), rel=1e-2)


# Sinks without a key.


@pytest.mark.parametrize("shares", [[0.25, 0.75], [1e-6, 1e-25]])
def test_with_learned_sinks_rows_are_divided_by_what_goes_to_keys(summariser: Summariser, shares: list[float]) -> None:
    size = 10
    whole = attention(4, 1, 2, size, size)
    share = np.array(shares, np.float32)[None, :, None, None]
    layout = Layout.first(size).with_tokens(np.arange(size) % 3, np.arange(size) % 3)
    plain = summariser.summarise(whole, layout, metrics=NAMES)
    found = summariser.summarise(share * whole, layout, metrics=NAMES, sinks=True)
    assert found.metrics["keyless_mass"].mean == pytest.approx(1 - share[..., 0, 0], abs=1e-6)
    for name, metric in plain.metrics.items():
        assert found.metrics[name].mean == pytest.approx(metric.mean, rel=1e-5, abs=1e-6), name
    assert found.profile is not None
    assert found.profile.weights.sum(-1) == pytest.approx(1, abs=1e-5)
    assert found.reasons is not None
    assert "sinks" in found.reasons["row_sum_error"]
    unaware = summariser.summarise(share * whole, layout)
    assert (unaware.rows_invalid == size).all()


@pytest.mark.parametrize("share", [0.0, 1e-35])
def test_rows_of_which_sinks_leave_too_little_say_so_and_are_keyless(summariser: Summariser, share: float) -> None:
    size = 4
    weights = np.float32(share) * attention(4, 1, 2, size, size, visible=causal(size))
    visible = causal(size).copy()
    visible[0, 0, 1] = False
    found = summariser.summarise(weights, Layout.first(size), visible=visible, metrics=NAMES, sinks=True)
    assert found.rows_invalid.tolist() == [[size, size]]
    assert found.metrics["keyless_mass"].mean.tolist() == [[1, 1]]
    assert found.metrics["keyless_mass"].rows.tolist() == [[size - 1, size - 1]], "one sees no key"
    assert found.metrics["entropy"].reason is not None
    assert "1e-30 of each goes to learned sinks" in found.metrics["entropy"].reason
    assert "do not sum" not in found.metrics["entropy"].reason


# Positions and places.


def test_distance_goes_by_position_and_the_rest_by_place(summariser: Summariser) -> None:
    size = 12
    weights = attention(5, 1, 1, size, size)
    here = Layout.first(size)
    there = Layout(100 + here.query_positions / 4, 100 + here.key_positions / 4)
    a, b = (summariser.summarise(weights, layout, metrics=NAMES).metrics for layout in (here, there))
    assert value(b["mean_distance"]) == pytest.approx(value(a["mean_distance"]) / 4, rel=1e-6)
    for name in ("previous_token", "local_mass_4", "half_mass_distance", "sink_mass_4", "mean_distance_ratio"):
        assert value(b[name]) == pytest.approx(value(a[name]), rel=1e-6), name


@pytest.mark.parametrize("chosen", [[11], [3, 4, 5], [0, 5, 10, 11], [7, 2]])
def test_any_rows_of_a_matrix_have_the_numbers_they_have_in_it(summariser: Summariser, chosen: list[int]) -> None:
    size = 12
    weights = attention(6, 1, 2, size, size, visible=causal(size))
    layout = Layout(np.array(chosen, np.float64), np.arange(size, dtype=np.float64))
    found = summariser.summarise(weights[:, :, chosen], layout, visible=causal(size)[:, :, chosen], metrics=NAMES)
    assert found.profile is not None
    free = [i for i in chosen if i > 0]
    for h in range(2):
        expected = np.zeros(2 * size - 1)
        for i in free:
            for j in range(i + 1):
                expected[i - j + size - 1] += weights[0, h, i, j] / len(free)
        assert found.profile.weights[0, h] == pytest.approx(expected, abs=1e-6)
        previous = np.mean([weights[0, h, i, i - 1] for i in free])
        assert found.metrics["previous_token"].mean[0, h] == pytest.approx(previous, rel=1e-6)


def test_queries_that_are_no_keys_have_no_place(summariser: Summariser) -> None:
    layout = Layout(np.array([0.5, 1.5]), np.arange(4.0))
    found = summariser.summarise(attention(7, 1, 1, 2, 4), layout, metrics=NAMES)
    assert math.isfinite(value(found.metrics["mean_distance"]))
    assert math.isfinite(value(found.metrics["entropy"]))
    for name in ("previous_token", "half_mass_distance", "sink_mass_1", "local_mass_4"):
        assert found.metrics[name].reason == "no query is at the position of a key", name


@pytest.mark.parametrize("positions", [[3.0, 1.0, 2.0], [0.0, 0.0, 1.0]])
def test_keys_out_of_order_have_no_places(summariser: Summariser, positions: list[float]) -> None:
    layout = Layout(np.array(positions), np.array(positions))
    found = summariser.summarise(attention(8, 1, 1, 3, 3), layout, metrics=NAMES)
    assert found.profile is None
    assert found.reasons is not None
    assert "order" in found.reasons["distance_profile"]
    assert "order" in str(found.metrics["previous_token"].reason)
    assert math.isfinite(value(found.metrics["mean_distance"]))


# Tokens.


def test_induction_has_its_chance_beside_it(summariser: Summariser) -> None:
    """Halves repeated: in the second half each row gives all to what followed its token in the first."""
    half = 4
    tokens = np.tile(np.arange(half), 2)
    weights = np.zeros((1, 1, 2 * half, 2 * half), np.float32)
    for i in range(2 * half):
        weights[0, 0, i, i - half + 1 if i >= half else 0] = 1
    layout = Layout.first(2 * half).with_tokens(tokens, tokens)
    found = summariser.summarise(weights, layout, visible=causal(2 * half), metrics=("induction", "duplicate_token"))
    induction = found.metrics["induction"]
    assert induction.rows.tolist() == [[half]]
    assert value(induction) == 1
    assert induction.uniform == pytest.approx(np.mean([1 / (i + 1) for i in range(half, 2 * half)]), rel=1e-6)
    assert found.metrics["duplicate_token"].mean == 0


def test_tokens_that_never_repeat_leave_induction_undefined(summariser: Summariser) -> None:
    layout = Layout.first(5).with_tokens(np.arange(5), np.arange(5))
    found = summariser.summarise(attention(9, 1, 1, 5, 5), layout, metrics=("induction", "duplicate_token"))
    assert np.isnan(found.metrics["induction"].mean).all()
    assert "own token" in str(found.metrics["induction"].reason)


def test_embeddings_are_one_token_only_when_they_are_equal_bit_for_bit() -> None:
    x = np.zeros((1, 5, 4), np.float32)
    x[0, 1] = x[0, 3] = 1.5
    x[0, 3, 2] = np.nextafter(np.float32(1.5), np.float32(2))
    x[0, 4, 0] = -0.0
    layout = Layout.first(5).with_embeddings(x, x)
    assert layout.key_tokens is not None
    a, b, c, d, e = layout.key_tokens[0]
    assert a == c
    assert len({int(n) for n in (a, b, d, e)}) == 4
    assert layout.query_tokens is not None
    assert (layout.query_tokens == layout.key_tokens).all()


def test_members_of_a_batch_may_have_tokens_of_their_own(summariser: Summariser) -> None:
    tokens = np.array([[1, 2, 3, 4], [7, 7, 7, 7]])
    layout = Layout.first(4).with_tokens(tokens, tokens)
    found = summariser.summarise(uniform(np.ones((2, 1, 4, 4), bool)), layout, metrics=("duplicate_token",))
    assert found.metrics["duplicate_token"].rows.tolist() == [[0], [3]]
    assert found.metrics["duplicate_token"].mean[1, 0] == pytest.approx(np.mean([1, 2, 3]) / 4)


# What is run.


def test_only_what_is_asked_for_is_computed() -> None:
    layout = Layout.first(3)
    assert outputs_for(["max_weight"], layout, masked=False) == Outputs(("max_weight", "row_sum"), ())
    assert outputs_for(["entropy_norm"], layout, masked=True) == Outputs(("entropy", "row_sum"), ())
    scored = outputs_for(["entropy"], layout, masked=False, scored=True)
    assert scored == Outputs(("entropy_of_scores", "row_sum"), ())
    based = outputs_for(["previous_token", "sink_mass_1"], layout, masked=False)
    assert based == Outputs(("first_token", "previous_token", "row_sum"), ("first_token", "previous_token"))
    assert outputs_for(["entropy", "max_weight"], layout, masked=True) == outputs_for(
        ["max_weight", "entropy"], layout, masked=True
    )
    with pytest.raises(ValueError, match="no metric 'entropie'; there are entropy, "):
        outputs_for(["entropie"], layout, masked=False)


def test_scores_give_the_same_entropy(summariser: Summariser) -> None:
    size = 30
    scores = 5 * np.random.default_rng(0).normal(size=(1, 2, size, size)).astype(np.float32)
    exps = np.where(causal(size), np.exp(scores.astype(np.float64)), 0)
    weights = (exps / exps.sum(-1, keepdims=True)).astype(np.float32)
    layout = Layout.first(size)
    a, b = (
        summariser.summarise(weights, layout, visible=causal(size), scores=given).metrics for given in (None, scores)
    )
    assert b["entropy"].mean == pytest.approx(a["entropy"].mean, abs=1e-6)
    assert b["entropy_norm"].mean == pytest.approx(a["entropy_norm"].mean, abs=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_weights_of_any_precision_are_taken_with_its_tolerance(summariser: Summariser, dtype: Any) -> None:
    found = summariser.summarise(attention(0, 1, 2, 50, 50).astype(dtype), Layout.first(50))
    assert (found.rows_counted == 50).all()
    strict = summariser.summarise(attention(0, 1, 2, 50, 50).astype(dtype), Layout.first(50), tolerance=1e-6)
    assert (strict.rows_counted == 50).all() == (dtype is not np.float16)


def test_a_layer_is_the_mean_of_its_heads() -> None:
    metric = Metric(np.array([[1.0, 3.0, np.nan]]), np.array([[2, 2, 0]]), reason="no row is counted")
    assert metric.layer.tolist() == [2.0]
    assert plain(metric.document()) == {
        "mean": [[1.0, 3.0, None]],
        "layer": [2.0],
        "rows": [[2, 2, 0]],
        "reason": "no row is counted",
    }


def test_the_default_is_part_of_what_there_is(summariser: Summariser) -> None:
    assert set(DEFAULT) < set(NAMES)
    found = summariser.summarise(attention(0, 1, 1, 5, 5), Layout.first(5))
    assert isinstance(found, Summary)
    assert set(found.metrics) == set(DEFAULT) - {"row_sum_error"}
    assert found.mask_leak is None
    assert found.profile is None


def _close(a: Any, b: Any) -> bool:
    """Equal but for rounding."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_close(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b or (isinstance(a, float) and abs(a - b) < 1e-6 * max(1.0, abs(a))))
