"""The exported statistics beside loops in float64, SciPy, and matrices whose numbers are known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from jaxtyping import Bool, Float, Float64, Int64
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy, wasserstein_distance

from models.analysis.probabilities import LEAST
from service.engine.pruning import prune
from tests.oracles.served import EXPORTED, session

ANALYSIS = EXPORTED.parent / "analysis"
ALLOWED = 1e-5
TOP = 3
TINY = float(np.finfo(np.float32).tiny)

Matrix = Float[np.ndarray, "batch heads queries keys"]


@dataclass(frozen=True)
class Case:
    """Two matrices with everything the graphs are fed. `half` says that the weights were float16 once."""

    feeds: dict[str, np.ndarray]
    tolerance: float
    half: bool
    sinks: bool

    def matrix(self, name: str) -> Matrix:
        return self.feeds[name].astype(np.float64)

    @property
    def visible(self) -> Bool[np.ndarray, "batch heads queries keys"]:
        return np.broadcast_to(self.feeds["visible"], self.feeds["weights"].shape)


@pytest.fixture(scope="module")
def rows() -> onnxruntime.InferenceSession:
    return session(ANALYSIS / "rows.onnx")


@pytest.fixture(scope="module")
def pairs() -> onnxruntime.InferenceSession:
    return session(ANALYSIS / "pairs.onnx")


def ask(graph: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    needed = {entry.name: feeds[entry.name] for entry in graph.get_inputs()}
    names = [entry.name for entry in graph.get_outputs()]
    return dict(zip(names, graph.run(names, needed), strict=True))


def random_case(seed: int) -> Case:
    """Any shape, mask, positions and kind of row; some queries are not among the keys, some cells are NaN."""
    random = np.random.default_rng(seed)
    batch, heads = (int(n) for n in random.integers(1, 3, 2))
    keys = int(random.choice([1, 2, 3, 5, 12, 31, 32, 33, 70]))
    queries = int(random.integers(1, min(keys, 6) + 1))
    causal, masked, sinks, half, broken = random.random(5) < [0.5, 0.4, 0.2, 0.2, 0.15]
    step = random.choice([1.0, 0.25, 3.0])
    key_positions = 7.0 + step * np.arange(keys)
    places = np.arange(int(random.integers(0, keys - queries + 1)), keys)[:queries]
    query_positions = key_positions[places]
    if random.random() < 0.2:
        places, query_positions = np.full(queries, -1), query_positions + step / 3
    visible = np.ones((batch, heads, queries, keys), bool)
    if causal:
        visible &= key_positions <= query_positions[:, None]
    if masked:
        visible &= random.random(visible.shape) < 0.6
    if random.random() < 0.3:  # one mask for all heads, as it is served
        visible = visible[:1, :1]
    padded = seed % 3 == 0
    real = np.arange(keys) < (keys - keys // 4 if padded else keys)
    visible = visible & real
    feeds: dict[str, np.ndarray] = {
        "visible": visible,
        "distances": np.abs(query_positions[:, None] - key_positions).astype(np.float32),
        "query_places": places,
        "own_cells": np.arange(queries) * keys + np.maximum(places, 0),
        "previous_cells": np.arange(queries) * keys + np.maximum(places - 1, 0),
        "profiled": (places >= 0) & (random.random((batch, queries)) < 0.9),
        "tolerance": np.array(2e-3 if half else 1e-5),
        "top": np.zeros(min(TOP, keys), np.float32),
        "real_keys": np.broadcast_to(real, (batch, keys)),
        "switch.padded": np.array(bool(padded)),
        **{f"switch.{name}": np.array(bool(sinks)) for name in ("sinks", "sinks_a", "sinks_b")},
        "switch.exact": np.array(False),
    }
    tokens = random.integers(0, 4, (batch, keys))
    own = np.where(places < 0, tokens[:, :1], tokens[:, places])
    feeds |= {"key_tokens": tokens, "query_tokens": own}
    feeds["tokens_before"] = np.concatenate([np.full((batch, 1), -1), tokens[:, :-1]], axis=1)
    for suffix in ("", "_a", "_b"):
        scores = random.normal(size=(batch, heads, queries, keys)) * random.choice([0.0, 1.0, 3.0, 40.0])
        shifted = np.where(visible, scores, -np.inf)
        exps = np.exp(shifted - np.maximum(shifted.max(-1, keepdims=True), -1e300))
        share = random.uniform(0.2, 1) if sinks else 1.0
        if sinks and not half:
            share **= 12
        weights = share * exps / np.maximum(exps.sum(-1, keepdims=True), 1e-300)
        weights = np.where(visible, weights, random.choice([0.0, 0.3]))
        weights = weights.astype(np.float16 if half else np.float32).astype(np.float32)
        if broken:
            weights[tuple(int(random.integers(0, size)) for size in weights.shape)] = random.choice([np.nan, np.inf])
        feeds |= {f"weights{suffix}": weights, f"scores{suffix}": scores.astype(np.float32)}
    return Case(feeds, float(feeds["tolerance"]), bool(half), bool(sinks))


def distribution(case: Case, name: str, at: tuple[int, int, int]) -> Float64[np.ndarray, " keys"] | None:
    """The row's weights over visible keys, 0 elsewhere; None where it is not to be counted."""
    seen = case.visible[at]
    row = [float(w) if v else 0.0 for w, v in zip(case.matrix(name)[at], seen, strict=True)]
    total = math.fsum(row) if all(map(math.isfinite, row)) else math.nan
    least = LEAST if case.sinks else 1 - case.tolerance
    if not (any(seen) and least <= total <= 1 + case.tolerance):
        return None
    return np.array(row) / (total if case.sinks else 1.0)


