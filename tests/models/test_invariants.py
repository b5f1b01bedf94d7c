"""What provably holds for exported encodings, and fails for those whose cards do not claim it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.encodings import ENCODINGS
from tests.models.questions import noise, question
from tests.oracles import ORACLES
from tests.oracles.answer import Answer, Pairs, softmax
from tests.oracles.case import Case, draw
from tests.oracles.served import served

EXACT = 1e-5  # relative to the largest score, float32
DIFFERENT = 1e-3
IDS = [encoding.card.id for encoding in ENCODINGS]
# Seeds rather than structures: a case is cheap to draw anew from its seed, and the same on every machine.
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=15, deadline=None, derandomize=True, database=None)


def claims(invariant: str, claimed: bool = True) -> list[str]:
    return [e.card.id for e in ENCODINGS if getattr(e.card.invariants, invariant) is claimed]


def a_case(encoding: str, seed: int, **changes: Any) -> Case:
    """Inside the domain of the encoding's formula."""
    domain = replace(ORACLES[encoding][0].domain, **changes)
    return draw(served(encoding).about, domain, seed)


def answer(case: Case) -> Answer:
    return served(case.encoding).answer(case)


def distance(a: Pairs, b: Pairs) -> float:
    """The largest difference, relative to the largest score."""
    return float(np.abs(a - b).max()) / max(float(np.abs(a).max()), 1e-30)


def found(difference: Callable[[int], float], tries: int = 40) -> bool:
    """Whether some seed gives a counterexample."""
    return any(difference(seed) > DIFFERENT for seed in range(tries))


# Every encoding.


@pytest.mark.parametrize("encoding", IDS)
@given(seed=seeds)
@few
def test_rows_sum_to_one_over_the_keys_they_see_and_hidden_keys_weigh_exactly_nothing(encoding: str, seed: int) -> None:
    case = a_case(encoding, seed)
    got = answer(case)
    visible = np.broadcast_to(case.visible, got.weights.shape)
    assert (got.weights >= 0).all()
    assert (got.weights[~visible] == 0).all()
    rows, seen = got.weights.sum(-1), visible.any(-1)
    assert (rows[~seen] == 0).all()
    if case.given("sinks") is None:
        assert rows[seen] == pytest.approx(1, abs=1e-5)
    else:
        assert (rows[seen] < 1 + 1e-5).all()


@pytest.mark.parametrize("encoding", IDS)
@given(seed=seeds)
@few
def test_weights_are_the_softmax_of_the_masked_scores(encoding: str, seed: int) -> None:
    case = a_case(encoding, seed)
    got = answer(case)
    assert np.isfinite(got.scores).all()
    assert np.abs(got.weights - softmax(case, got.scores)).max() < 1e-6


@pytest.mark.parametrize("encoding", IDS)
@given(seed=seeds)
@few
def test_terms_sum_to_scores(encoding: str, seed: int) -> None:
    case = a_case(encoding, seed)
    got = answer(case.with_parameters(softcap=None))
    largest = max(np.abs(term).max() for term in [got.scores, *got.terms.values()])
    assert np.abs(sum(got.terms.values()) - got.scores).max() <= EXACT * largest


@pytest.mark.parametrize("encoding", IDS)
@given(seed=seeds)
@few
def test_a_members_answer_does_not_depend_on_its_neighbours_in_the_batch(encoding: str, seed: int) -> None:
    case = a_case(encoding, seed)
    together = answer(case)
    visible = np.broadcast_to(case.visible, (len(case.queries), *case.visible.shape[1:]))
    for b in range(len(case.queries)):
        alone = replace(case, queries=case.queries[b : b + 1], keys=case.keys[b : b + 1], visible=visible[b : b + 1])
        assert distance(answer(alone).scores[0], together.scores[b]) < 1e-6
        assert np.abs(answer(alone).weights[0] - together.weights[b]).max() < 1e-6


@pytest.mark.parametrize("encoding", IDS)
@given(seed=seeds)
@few
def test_rows_asked_for_alone_are_the_rows_of_the_whole(encoding: str, seed: int) -> None:
    case = a_case(encoding, seed, self_attention=True)
    whole = answer(case)
    row = int(np.argmax(case.m))  # whose position is the request's length, for encodings that ask for it
    alone = answer(
        replace(
            case,
            queries=case.queries[:, row : row + 1],
            m=case.m[row : row + 1],
            visible=case.visible[:, :, row : row + 1],
        )
    )
    assert distance(alone.scores[:, :, 0], whole.scores[:, :, row]) < EXACT


