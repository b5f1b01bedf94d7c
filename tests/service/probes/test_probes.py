"""Probes of every exported encoding, beside the formulas pair by pair in float64, and what cards claim of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float64
from scipy.spatial.distance import jensenshannon

from models.encodings import ENCODINGS as MODELS
from models.export import export_encoding
from models.family import Family
from models.projections import Linear
from models.text import byte_tokenizer, write_text
from service.catalogue import Catalogue
from service.engine.engine import Engine
from service.engine.session import Sessions
from service.errors import DeadlineExceeded, InvalidInput, PayloadTooLarge, UnknownName
from service.probes import runs
from service.probes.probes import Probes
from service.probes.records import PROBES, EncodingProbes, ProbeOptions, ProbesResult
from service.probes.references import slopes
from service.records import AttentionInput, AttentionOptions, ScoringResult, Timings
from service.scoring import Limits, Scoring
from service.tables import TableCache
from tests.models.questions import noise
from tests.oracles import ORACLES
from tests.oracles.answer import Answer
from tests.oracles.case import Case, draw

EXPORTED = Path(__file__).parents[3] / "exported"
CATALOGUE = Catalogue.read([EXPORTED])
IDENTITY = CATALOGUE.model("identity")
ENCODINGS = sorted(IDENTITY.encodings)
DOCUMENTS = {id: encoding.document for id, encoding in IDENTITY.encodings.items()}
CAUSAL_ONLY = {id for id, encoding in IDENTITY.encodings.items() if encoding.causal == "required"}
SHIFTING = {id for id in ENCODINGS if DOCUMENTS[id]["invariants"]["shift"]}
Matrix = Float64[np.ndarray, "batch heads queries keys"]


@dataclass
class Asked:
    """Probes over a real engine, on an event loop that lasts as long as the tests do."""

    probes: Probes
    scoring: Scoring
    runner: asyncio.Runner

    def __call__(
        self, input: AttentionInput, *probes: str, deadline: float | None = None, **options: Any
    ) -> ProbesResult:
        own = {name: options.pop(name) for name in ("offsets", "seed", "lengths", "extend") if name in options}
        asked = ProbeOptions(AttentionOptions(**options), probes or PROBES, **own)
        return self.runner.run(self.probes.answer(input, asked, Timings(), deadline))

    def one(self, input: AttentionInput, probe: str, **options: Any) -> dict[str, Any]:
        (result,) = self(input, probe, **options).results
        return dict(result.probes[probe])

    def score(self, input: AttentionInput, **options: Any) -> ScoringResult:
        return self.runner.run(self.scoring.score(input, AttentionOptions(**options), Timings()))


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    sessions = Sessions("cpu")
    with asyncio.Runner() as runner:
        engine = Engine(sessions, workers=1)
        runner.run(engine.start())
        scoring = Scoring(CATALOGUE, engine, TableCache(sessions), Limits(cells=1 << 22))
        yield Asked(Probes(scoring, 100_000), scoring, runner)
        runner.run(engine.stop())


def a_case(encoding: str, seed: int, tokens: int = 9) -> Case:
    """Self-attention at 0, 1, 2, ... without any mask but causality, with every parameter drawn."""
    domain = replace(
        ORACLES[encoding][0].domain, self_attention=True, positions=("from 0",), longest=tokens, head_dims=(2, 4, 8)
    )
    case = next(
        case
        for attempt in range(100)
        if (case := draw(DOCUMENTS[encoding], domain, seed + 1000 * attempt)).keys.shape[1] >= 4
    )
    m = case.m
    visible = (m[None, :] <= m[:, None]) if case.causal else np.ones((len(m), len(m)), bool)
    return replace(case, visible=visible[None, None])


def asked_of(case: Case) -> tuple[AttentionInput, dict[str, Any]]:
    """The case as a request."""
    kinds = {parameter["name"]: parameter["kind"] for parameter in DOCUMENTS[case.encoding]["parameters"]}
    scalars: dict[str, str] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, value in case.parameters.items():
        dotted = f"{case.encoding}.{name}"
        if value is None:
            continue
        if kinds[name] == "array":
            arrays[dotted] = np.asarray(value, np.float32)
        elif kinds[name] == "flag":
            scalars[dotted] = str(value).lower()
        elif kinds[name] == "numbers":
            scalars[dotted] = ",".join(map(repr, map(float, value)))
        else:
            scalars[dotted] = value if isinstance(value, str) else repr(value)
    embeddings = case.keys.reshape(*case.keys.shape[:2], -1).astype(np.float32)
    options = {"encoding": case.encoding, "heads": case.heads, "causal": case.causal, "scalars": scalars}
    return AttentionInput(embeddings=embeddings, parameters=arrays), options


def answer(case: Case) -> Answer:
    return ORACLES[case.encoding][0].answer(case)


def roomy(case: Case, furthest: float) -> Case:
    """With rows in its table for positions that far."""
    table = DOCUMENTS[case.encoding]["positions"]["rows_of"]
    if table is None:
        return case
    return case.with_parameters(**{table: 0.5 * noise(int(furthest) + 1, case.width)})


def divergence(a: Matrix, b: Matrix, seen: np.ndarray) -> Float64[np.ndarray, "batch heads"]:
    """By SciPy, of rows that see two keys or more."""
    rows = np.flatnonzero(seen.sum(-1) > 1)
    found = np.zeros(a.shape[:2])
    for head in np.ndindex(*found.shape):
        pairs = [(a[head][row, seen[row]], b[head][row, seen[row]]) for row in rows]
        # SciPy takes the root of a negative rounding error in places.
        found[head] = np.mean([np.nan_to_num(jensenshannon(x, y, base=2)) ** 2 for x, y in pairs])
    return found


def numbers(encoding: EncodingProbes) -> Iterator[float]:
    """All that stand in an answer."""

    def walk(value: Any) -> Iterator[float]:
        if isinstance(value, dict):
            for inner in value.values():
                yield from walk(inner)
        elif isinstance(value, list | tuple | np.ndarray):
            for inner in value:
                yield from walk(inner)
        elif isinstance(value, float | np.floating):
            yield float(value)

    yield from walk(encoding.probes)


# Beside the formulas, with every parameter drawn.


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_position_alone_is_what_the_formula_makes_of_equal_tokens(asked: Asked, encoding: str) -> None:
    case = a_case(encoding, 1)
    input, options = asked_of(case)
    result = asked(input, "position_only", **options)
    found = result.results[0].probes["position_only"]
    component = result.about["position_only"]["component"]
    assert component == pytest.approx(math.sqrt((case.keys**2).mean()), rel=1e-6)
    r = case.m[:, None] - case.n
    seen = (r >= 0) if case.causal else np.ones(r.shape, bool)
    assert list(found["distances"]) == sorted(set(r[seen]))
    for name, content in (("curve", component), ("without_content", 0.0)):
        same = np.full_like(case.keys[:1], content)
        scores = answer(replace(case, queries=same, keys=same)).scores[0]
        means = np.array([scores[:, seen & (r == d)].mean(-1) for d in found["distances"]]).T
        zero = means[:, list(found["distances"]).index(0)]
        tolerance = 1e-5 * max(1, np.abs(scores[:, seen]).max())
        assert found[name] == pytest.approx(means - zero[:, None], abs=tolerance)
        if name == "curve":
            assert found["at_zero"] == pytest.approx(zero, abs=tolerance)
            spread = np.array([np.ptp(scores[:, seen & (r == d)], axis=-1) for d in found["distances"]]).T
            assert found["spread"] == pytest.approx(spread, abs=2 * tolerance)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_share_of_position_is_that_of_the_formulas_scores(asked: Asked, encoding: str) -> None:
    case = a_case(encoding, 2)
    input, options = asked_of(case)
    found = asked.one(input, "position_share", **options)["share"]
    scores = answer(case).scores
    r = case.m[:, None] - case.n
    seen = ((r >= 0) if case.causal else np.ones(r.shape, bool)) & (r != 0)
    rows = np.nonzero(seen)[0]
    at = np.unique(r[seen], return_inverse=True)[1]
    effects = np.eye(len(case.m))[rows], np.eye(at.max() + 1)[at]
    for b, h in np.ndindex(*scores.shape[:2]):
        y = scores[b, h][seen]
        rss = [
            float(((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2).sum()) for x in (effects[0], np.hstack(effects))
        ]
        assert found[b][h] == pytest.approx(1 - rss[1] / rss[0], abs=1e-4)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_gap_of_a_shift_is_that_of_the_formulas_weights(asked: Asked, encoding: str) -> None:
    by = 40.0
    case = roomy(a_case(encoding, 3), 60)
    input, options = asked_of(case)
    (found,) = asked.one(input, "shift_gap", offsets=(by,), **options)["offsets"]
    here, there = answer(case).weights, answer(replace(case, m=case.m + by, n=case.n + by)).weights
    seen = np.broadcast_to(case.visible[0, 0], here.shape[2:])
    if "sinks" in {name for name, value in case.parameters.items() if value is not None}:
        here, there = (w / w.sum(-1, keepdims=True) for w in (here, there))
    assert np.array(found["jsd"]["mean"]) == pytest.approx(divergence(here, there, seen), abs=1e-6)
    tv = np.abs(here - there).sum(-1)[..., seen.sum(-1) > 1].mean(-1) / 2
    assert np.array(found["tv"]["mean"]) == pytest.approx(tv, abs=1e-5)


@pytest.mark.parametrize("encoding", sorted(set(ENCODINGS) - CAUSAL_ONLY))
def test_the_gap_of_another_order_is_that_of_the_tokens_sent_in_that_order(asked: Asked, encoding: str) -> None:
    case = a_case(encoding, 4)
    case = replace(case, causal=False, visible=np.ones_like(case.visible))
    input, options = asked_of(case)
    found = asked.one(input, "order_gap", seed=5, **options)
    order = np.random.RandomState(5).permutation(len(case.m))
    shuffled = replace(case, queries=case.queries[:, order], keys=case.keys[:, order])
    here, there = answer(case).weights[:, :, order][:, :, :, order], answer(shuffled).weights
    if case.given("sinks") is not None:
        here, there = (w / w.sum(-1, keepdims=True) for w in (here, there))
    expected = divergence(here, there, np.ones(here.shape[2:], bool))
    assert np.array(found["jsd"]["mean"]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("extend", ["tiled", "random"])
def test_a_sweep_is_the_formulas_weights_at_each_length(asked: Asked, encoding: str, extend: str) -> None:
    case = roomy(a_case(encoding, 6), 60)
    tokens = len(case.m)
    input, options = asked_of(case)
    found = asked.one(input, "length_sweep", lengths=(0.5, 1.0, 2.0), extend=extend, seed=9, **options)["lengths"]
    x = case.keys.reshape(*case.keys.shape[:2], -1)
    drawn = np.random.RandomState(9).standard_normal((len(x), tokens, x.shape[-1]))
    drawn = (x.mean(1, keepdims=True) + x.std(1, keepdims=True) * drawn).astype(np.float32)
    longer = np.concatenate([x, x if extend == "tiled" else drawn], axis=1)
    for one, length in zip(found, (round(tokens / 2), tokens, 2 * tokens), strict=True):
        assert one["tokens"] == length
        at = np.arange(length, dtype=np.float64)
        keys = longer[:, :length].reshape(len(x), length, case.heads, case.head_dim)
        seen = at[None, :] <= at[:, None] if case.causal else np.ones((length, length), bool)
        weights = answer(replace(case, queries=keys, keys=keys, m=at, n=at, visible=seen[None, None])).weights
        if case.given("sinks") is not None:
            weights = weights / weights.sum(-1, keepdims=True)
        rows = np.flatnonzero(seen.sum(-1) > 1)
        parts = np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1)), 0)
        entropy = (-parts.sum(-1) / np.log(np.maximum(seen.sum(-1), 2)))[..., rows].mean(-1)
        distance = np.abs(at[:, None] - at)
        uniform = ((seen * distance).sum(-1) / seen.sum(-1))[rows].mean()
        ratio = (weights * distance).sum(-1)[..., rows].mean(-1) / uniform
        sink = weights[..., 0][..., [row for row in rows if row >= 1]].mean(-1)
        # A float32 weight below 1e-38 is 0, and its part of the entropy with it.
        assert np.array(one["entropy_norm"]["mean"]) == pytest.approx(entropy, abs=2e-5)
        assert np.array(one["mean_distance_ratio"]["mean"]) == pytest.approx(ratio, abs=2e-5)
        assert np.array(one["sink_mass_1"]["mean"]) == pytest.approx(sink, abs=2e-5)


# What cards claim.


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=4)
def test_a_shift_moves_attention_just_where_the_card_does_not_deny_it(asked: Asked, encoding: str, seed: int) -> None:
    x = 2 * np.random.default_rng(seed).standard_normal((12, 16)).astype(np.float32)
    found = asked.one(
        AttentionInput(embeddings=x), "shift_gap", encoding=encoding, heads=2, causal=encoding in CAUSAL_ONLY or None
    )["offsets"]
    if encoding in SHIFTING:
        assert max(max(one["jsd"]["mean"]) for one in found) < 1e-6
        assert all(all(one["identical"]) for one in found)
    else:
        assert max(max(one["tv"]["mean"]) for one in found) > 1e-4


@pytest.mark.parametrize("encoding", sorted(set(ENCODINGS) - CAUSAL_ONLY))
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=4)
def test_order_counts_just_where_there_is_an_encoding(asked: Asked, encoding: str, seed: int) -> None:
    x = 2 * np.random.default_rng(seed).standard_normal((12, 16)).astype(np.float32)
    found = asked.one(AttentionInput(embeddings=x), "order_gap", encoding=encoding, heads=2, causal=False, seed=seed)
    if DOCUMENTS[encoding]["invariants"]["permutation"]:
        assert max(found["jsd"]["mean"]) < 1e-9
    else:
        assert max(found["tv"]["mean"]) > 1e-4


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_curve_is_one_of_the_distance_just_where_the_card_says_so(asked: Asked, encoding: str) -> None:
    x = np.random.default_rng(0).standard_normal((40, 32)).astype(np.float32)
    found = asked.one(
        AttentionInput(embeddings=x),
        "position_only",
        encoding=encoding,
        heads=2,
        causal=encoding in CAUSAL_ONLY or None,
        scalars={"fire.L": "8"} if encoding == "fire" else {},  # up to which it is one of the distance
    )
    scale = max(1.0, float(np.abs(found["curve"]).max() + np.abs(found["at_zero"]).max()))
    if DOCUMENTS[encoding]["invariants"]["toeplitz"]:
        assert found["spread"].max() < 1e-5 * scale
    elif encoding not in ("cope", "fox"):  # which count tokens, and these are 1 apart
        assert found["spread"].max() > 1e-4


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_alibis_curve_is_the_papers(asked: Asked, causal: bool, heads: int) -> None:
    x = np.random.default_rng(0).standard_normal((20, 48)).astype(np.float32)
    found = asked.one(AttentionInput(embeddings=x), "position_only", encoding="alibi", heads=heads, causal=causal)
    (reference,) = found["references"]
    assert reference["kind"] == "formula"
    assert reference["values"] == pytest.approx(found["curve"], abs=1e-5)
    assert found["without_content"] == pytest.approx(found["curve"], abs=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_t5s_curve_steps_at_borders_of_buckets_alone(asked: Asked, causal: bool) -> None:
    x = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    found = asked.one(AttentionInput(embeddings=x), "position_only", encoding="t5", causal=causal)
    (reference,) = found["references"]
    assert reference["kind"] == "steps"
    for side in (1, -1):
        at = side * found["distances"]
        curve = found["curve"][0][at >= 0][np.argsort(at[at >= 0])]
        changes = 1 + np.flatnonzero(np.diff(curve))
        if causal and side < 0:
            assert not len(changes)
        else:
            assert list(changes) == sorted(side * d for d in reference["distances"] if side * d > 0)


@pytest.mark.parametrize("encoding", [id for id in ENCODINGS if DOCUMENTS[id]["even_head_dim"]])
@given(
    seed=st.integers(0, 2**32 - 1),
    fraction=st.sampled_from([1.0, 0.5]),
    layout=st.sampled_from(["interleaved", "half"]),
)
@settings(max_examples=5)
def test_rotary_curves_stay_below_their_bound(
    asked: Asked, encoding: str, seed: int, fraction: float, layout: str
) -> None:
    x = np.random.default_rng(seed).standard_normal((64, 32)).astype(np.float32)
    scalars = {f"{encoding}.layout": layout}
    if encoding != "rope-proportional":
        scalars[f"{encoding}.rotary_fraction"] = str(fraction)
    found = asked.one(
        AttentionInput(embeddings=x),
        "position_only",
        encoding=encoding,
        scalars=scalars,
        causal=encoding in CAUSAL_ONLY or None,
    )
    if encoding == "xpos":  # which also shrinks what it turns
        assert found["references"] == []
        return
    (bound,) = found["references"]
    assert bound["kind"] == "upper bound"
    assert (found["curve"] <= bound["values"] + 1e-5).all()
    assert "not a prediction" in bound["label"]


def test_the_bound_is_roformers(asked: Asked) -> None:
    """(2/D) sum over j = 1 .. D/2 of |S_j|, S_j = sum over i < j of e^(i m theta_i), written out."""
    x = np.ones((50, 16), np.float32)
    (bound,) = asked.one(AttentionInput(embeddings=x), "position_only", encoding="rope", causal=True)["references"]
    thetas = [10000 ** (-2 * i / 16) for i in range(8)]
    for d in range(50):
        sums = [abs(sum(complex(math.cos(d * t), math.sin(d * t)) for t in thetas[:j])) for j in range(1, 9)]
        assert bound["relative"][d] == pytest.approx(sum(sums) / 8, rel=1e-5)
        assert bound["values"][0, d] == pytest.approx(2 / 4 * (sum(sums) - 8), rel=1e-4, abs=1e-4)


def test_a_cap_leaves_no_reference(asked: Asked) -> None:
    x = np.ones((8, 16), np.float32)
    found = asked.one(AttentionInput(embeddings=x), "position_only", encoding="alibi", scalars={"alibi.softcap": "3"})
    assert found["references"] == []


def test_pure_alibi_is_all_position(asked: Asked) -> None:
    x = np.zeros((64, 16), np.float32)
    for causal in (True, False):
        found = asked.one(AttentionInput(embeddings=x), "position_share", encoding="alibi", heads=4, causal=causal)
        assert found["share"] == pytest.approx([1] * 4, abs=1e-6)


def test_padding_has_no_part_in_the_share(asked: Asked) -> None:
    x = np.random.default_rng(0).standard_normal((24, 16)).astype(np.float32)
    mask = np.arange(24) < 16
    for encoding in ("alibi", "sinusoidal"):
        padded = asked.one(AttentionInput(embeddings=x, mask=mask), "position_share", encoding=encoding, heads=2)
        alone = asked.one(AttentionInput(embeddings=x[:16]), "position_share", encoding=encoding, heads=2)
        for name in ("share", "chance"):
            assert padded[name] == pytest.approx(alone[name], abs=1e-6)


def test_random_content_without_an_encoding_has_the_share_of_chance(asked: Asked) -> None:
    x = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    found = asked.one(AttentionInput(embeddings=x), "position_share", encoding="none", heads=16)
    assert np.mean(found["share"]) == pytest.approx(np.mean(found["chance"]), rel=0.15)


def test_equal_tokens_without_an_encoding_have_no_share(asked: Asked) -> None:
    found = asked.one(AttentionInput(embeddings=np.ones((8, 4), np.float32)), "position_share", encoding="none")
    assert np.isnan(found["share"]).all()
    assert "do not vary" in found["reason"]


def test_tiling_spreads_attention_without_an_encoding_over_copies(asked: Asked) -> None:
    """Each weight is split evenly among c copies, so entropy grows by ln c."""
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    found = asked.one(AttentionInput(embeddings=x), "length_sweep", encoding="none", lengths=(1.0, 4.0))["lengths"]
    one, four = (entry["entropy_norm"]["mean"][0] for entry in found)
    assert four * math.log(64) == pytest.approx(one * math.log(16) + math.log(4), abs=1e-5)


# Requests of every kind.


def test_an_answer_does_not_depend_on_how_it_is_cut(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 24, 16)).astype(np.float32)
    mask = rng.random((2, 24)) < 0.8
    mask[:, 0] = True
    input = AttentionInput(embeddings=x, mask=mask)
    options: dict[str, Any] = {"encoding": "t5", "compare": ("sinusoidal", "rope-dynamic"), "heads": 2}
    whole = asked(input, **options)
    monkeypatch.setattr(runs, "BLOCK", 5 * 2 * 2 * 24)
    cut = asked(input, **options)
    for a, b in zip(whole.results, cut.results, strict=True):
        assert list(numbers(a)) == pytest.approx(list(numbers(b)), abs=2e-5)


def test_a_batch_has_the_answers_of_its_inputs(asked: Asked) -> None:
    x = np.random.default_rng(0).standard_normal((2, 10, 16)).astype(np.float32)
    options: dict[str, Any] = {"encoding": "sinusoidal", "heads": 2, "offsets": (3.0,)}
    probes = ("position_share", "shift_gap", "order_gap", "length_sweep")
    together = asked(AttentionInput(embeddings=x), *probes, **options).results[0].probes
    for i in range(2):
        alone = asked(AttentionInput(embeddings=x[i]), *probes, **options).results[0].probes
        assert together["position_share"]["share"][i] == pytest.approx(alone["position_share"]["share"], abs=1e-6)
        for probe in ("order_gap",):
            assert together[probe]["jsd"]["mean"][i] == pytest.approx(alone[probe]["jsd"]["mean"], abs=1e-6)
        for name, entries in (("shift_gap", "offsets"), ("length_sweep", "lengths")):
            for one, other in zip(together[name][entries], alone[name][entries], strict=True):
                for metric in set(one) & {"jsd", "tv", "entropy_norm", "mean_distance_ratio", "sink_mass_4"}:
                    assert one[metric]["mean"][i] == pytest.approx(other[metric]["mean"], abs=1e-6)


def test_encodings_with_labels_have_parameters_of_their_own(asked: Asked) -> None:
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    bias = np.zeros((32, 1), np.float32)
    result = asked(
        AttentionInput(embeddings=x, parameters={"t5@flat.bias": bias}),
        "position_only",
        encoding="t5",
        compare=("t5@flat", "rope@long"),
        scalars={"rope@long.theta": "1e6"},
    )
    assert [one.name for one in result.results] == ["t5", "t5@flat", "rope@long"]
    curves = [one.probes["position_only"]["curve"] for one in result.results]
    assert np.abs(curves[0]).max() > 0.1
    assert (curves[1] == 0).all()
    assert result.results[2].parameters["theta"] == 1e6


def test_queries_and_keys_apart_have_what_can_be_said_of_them(asked: Asked) -> None:
    rng = np.random.default_rng(0)
    queries, keys = (rng.standard_normal((count, 16)).astype(np.float32) for count in (3, 12))
    input = AttentionInput(queries=queries, keys=keys, query_positions=np.arange(9.0, 12.0))
    probes = asked(input, encoding="alibi", causal=True).results[0].probes
    assert list(probes["position_only"]["distances"]) == list(range(12))
    assert probes["position_share"]["share"][0] > 0
    assert [one["jsd"]["mean"] for one in probes["shift_gap"]["offsets"]] == [[pytest.approx(0, abs=1e-9)]] * 4
    assert "causal" in probes["order_gap"]["reason"]
    assert all("not the same tokens" in one["reason"] for one in probes["length_sweep"]["lengths"])
    apart = asked(replace(input, query_positions=np.arange(20.5, 23.5)), "position_only", encoding="alibi")
    assert "no query is at the position of a key" in apart.results[0].probes["position_only"]["reason"]


def test_grouped_keys_are_probed_like_whole_ones(asked: Asked) -> None:
    rng = np.random.default_rng(0)
    queries, keys = rng.standard_normal((8, 32)).astype(np.float32), rng.standard_normal((8, 16)).astype(np.float32)
    grouped = asked(AttentionInput(queries=queries, keys=keys), encoding="sinusoidal", heads=4, key_heads=2)
    whole = keys.reshape(8, 2, 8).repeat(2, axis=1).reshape(8, 32)
    same = asked(
        AttentionInput(queries=queries, keys=whole), "position_share", "order_gap", encoding="sinusoidal", heads=4
    )
    for probe, name in (("position_share", "share"), ("order_gap", "jsd")):
        one, other = grouped.results[0].probes[probe][name], same.results[0].probes[probe][name]
        assert (one if name == "share" else one["mean"]) == pytest.approx(
            other if name == "share" else other["mean"], abs=1e-6
        )


@pytest.mark.parametrize(
    ("encoding", "changes", "probe", "words"),
    [
        ("alibi", {"causal": True}, "order_gap", "attention is causal"),
        ("shaw", {"offsets": (0.5,)}, "shift_gap", "whole positions only"),
        ("learned", {"offsets": (-1.0,)}, "shift_gap", "positions from 0 on"),
        ("fire", {"causal": True, "offsets": (-2.0,)}, "shift_gap", "positions from 0 on"),
        ("learned", {"table": 12, "offsets": (1.0,)}, "shift_gap", "12"),
        ("learned", {"table": 12, "lengths": (2.0,)}, "length_sweep", "12"),
        ("alibi", {"mask": True, "lengths": (1.0,)}, "length_sweep", "a mask came"),
        ("alibi", {"positions": "gaps", "lengths": (1.0,)}, "length_sweep", "not evenly spaced"),
        ("alibi", {"positions": "random"}, "position_only", "irregular"),
        ("alibi", {"positions": "random"}, "position_share", "irregular"),
        ("alibi", {"tokens": 2}, "order_gap", "2 tokens cannot"),
    ],
)
def test_what_cannot_be_asked_says_why(
    asked: Asked, encoding: str, changes: dict[str, Any], probe: str, words: str
) -> None:
    tokens = changes.pop("tokens", 12)
    rng = np.random.default_rng(0)
    input = AttentionInput(embeddings=rng.standard_normal((tokens, 8)).astype(np.float32))
    if changes.pop("mask", False):
        input.mask = np.ones(tokens)
    if rows := changes.pop("table", None):
        input.parameters = {"learned.table": noise(rows, 8).astype(np.float32)}
    match changes.pop("positions", None):
        case "gaps":
            input.positions = np.arange(tokens, dtype=np.float64) ** 2
        case "random":
            input.positions = rng.random(tokens)
    found = asked.one(input, probe, encoding=encoding, **changes)
    for entry in found.get("offsets", found.get("lengths", [found])):
        assert words in entry["reason"], entry
        assert "jsd" not in entry


def test_what_one_encoding_cannot_do_does_not_keep_another_from_it(asked: Asked) -> None:
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    result = asked(AttentionInput(embeddings=x), "shift_gap", encoding="rope", compare=("shaw",), offsets=(0.5, 1.0))
    rope, shaw = (one.probes["shift_gap"]["offsets"] for one in result.results)
    assert "jsd" in rope[0]
    assert "reason" in shaw[0]
    assert "jsd" in shaw[1]


def test_all_leaves_out_what_cannot_serve(asked: Asked) -> None:
    x = np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32)
    result = asked(AttentionInput(embeddings=x), encoding="rope", compare=("all",), causal=False)
    assert set(result.skipped) == CAUSAL_ONLY
    assert {one.encoding for one in result.results} == set(ENCODINGS) - CAUSAL_ONLY
    assert all(set(one.probes) == set(PROBES) for one in result.results)


@pytest.mark.parametrize(
    ("options", "error", "pointer"),
    [
        ({"encoding": "rop"}, UnknownName, "query:encoding"),
        ({"heads": 3}, InvalidInput, "query:heads"),
        ({"scalars": {"rope.theta": "x"}}, InvalidInput, "query:rope.theta"),
        ({"encoding": "alibi", "scalars": {"rope.theta": "1"}}, InvalidInput, "query:rope.theta"),
    ],
)
def test_a_request_that_is_wrong_is_refused(
    asked: Asked, options: dict[str, Any], error: type[Exception], pointer: str
) -> None:
    with pytest.raises(error) as refused:
        asked(AttentionInput(embeddings=np.ones((4, 8), np.float32)), **options)
    assert getattr(refused.value, "pointer", None) == pointer


@pytest.mark.parametrize("probe", PROBES)
def test_a_mask_that_does_not_fit_is_refused_and_no_reason(asked: Asked, probe: str) -> None:
    with pytest.raises(InvalidInput, match="the mask has shape"):
        asked(AttentionInput(embeddings=np.ones((4, 8), np.float32), mask=np.ones(5)), probe)


def test_text_is_refused_by_models_without_a_tokenizer(asked: Asked) -> None:
    with pytest.raises(InvalidInput) as refused:
        asked(AttentionInput(text="a"), model="identity")
    assert refused.value.pointer == "/text"


def test_a_model_with_projections_is_probed_through_them_and_takes_text(asked: Asked, tmp_path: Path) -> None:
    torch.manual_seed(0)
    family = Family("small", Linear(12, 3, 4, bias=True).requires_grad_(False), sizes=(3, 4, 12))
    (alibi,) = (encoding for encoding in MODELS if encoding.card.id == "alibi")
    export_encoding(family, alibi, tmp_path)
    table = torch.randn(256, 12)
    write_text(tmp_path / "small", byte_tokenizer(), table)
    scoring = Scoring(Catalogue.read([tmp_path]), asked.scoring.engine, asked.scoring.tables)
    able = Asked(Probes(scoring, 1000), scoring, asked.runner)

    by_text = able(AttentionInput(text="to be or not to be"), "position_only", "position_share", model="small")
    rows = table.numpy()[list(b"to be or not to be")]
    by_rows = able(AttentionInput(embeddings=rows), "position_only", "position_share", model="small")
    assert by_text.tokens is not None
    assert len(by_text.tokens) == by_text.keys == 18
    assert list(numbers(by_text.results[0])) == list(numbers(by_rows.results[0]))
    found = by_text.results[0].probes["position_only"]
    assert found["curve"] == pytest.approx(-slopes(3)[:, None] * np.abs(found["distances"]), abs=1e-5)
    assert found["references"] == []  # projections stand before what position does


def test_work_beyond_the_limit_is_refused_before_it_is_done(asked: Asked) -> None:
    """2^22 cells: 4 lengths of 256 tokens are 21.25 x 65,536 = 1.4 million."""
    x = AttentionInput(embeddings=np.ones((256, 8), np.float32))
    with pytest.raises(PayloadTooLarge, match=r"length_sweep 5,570,560\b.*fewer") as refused:
        asked(x, "length_sweep", heads=4)
    assert refused.value.extra["limit"] == 1 << 22
    asked(x, "length_sweep", heads=4, lengths=(0.5, 1.0, 1.5))


def test_a_query_of_too_many_cells_is_refused(asked: Asked) -> None:
    queries, keys = np.ones((1, 16), np.float32), np.ones((100_000, 16), np.float32)
    with pytest.raises(PayloadTooLarge, match="one query"):
        asked(AttentionInput(queries=queries, keys=keys), heads=8, lengths=(2.0,))


def test_an_answer_of_too_many_numbers_is_refused(asked: Asked) -> None:
    with pytest.raises(PayloadTooLarge, match="about"):
        asked(
            AttentionInput(queries=np.ones((1, 8), np.float32), keys=np.ones((30_000, 8), np.float32)), "position_only"
        )


def test_time_is_kept(asked: Asked) -> None:
    x = AttentionInput(embeddings=np.ones((8, 8), np.float32))
    with pytest.raises(DeadlineExceeded):
        asked(x, deadline=0.0)
    timings = Timings()
    result = asked.runner.run(asked.probes.answer(x, ProbeOptions(), timings))
    assert result.timings is timings
    assert timings.compute > 0
    assert timings.postprocess > 0