def near(got: float, expected: float, size: float | None = None) -> bool:
    """To 1e-5 of the expected number, or of its `size`, or of 1."""
    return abs(got - expected) <= ALLOWED * max(1.0, abs(expected) if size is None else size)


def row_numbers(
    p: Float64[np.ndarray, " keys"], seen: Bool[np.ndarray, " keys"], case: Case, at: tuple[int, int, int]
) -> dict[str, float]:
    """One row's statistics, as section 2.2 of the definitions writes them."""
    b, _, i = at
    keys, place = range(len(p)), int(case.feeds["query_places"][i])
    own, tokens = case.feeds["query_tokens"][b, i], case.feeds["key_tokens"][b]
    far = case.feeds["distances"][i].astype(np.float64)
    half = next((w for w in range(2 * len(p)) if mass(p, place, w) >= 0.5 - case.tolerance), 0)
    duplicate = [j for j in keys if tokens[j] == own and j < place]
    induction = [j for j in keys if 1 <= j <= place and tokens[j - 1] == own]
    count = sum(seen)
    found: dict[str, float] = {
        "visible_keys": count,
        "entropy": math.fsum(-x * math.log(x) for x in p if x > 0),
        "max_weight": max(p),
        "half_mass_distance": half,
        "distance": math.fsum(p * far),
    }
    chosen = {
        **({"previous_token": [place - 1]} if place >= 1 else {}),
        **({"self_token": [place]} if place >= 0 else {}),
        "first_token": [0],
        "sink_mass_4": [0, 1, 2, 3],
        "duplicate_token": duplicate,
        "induction": induction,
        **{f"local_mass_{w}": [j for j in keys if abs(place - j) <= w] for w in (1, 4, 16, 64)},
    }
    for name, which in chosen.items():
        found[name] = math.fsum(p[j] for j in which if 0 <= j < len(p))
    return found


def mass(p: Float64[np.ndarray, " keys"], place: int, width: int) -> float:
    return math.fsum(p[j] for j in range(len(p)) if abs(place - j) <= width)