@pytest.mark.parametrize("encoding", [e for e in IDS if e not in ("cope", "fox")])  # whose gates count masked keys too
@given(seed=seeds)
@few
def test_nothing_in_a_hidden_key_reaches_the_weights(encoding: str, seed: int) -> None:
    case = a_case(encoding, seed)
    hidden = case.keys.shape[1] - 1
    visible = case.visible.copy()
    visible[..., hidden] = False
    keys = case.keys.copy()
    keys[:, hidden] = 1e15
    quiet, loud = answer(replace(case, visible=visible)), answer(replace(case, visible=visible, keys=keys))
    assert (loud.weights[..., hidden] == 0).all()
    assert np.abs(loud.weights - quiet.weights).max() < 1e-6
    assert np.abs(loud.output - quiet.output).max() < 1e-5 * max(1.0, np.abs(quiet.output).max())


@pytest.mark.parametrize("encoding", IDS)
@given(seed=seeds, a=st.sampled_from([0.5, 2.0, 4.0]))
@few
def test_content_terms_grow_with_the_square_of_the_embeddings_and_biases_not_at_all(
    encoding: str, seed: int, a: float
) -> None:
    case = a_case(encoding, seed)
    one, scaled = answer(case).terms, answer(replace(case, queries=a * case.queries, keys=a * case.keys)).terms
    content = one.keys() & {"content", "content-content", "fast", "medium", "slow", "unrotated"}
    bias = one.keys() & {"bias", "bias-position", "position-position"}
    assert content
    for name in content:
        assert scaled[name] == pytest.approx(a**2 * one[name], rel=1e-6, abs=1e-30), name
    for name in bias:
        assert (scaled[name] == one[name]).all(), name


@pytest.mark.parametrize("encoding", IDS)
def test_scores_are_finite_at_both_ends_of_every_numbers_range(encoding: str) -> None:
    about = served(encoding).about
    positions = np.array([0.0, 1.0, 2.0, 7.0]) if about["positions"]["rows_of"] else np.array([0.0, 1.0, 50.0, 4000.0])
    for parameter in about["parameters"]:
        if parameter["kind"] in ("number", "integer"):
            for end in (parameter["minimum"], parameter["maximum"]):
                given = {parameter["name"]: int(end) if parameter["kind"] == "integer" else float(end)}
                got = answer(question(encoding, noise(1, 4, 3, 8), positions).with_parameters(**given))
                for values in (got.scores, got.weights, got.output, *got.terms.values()):
                    assert np.isfinite(values).all(), (parameter["name"], end)


# What cards claim.


def shifted(encoding: str, seed: int, by: float) -> float:
    case = a_case(encoding, seed)
    if (table := served(encoding).about["positions"]["rows_of"]) is not None:
        case = case.with_parameters(**{table: 0.5 * noise(int(max(case.m.max(), case.n.max()) + by) + 1, case.width)})
    return distance(answer(case).scores, answer(replace(case, m=case.m + by, n=case.n + by)).scores)


@pytest.mark.parametrize("encoding", claims("shift"))
@given(seed=seeds, by=st.sampled_from([1.0, 17.0, 1000.0, 1e6]))
@few
def test_scores_do_not_change_when_all_positions_shift(encoding: str, seed: int, by: float) -> None:
    assert shifted(encoding, seed, by) < EXACT


@pytest.mark.parametrize("encoding", claims("shift", False))
def test_scores_change_when_all_positions_shift(encoding: str) -> None:
    assert found(lambda seed: shifted(encoding, seed, 100))


