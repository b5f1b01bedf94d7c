"""Numbers that anyone who knows the paper can check by hand, read off the exported graphs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.models.questions import noise, question
from tests.oracles.alibi import slopes
from tests.oracles.served import served
from tests.oracles.t5 import bucket


def test_rope_turns_the_first_pair_by_a_radian_and_the_last_of_64_components_by_1_33e_4() -> None:
    theta = _frequencies("rope", 64)
    assert theta[0] == 1
    assert theta[31] == pytest.approx(1.33352e-4, rel=1e-5)


def test_half_layout_has_the_same_frequencies_in_another_order() -> None:
    interleaved, half = (
        served("rope").tables(question("rope", noise(1, 1, 1, 8), layout=layout))["table.theta"]
        for layout in ("interleaved", "half")
    )
    assert interleaved.tolist() == [t for t in _frequencies("rope", 8) for _ in range(2)]
    assert half.tolist() == [*_frequencies("rope", 8)] * 2


def test_ntk_with_factor_4_over_16_components_has_base_10000_times_4_to_the_16_14ths() -> None:
    base = 10000 * 4 ** (16 / 14)
    assert _frequencies("rope-ntk", 16, factor=4.0) == pytest.approx([base ** (-i / 8) for i in range(8)], rel=1e-12)


@pytest.mark.parametrize(("factor", "a"), [(1.0, 1.0), (2.0, 1.069315), (4.0, 1.138629), (16.0, 1.277259)])
def test_yarn_multiplies_queries_and_keys_by_a(factor: float, a: float) -> None:
    case = question("rope-yarn", noise(1, 2, 1, 8), factor=factor)
    assert served("rope-yarn").tables(case)["table.attention_factor"] == pytest.approx(a, abs=5e-7)
    plain = served("none").answer(question("none", case.queries)).scores
    diagonal = np.diagonal(served("rope-yarn").answer(case).scores[0, 0])
    assert diagonal == pytest.approx(np.diagonal(plain[0, 0]) * a**2, rel=1e-5)


def test_llama3_keeps_29_pairs_blends_6_and_divides_29() -> None:
    scaled = _frequencies("rope-llama3", 128, factor=8.0, original_length=8192, theta=500_000.0)
    plain = _frequencies("rope", 128, theta=500_000.0)
    kept = scaled == plain
    divided = np.isclose(scaled, plain / 8, rtol=1e-12, atol=0)
    assert (kept.sum(), (~kept & ~divided).sum(), divided.sum()) == (29, 6, 29)


@pytest.mark.parametrize(
    ("heads", "published"),
    [
        (1, [2**-8]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (8, [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]),
        (12, [2 ** -(h + 1) for h in range(8)] + [2 ** -(h + 0.5) for h in range(4)]),
    ],
)
def test_alibi_slopes(heads: int, published: list[float]) -> None:
    case = question("alibi", noise(1, 2, heads, 2), causal=True)
    bias = served("alibi").answer(case).terms["bias"][0]
    assert bias[:, 1, 0] == pytest.approx([-s for s in published], rel=1e-7)
    assert bias[:, 0, 1] == pytest.approx(published, rel=1e-7), "signed under a causal mask"
    both = served("alibi").answer(question("alibi", case.queries)).terms["bias"][0]
    assert both[:, 0, 1] == pytest.approx([-s for s in published], rel=1e-7), "absolute without one"


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0, 0), (-7, 7), (-8, 8), (-16, 10), (-32, 12), (-64, 14), (-91, 15), (1, 17), (8, 24), (91, 31), (-10_000, 15)],
)
def test_t5_buckets_in_both_directions(offset: int, expected: int) -> None:
    assert _t5_bucket(offset, causal=False) == expected


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, 0), (-15, 15), (-16, 16), (-19, 17), (-113, 31), (5, 0), (-10_000, 31)]
)
def test_t5_buckets_under_a_causal_mask(offset: int, expected: int) -> None:
    assert _t5_bucket(offset, causal=True) == expected


@pytest.mark.parametrize("heads", [*range(9, 40), 63, 64, 65, 96, 128, 130])
def test_alibi_slopes_of_many_heads_are_the_released_ones(heads: int) -> None:
    bias = served("alibi").answer(question("alibi", np.ones((1, 2, heads, 1)), causal=True)).terms["bias"]
    assert bias[0, :, 1, 0] == pytest.approx([-slope for slope in slopes(heads)], rel=2e-7)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(4, 8), (8, 8), (12, 100), (32, 16), (32, 128), (32, 256), (64, 10**9), (256, 1000)]
)
def test_t5_buckets_change_exactly_where_whole_numbers_put_the_border(
    buckets: int, max_distance: int, causal: bool
) -> None:
    distances = np.unique(
        [*range(600), *(2**k + o for k in range(9, 30) for o in (-1, 0, 1)), *(10**k for k in range(10))]
    )
    case = question(
        "t5",
        np.zeros((1, 1, 1, 1)),
        np.array([0.0]),
        keys=np.zeros((1, len(distances), 1, 1)),
        key_positions=-distances.astype(np.float64),
        causal=causal,
        bias=np.arange(float(buckets))[:, None],
        max_distance=max_distance,
    )
    exact = buckets // (2 if causal else 4)
    expected = [bucket(-int(distance), buckets, max(max_distance, exact + 1), causal) for distance in distances]
    assert served("t5").answer(case).terms["bias"][0, 0, 0].tolist() == expected


def test_sinusoid_of_position_0_alternates_0_and_1_and_every_one_has_squared_norm_half_the_width() -> None:
    x = np.zeros((1, 5, 2, 4))
    tables = served("sinusoidal").tables(question("sinusoidal", x, np.array([0.0, 1.0, 7.5, 100.0, 1e6])))
    p = tables["table.query_vectors"].transpose(1, 0, 2).reshape(5, 8)
    assert p[0] == pytest.approx([0, 1] * 4, abs=1e-7)
    assert (p.astype(np.float64) ** 2).sum(-1) == pytest.approx([4] * 5, rel=1e-6)
    assert p[1, :2] == pytest.approx([math.sin(1), math.cos(1)], rel=1e-6)


def test_integer_positions_make_long_rows_one_hot() -> None:
    answer = served("integer").answer(question("integer", noise(1, 64, 1, 16)))
    assert (answer.weights[0, 0, 8:].max(-1) > 0.99).all()


def test_shaw_reads_row_0_for_the_farthest_past_key_and_the_last_for_the_farthest_future_key() -> None:
    rows = np.arange(5.0)[:, None] * np.ones((1, 2))
    case = question("shaw", np.ones((1, 9, 1, 2)), keys=np.zeros((1, 9, 1, 2)))
    answer = served("shaw").answer(case.with_parameters(keys=rows, values=np.zeros((1, 2))))
    row_of = answer.scores[0, 0] * math.sqrt(2) / 2
    assert row_of[4] == pytest.approx([0, 0, 0, 1, 2, 3, 4, 4, 4], abs=1e-6)


def test_deberta_reads_the_released_or_the_papers_distance_in_its_third_term() -> None:
    k, x = 3, np.ones((1, 9, 1, 1))
    parameters: dict[str, Any] = {
        "table": np.arange(6.0)[:, None],
        "w_kr": np.ones((1, 1, 1)),
        "w_qr": np.ones((1, 1, 1)),
    }
    delta = [5, 5, 5, 4, 3, 2, 1, 0, 0]  # of the query at 4 with keys 0 .. 8: clip(4 - n, -3, 2) + 3
    for index, third in (("released", delta), ("paper", [0, 0, 1, 2, 3, 4, 5, 5, 5])):
        answer = served("deberta").answer(question("deberta", x, p2c_index=index, **parameters))
        assert answer.terms["content-position"][0, 0, 4] * math.sqrt(k) == pytest.approx(delta, abs=1e-6)
        assert answer.terms["position-content"][0, 0, 4] * math.sqrt(k) == pytest.approx(third, abs=1e-6)


def test_scores_are_divided_by_the_root_of_the_number_of_terms_they_sum() -> None:
    x = np.ones((1, 1, 1, 16))
    divisors = {"none": 1, "t5": 1 / 16, "tupe": 2, "deberta": 3}
    for encoding, terms in divisors.items():
        content = served(encoding).answer(question(encoding, x)).terms
        first = content.get("content", content.get("content-content"))
        assert first is not None
        assert first.item() == pytest.approx(16 / math.sqrt(16 * terms), rel=1e-6), encoding


def _frequencies(encoding: str, head_dim: int, **parameters: Any) -> np.ndarray:
    """theta of each pair, from the interleaved layout."""
    case = question(encoding, noise(1, 1, 1, head_dim), layout="interleaved", **parameters)
    theta: np.ndarray = served(encoding).tables(case)["table.theta"]
    assert (theta[::2] == theta[1::2]).all()
    return theta[::2]


def _t5_bucket(offset: int, causal: bool) -> float:
    """A table whose rows are their own numbers gives the bucket away."""
    x = np.zeros((1, 1, 1, 2))
    case = question("t5", x, np.array([0.0]), keys=x, key_positions=np.array([float(offset)]), causal=causal)
    return float(served("t5").answer(case.with_parameters(bias=np.arange(32.0)[:, None])).terms["bias"].item())


def test_a_share_that_rounding_left_a_hair_short_turns_whole_pairs() -> None:
    """6/94 of 94 components is 5.999... in float64: three pairs, not two."""
    assert 6 / 94 * 94 / 2 < 3
    theta = served("rope").tables(question("rope", noise(1, 1, 1, 94), rotary_fraction=6 / 94))["table.theta"]
    assert (theta > 0).sum() == 6