@pytest.mark.parametrize("group", range(10))
def test_row_statistics_are_those_of_loops_in_float64(rows: onnxruntime.InferenceSession, group: int) -> None:
    compared = 0
    for seed in range(50 * group, 50 * group + 50):
        case = random_case(seed)
        got = ask(rows, case.feeds)
        shape = case.feeds["weights"].shape
        diagonals = np.zeros((3, *shape[:2], shape[2] + shape[3] + 1))
        for at in np.ndindex(*shape[:3]):
            seen, raw = case.visible[at], case.matrix("weights")[at]
            assert got["nonfinite"][at] == np.count_nonzero(~np.isfinite(raw)), seed
            assert got["visible_keys"][at] == np.count_nonzero(seen), seed
            p = distribution(case, "weights", at)
            assert got["counted"][at] == (p is not None), (seed, at)
            if p is None:
                continue
            assert near(float(got["row_sum"][at]), math.fsum(raw[seen])), seed
            if np.isfinite(raw).all():
                assert near(float(got["leak"][at]), max((abs(x) for x in raw[~seen]), default=0.0)), seed
            for name, value in row_numbers(p, seen, case, at).items():
                assert near(float(got[name][at]), value), (seed, at, name, got[name][at], value)
                compared += 1
            if not case.half:
                assert near(float(got["entropy"][at]), float(entropy(p))), seed
                assert near(float(got["entropy_of_scores"][at]), float(entropy(p))), (seed, at)
            if np.count_nonzero(seen) >= 2 and case.feeds["profiled"][at[0], at[2]]:
                for j, x in enumerate(p):
                    c = shape[2] - (at[2] - j)
                    diagonals[(slice(None), *at[:2], c)] += x, seen[j] / np.count_nonzero(seen), seen[j]
        for name, expected in zip(("diagonals", "uniform_diagonals", "pair_diagonals"), diagonals, strict=True):
            assert np.abs(got[name] - expected).max() <= ALLOWED, (seed, name)
    assert compared > 3000


def pair_numbers(
    a: Float64[np.ndarray, " keys"],
    b: Float64[np.ndarray, " keys"],
    seen: Int64[np.ndarray, " seen"],
    scores: tuple[Float64[np.ndarray, " keys"], Float64[np.ndarray, " keys"]],
) -> dict[str, float]:
    """One row's comparison, as section 2.3 of the definitions writes it."""
    middle = (a + b) / 2
    moved, walked = 0.0, 0.0
    for x, y in zip(a, b, strict=True):
        moved += x - y
        walked += abs(moved)
    top_a, top_b = ({int(j) for j in sorted(seen, key=lambda j: (-x[j], j))[:TOP]} for x in (a, b))
    s, t = (x[seen] - x[seen].mean() for x in scores)
    return {
        "visible_keys": len(seen),
        "jsd": (relative(a, middle) + relative(b, middle)) / 2,
        "kl": relative(a, b),
        "tv": math.fsum(abs(a - b)) / 2,
        "w1": walked,
        "argmax_agree": float(max(seen, key=lambda j: (a[j], -j)) == max(seen, key=lambda j: (b[j], -j))),
        "topk_overlap": len(top_a & top_b) / min(TOP, len(seen)),
        "squares_a": math.fsum(a * a),
        "squares_difference": math.fsum((a - b) ** 2),
        "logit_squares_a": math.fsum(s * s),
        "logit_squares_b": math.fsum(t * t),
        "logit_products": math.fsum(s * t),
        "logit_squares_difference": math.fsum((s - t) ** 2),
    }


def relative(a: Float64[np.ndarray, " keys"], b: Float64[np.ndarray, " keys"]) -> float:
    if any(x > 0 and y == 0 for x, y in zip(a, b, strict=True)):
        return math.inf
    return math.fsum(x * math.log2(x / y) for x, y in zip(a, b, strict=True) if x > 0)