def appended(encoding: str, seed: int) -> float:
    """How much a causal prefix moves when tokens follow it."""
    case = a_case(encoding, seed, self_attention=True, positions=("from 0",), causal=True, longest=24)
    case = replace(case, visible=(case.n[None, :] <= case.m[:, None])[None, None])
    tokens = case.keys.shape[1]
    kept = max(1, tokens // 3)
    start = replace(
        case,
        queries=case.queries[:, :kept],
        keys=case.keys[:, :kept],
        m=case.m[:kept],
        n=case.n[:kept],
        visible=case.visible[:, :, :kept, :kept],
    )
    short, long = answer(start), answer(case)
    return max(
        distance(short.scores, long.scores[:, :, :kept, :kept]),
        float(np.abs(short.weights - long.weights[:, :, :kept, :kept]).max()),
    )


@pytest.mark.parametrize("encoding", claims("prefix"))
@given(seed=seeds)
@few
def test_a_causal_prefix_does_not_change_when_tokens_follow_it(encoding: str, seed: int) -> None:
    assert appended(encoding, seed) < EXACT


@pytest.mark.parametrize("encoding", claims("prefix", False))
def test_a_causal_prefix_changes_when_tokens_follow_it(encoding: str) -> None:
    assert found(lambda seed: appended(encoding, seed))


def permuted(encoding: str, seed: int) -> float:
    """How far scores of permuted tokens, positions kept in place, are from permuted scores."""
    case = a_case(encoding, seed, self_attention=True)
    order = np.random.default_rng(seed).permutation(len(case.n))
    moved = answer(replace(case, queries=case.queries[:, order], keys=case.keys[:, order])).scores
    return distance(answer(case).scores[:, :, order][:, :, :, order], moved)


@pytest.mark.parametrize("encoding", claims("permutation"))
@given(seed=seeds)
@few
def test_permuting_tokens_permutes_scores(encoding: str, seed: int) -> None:
    assert permuted(encoding, seed) < EXACT


@pytest.mark.parametrize("encoding", claims("permutation", False))
def test_permuting_tokens_does_more_than_permute_scores(encoding: str) -> None:
    assert found(lambda seed: permuted(encoding, seed))


def spread_by_distance(encoding: str, seed: int) -> float:
    """The largest difference between scores of one distance m - n, when all tokens are equal."""
    case = a_case(encoding, seed, self_attention=True, positions=("from 0", "scattered"))
    x = np.broadcast_to(case.keys[:1, :1], case.keys.shape).copy()
    scores = answer(replace(case, queries=x, keys=x)).scores[0]
    r = case.m[:, None] - case.n[None, :]
    same = [scores[:, r == distance] for distance in np.unique(r)]
    return max(float(np.ptp(group, axis=-1).max()) for group in same) / float(np.abs(scores).max())


@pytest.mark.parametrize("encoding", claims("toeplitz"))
@given(seed=seeds)
@few
def test_equal_tokens_have_scores_of_the_distance_alone(encoding: str, seed: int) -> None:
    assert spread_by_distance(encoding, seed) < EXACT


@pytest.mark.parametrize("encoding", claims("toeplitz", False))
def test_equal_tokens_have_scores_of_more_than_the_distance(encoding: str) -> None:
    assert found(lambda seed: spread_by_distance(encoding, seed))


def off_diagonal_content(encoding: str, seed: int) -> float:
    """How far S(m, m) is from c q.k."""
    case = a_case(encoding, seed, self_attention=True).with_parameters(softcap=None)
    got = np.diagonal(answer(case).scores, axis1=-2, axis2=-1)
    c = case.given("scale") or 1 / math.sqrt(case.head_dim)
    plain = c * np.einsum("bthd,bthd->bht", case.queries, case.keys)
    return distance(plain, got)


@pytest.mark.parametrize("encoding", claims("diagonal"))
@given(seed=seeds)
@few
def test_a_token_scores_itself_by_content_alone(encoding: str, seed: int) -> None:
    assert off_diagonal_content(encoding, seed) < EXACT


@pytest.mark.parametrize("encoding", claims("diagonal", False))
def test_a_token_scores_itself_by_more_than_content(encoding: str) -> None:
    assert found(lambda seed: off_diagonal_content(encoding, seed))


def far_spread(encoding: str, seed: int) -> float:
    """The largest difference between scores of equal tokens 600 and more apart, to one side."""
    near, far = a_case(encoding, seed, self_attention=True, positions=("from 0",)), 600.0
    x = np.broadcast_to(near.keys[:1, :1], near.keys.shape).copy()
    spread = 0.0
    for m, n in ((near.m + far, near.n), (near.m, near.n + far)):
        case = replace(near, queries=x, keys=x, m=m, n=n)
        if (table := served(encoding).about["positions"]["rows_of"]) is not None:
            case = case.with_parameters(**{table: 0.5 * noise(int(far) + len(n), case.width)})
        scores = answer(case).scores
        spread = max(spread, float(np.ptp(scores, axis=(-2, -1)).max()) / float(np.abs(scores).max()))
    return spread


@pytest.mark.parametrize("encoding", claims("far_share"))
@given(seed=seeds)
@few
def test_far_distances_share_one_bias(encoding: str, seed: int) -> None:
    assert far_spread(encoding, seed) < EXACT


@pytest.mark.parametrize("encoding", [e for e in claims("far_share", False) if e != "none"])  # which has no bias
def test_far_distances_differ(encoding: str) -> None:
    assert found(lambda seed: far_spread(encoding, seed))


# The rotary family.

ROTARY = [e.card.id for e in ENCODINGS if e.card.even_head_dim]
ROPE = ORACLES["rope"][0].domain
# Dynamic scaling is idle up to L, whatever its factor; beyond L even a factor of 1 stretches, in the released formula.
NEUTRAL: dict[str, dict[str, Any]] = {
    "rope-linear": {"factor": 1.0},
    "rope-ntk": {"factor": 1.0},
    "rope-dynamic": {"factor": 4.0, "original_length": 100_000},
    "rope-yarn": {"factor": 1.0},
    "rope-llama3": {"factor": 1.0},
    "rope-longrope": {"factor": 1.0, "short_factor": [1.0], "long_factor": [1.0]},
    "rope-proportional": {"proportion": 1.0},
}


@pytest.mark.parametrize("encoding", NEUTRAL)
@given(seed=seeds)
@few
def test_scaling_that_scales_nothing_is_plain_rope(encoding: str, seed: int) -> None:
    plain = draw(served("rope").about, replace(ROPE, parameters={**ROPE.parameters, "rotary_fraction": 1.0}), seed)
    defaults = question(encoding, plain.keys).parameters
    shared = {name: value for name, value in plain.parameters.items() if name in defaults}
    scaled = replace(plain, encoding=encoding, parameters={**defaults, **shared, **NEUTRAL[encoding]})
    assert distance(answer(plain).scores, answer(scaled).scores) < 1e-6


@pytest.mark.parametrize("encoding", [e for e in ROTARY if e != "xpos"])
@given(seed=seeds)
@few
def test_rotation_keeps_norms_but_for_the_attention_factor(encoding: str, seed: int) -> None:
    tables = served(encoding).tables(a_case(encoding, seed))
    square = np.where(tables["table.band"] == 3, 1.0, tables["table.attention_factor"] ** 2)
    for side in ("query", "key"):
        cos, sin = (tables[f"table.{side}_{wave}"].astype(np.float64) for wave in ("cos", "sin"))
        assert cos**2 + sin**2 == pytest.approx(np.broadcast_to(square, cos.shape), rel=1e-6)


@given(seed=seeds, m=st.integers(0, 10**6), n=st.integers(0, 10**6))
@few
def test_turning_by_m_and_then_by_n_is_turning_by_their_sum(seed: int, m: int, n: int) -> None:
    case = a_case("rope", seed)
    at = np.array([m, n, m + n], np.float64)
    tables = served("rope").tables(replace(case, m=at, n=at))
    (c_m, c_n, c), (s_m, s_n, s) = (tables[f"table.query_{wave}"].astype(np.float64) for wave in ("cos", "sin"))
    assert c == pytest.approx(c_m * c_n - s_m * s_n, abs=1e-6)
    assert s == pytest.approx(s_m * c_n + c_m * s_n, abs=1e-6)


@given(seed=seeds, r=st.floats(0, 1e5))
@few
def test_rope_scores_stay_below_the_bound_that_decays(seed: int, r: float) -> None:
    """Su et al., section 3.4.3: |sum_i h_i e^{i r theta_i}| <= max_i |h_{i+1} - h_i| sum_i |S_{i+1}|."""
    x = noise(1, 2, 1, 32, seed=seed)
    case = question("rope", x[:, :1], np.array([r]), keys=x[:, 1:], key_positions=np.array([0.0]))
    q, k = (side[0, 0, 0, 0::2] + 1j * side[0, 0, 0, 1::2] for side in (case.queries, case.keys))
    h = np.append(q * k.conj(), 0)
    partial_sums = np.cumsum(np.exp(1j * r * 10000.0 ** (-np.arange(16) / 16)))
    bound = np.abs(np.diff(h)).max() * np.abs(partial_sums).sum() / math.sqrt(32)
    assert abs(answer(case).scores.item()) <= bound * (1 + 1e-6)


def test_rope_scores_are_not_monotone_in_distance() -> None:
    x = np.ones((1, 1, 1, 32))
    case = question("rope", x, np.array([0.0]), keys=np.ones((1, 400, 1, 32)), key_positions=-np.arange(400.0))
    scores = answer(case).scores[0, 0, 0]
    assert (np.diff(scores) > 0.01).any()
    assert (np.diff(scores) < -0.01).any()