@pytest.mark.parametrize("group", range(10))
def test_pair_statistics_are_those_of_loops_and_of_scipy(pairs: onnxruntime.InferenceSession, group: int) -> None:
    compared = 0
    for seed in range(50 * group, 50 * group + 50):
        case = random_case(seed)
        got = ask(pairs, case.feeds)
        for at in np.ndindex(*case.feeds["weights"].shape[:3]):
            a, b = distribution(case, "weights_a", at), distribution(case, "weights_b", at)
            assert got["counted"][at] == (a is not None and b is not None), (seed, at)
            if a is None or b is None:
                continue
            real = np.count_nonzero(case.feeds["real_keys"][at[0]])
            a, b, seen = a[:real], b[:real], np.flatnonzero(case.visible[at])
            scores = case.matrix("scores_a")[at], case.matrix("scores_b")[at]
            for name, value in pair_numbers(a, b, seen, scores).items():
                if name == "kl" and ((b > 0) & (b < TINY)).any():
                    continue  # a quotient by a subnormal number may be infinite
                number, size = float(got[name][at]), abs(value)
                if name == "logit_products":
                    size = math.sqrt(float(got["logit_squares_a"][at]) * float(got["logit_squares_b"][at]))
                assert number == value or near(number, value, size), (seed, at, name, number, value)
                compared += 1
            if not case.half:
                where = np.arange(len(a))
                assert near(float(got["jsd"][at]), float(jensenshannon(a, b, base=2)) ** 2), seed
                assert near(float(got["w1"][at]), float(wasserstein_distance(where, where, a, b))), seed
    assert compared > 3000


# Matrices whose numbers are known.


def question(weights: Matrix, visible: Bool[np.ndarray, "..."] | None = None, **others: Any) -> dict[str, np.ndarray]:
    """Self-attention at 0, 1, 2, ..., every token another."""
    queries, keys = weights.shape[2:]
    index = np.arange(keys)
    return {
        "weights": weights.astype(np.float32),
        "scores": np.zeros(weights.shape, np.float32),
        "visible": np.ones((1, 1, queries, keys), bool) if visible is None else visible,
        "distances": np.abs(index[-queries:, None] - index).astype(np.float32),
        "query_places": index[-queries:],
        "own_cells": np.arange(queries) * keys + index[-queries:],
        "previous_cells": np.arange(queries) * keys + np.maximum(index[-queries:] - 1, 0),
        "profiled": np.ones((1, queries), bool),
        "query_tokens": index[None, -queries:],
        "key_tokens": index[None],
        "tokens_before": index[None] - 1,
        "tolerance": np.array(1e-5),
        "switch.exact": np.array(False),
        "switch.sinks": np.array(False),
        **others,
    }


def causal(size: int) -> Bool[np.ndarray, "1 1 size size"]:
    return np.tril(np.ones((1, 1, size, size), bool))


def test_uniform_attention_has_the_entropy_of_its_keys_and_its_own_profile(
    rows: onnxruntime.InferenceSession,
) -> None:
    got = ask(rows, question(np.full((1, 1, 64, 64), 1 / 64)))
    assert got["entropy"] == pytest.approx(math.log(64), abs=1e-6)
    assert got["entropy_of_scores"] == pytest.approx(math.log(64), abs=1e-6)
    assert got["diagonals"] == pytest.approx(got["uniform_diagonals"], abs=1e-5)


def test_uniform_causal_attention_is_uniform_over_what_it_sees(rows: onnxruntime.InferenceSession) -> None:
    size = 64
    weights = causal(size) / np.arange(1, size + 1)[:, None]
    got = ask(rows, question(weights, causal(size)))
    count = np.arange(1.0, size + 1)
    assert got["visible_keys"][0, 0] == pytest.approx(count)
    assert got["entropy"][0, 0] == pytest.approx(np.log(count), abs=1e-6)
    assert (got["entropy"][0, 0, 1:] / np.log(count[1:])).mean() == pytest.approx(1.000, abs=1e-6)
    assert (got["entropy"][0, 0] / math.log(size)).mean() == pytest.approx(0.771, abs=5e-4), "the wrong normalisation"
    assert got["distance"].mean() == pytest.approx((size - 1) / 4, rel=1e-6)
    # Mass 1/2 exactly, reached at n/2 keys: the tolerance keeps rounding from asking for one more.
    assert (got["half_mass_distance"][0, 0] == np.ceil(count / 2) - 1).all()
    harmonic = (1 / count).sum()
    assert got["first_token"][0, 0, 1:].mean() == pytest.approx((harmonic - 1) / (size - 1), abs=1e-6)
    assert got["first_token"][0, 0, 1:].mean() == pytest.approx(0.059, abs=5e-4)


@pytest.mark.parametrize("behind", [0, 1, 5, 40])
def test_attention_to_one_key_is_all_there(rows: onnxruntime.InferenceSession, behind: int) -> None:
    size = 70
    places = np.arange(size)
    weights = (np.maximum(places[:, None] - behind, 0) == places).astype(np.float32)[None, None]
    got = ask(rows, question(weights, causal(size)))
    after = slice(max(behind, 1), None)
    assert (got["entropy"] == 0).all()
    assert (got["max_weight"] == 1).all()
    assert (got["distance"][0, 0, after] == behind).all()
    assert (got["half_mass_distance"][0, 0, after] == behind).all()
    for width in (1, 4, 16, 64):
        assert (got[f"local_mass_{width}"][0, 0, after] == (behind <= width)).all()
    assert (got["self_token"][0, 0, after] == (behind == 0)).all()
    assert (got["previous_token"][0, 0, after] == (behind == 1)).all()
    # Entry c is the diagonal i - j = size - c; row 0 is forced.
    assert got["diagonals"][0, 0, size - behind] == size - max(behind, 1)
    assert got["diagonals"].sum() == size - 1
    assert got["pair_diagonals"][0, 0, : size + 1].sum() == got["pair_diagonals"].sum() == size * (size + 1) / 2 - 1


def test_attention_to_the_first_key_is_a_sink(rows: onnxruntime.InferenceSession) -> None:
    weights = np.zeros((1, 1, 8, 8))
    weights[..., 0] = 1
    got = ask(rows, question(weights))
    for name in ("first_token", "sink_mass_4"):
        assert (got[name] == 1).all()
    assert got["distance"][0, 0].tolist() == list(range(8))


def test_induction_follows_an_earlier_occurrence(rows: onnxruntime.InferenceSession) -> None:
    """Tokens a b c a b c: row 4 (b) has b at 1 as duplicate and c at 2 as what followed."""
    tokens = np.array([[0, 1, 2, 0, 1, 2]])
    weights = np.zeros((1, 1, 6, 6))
    weights[0, 0, :, 0] = 1
    weights[0, 0, 4] = [0, 0.25, 0.75, 0, 0, 0]
    before = np.array([[-1, 0, 1, 2, 0, 1]])
    got = ask(rows, question(weights, causal(6), query_tokens=tokens, key_tokens=tokens, tokens_before=before))
    assert got["duplicate_token"][0, 0].tolist() == [0, 0, 0, 1, 0.25, 0]
    assert got["induction"][0, 0].tolist() == [0, 0, 0, 0, 0.75, 0]


def test_equal_matrices_differ_by_exactly_nothing(pairs: onnxruntime.InferenceSession) -> None:
    case = random_case(4)
    same = {name.replace("_b", "_a"): case.feeds[name.replace("_b", "_a")] for name in ("weights_b", "scores_b")}
    feeds = case.feeds | {name.replace("_a", "_b"): array for name, array in same.items()}
    got = ask(pairs, feeds)
    counted = got["counted"] == 1
    assert counted.any()
    for name in ("jsd", "kl", "tv", "w1", "squares_difference", "logit_squares_difference"):
        assert (got[name][counted] == 0).all(), name
    for name in ("argmax_agree", "topk_overlap"):
        assert (got[name][counted] == 1).all(), name


def test_matrices_that_share_no_key_are_as_far_apart_as_can_be(pairs: onnxruntime.InferenceSession) -> None:
    a, b = np.zeros((2, 1, 1, 3, 5), np.float32)
    a[..., 0], b[..., 4] = 1, 1
    zeros = np.zeros_like(a)
    feeds = {"weights_a": a, "weights_b": b, "scores_a": zeros, "scores_b": zeros, "tolerance": np.array(1e-5)}
    feeds |= {"visible": np.ones((1, 1, 3, 5), bool), "top": np.zeros(1, np.float32), "switch.exact": np.array(False)}
    feeds |= {"real_keys": np.ones((1, 5), bool), "switch.padded": np.array(False)}
    got = ask(pairs, feeds | {f"switch.sinks_{which}": np.array(False) for which in "ab"})
    assert got["jsd"] == pytest.approx(1, abs=1e-6)
    assert (got["tv"] == 1).all()
    assert (got["w1"] == 4).all()
    assert (got["kl"] == np.inf).all()
    assert (got["argmax_agree"] == 0).all()
    assert (got["topk_overlap"] == 0).all()


def test_keys_that_are_none_do_not_count_for_what_moves_past_them(pairs: onnxruntime.InferenceSession) -> None:
    """Rows that sum to 1 as far as float32 can tell, and a thousand keys after them."""
    a, b = np.zeros((2, 1, 1, 1, 1003), np.float32)
    a[..., :3], b[..., :3] = [0.3, 0.3, 0.4], [0.3, 0.4, 0.3 + 2e-6]
    zeros = np.zeros_like(a)
    feeds = {"weights_a": a, "weights_b": b, "scores_a": zeros, "scores_b": zeros, "tolerance": np.array(1e-5)}
    feeds |= {"visible": np.arange(1003)[None, None, None] < 3, "top": np.zeros(1, np.float32)}
    feeds |= {f"switch.{name}": np.array(False) for name in ("exact", "sinks_a", "sinks_b")}
    feeds["real_keys"] = np.arange(1003)[None] < 3
    moved = {padded: ask(pairs, feeds | {"switch.padded": np.array(padded)})["w1"].item() for padded in (False, True)}
    assert moved[True] == pytest.approx(0.1, abs=3e-6)
    assert moved[False] == pytest.approx(0.1 + 1000 * 2e-6, abs=1e-4)


def test_a_half_precision_copy_is_within_the_noise_floor(pairs: onnxruntime.InferenceSession) -> None:
    scores = np.random.default_rng(0).normal(size=(1, 2, 64, 256))
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    feeds = random_case(0).feeds | {"visible": np.ones((1, 1, 64, 256), bool), "tolerance": np.array(2e-3)}
    feeds |= {"weights_a": weights.astype(np.float32), "weights_b": weights.astype(np.float16).astype(np.float32)}
    feeds |= {f"scores_{which}": scores.astype(np.float32) for which in "ab"}
    feeds |= {"real_keys": np.ones((1, 256), bool), "switch.padded": np.array(False)}
    got = ask(pairs, feeds | {f"switch.sinks_{which}": np.array(False) for which in "ab"})
    assert (got["counted"] == 1).all()
    assert got["jsd"].mean() < 1e-6
    assert got["tv"].mean() < 2e-4


# Pruned, as a service runs them.


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("exact", [(), ("exact",)])
@pytest.mark.parametrize("sinks", [(), ("sinks", "sinks_a", "sinks_b")])
@pytest.mark.parametrize("name", ["rows", "pairs"])
def test_each_output_alone_is_what_it_is_among_all(
    name: str, masked: bool, sinks: tuple[str, ...], exact: tuple[str, ...]
) -> None:
    model = onnx.load(ANALYSIS / f"{name}.onnx")
    feeds = random_case(7).feeds
    feeds |= {"visible": np.ones_like(feeds["visible"])} if not masked else {}
    feeds |= {f"switch.{switch}": np.array(bool(sinks)) for switch in ("sinks", "sinks_a", "sinks_b")}
    feeds |= {"switch.exact": np.array(bool(exact)), "switch.padded": np.array(masked)}
    for weights in ("weights", "weights_a", "weights_b"):
        feeds[weights] = np.where(feeds["visible"], feeds[weights], 0) if exact else feeds[weights]
    whole = ask(session(ANALYSIS / f"{name}.onnx"), feeds)
    for output, expected in whole.items():
        pruned = prune(model, [output], masked, (*sinks, *exact, *(("padded",) if masked else ())))
        needed = {value.name for value in pruned.graph.input}
        assert not any(value.startswith("switch.") for value in needed)
        assert ("visible" in needed) <= masked
        if "token" not in output and "induction" not in output:
            assert not needed & {"query_tokens", "key_tokens", "tokens_before"}, output
        if "score" not in output and "logit" not in output:
            assert not needed & {"scores", "scores_a", "scores_b"}, output
        (got,) = ask(session(pruned.SerializeToString()), feeds).values()
        assert got.shape == expected.shape
        assert np.array_equal(got, expected, equal_nan=True), output
