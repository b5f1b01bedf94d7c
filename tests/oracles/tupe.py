"""TUPE, equations 8 to 11 of Ke et al. 2021. No library has it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.oracles import t5
from tests.oracles.answer import Answer, Oracle
from tests.oracles.case import Case, Sizes, anything
from tests.oracles.loop import Pair, Vector, dot, loop


def formula(case: Case) -> Answer:
    """[q.k + (U_q p^_m).(U_k p^_n)] / sqrt(2 d_h) + b_h[bucket(n - m)].

    With the reset, [CLS] at position 0 has theta_1 in its row, theta_2 in its column, instead of both positional terms.
    """
    u_q, u_k = _projected(case, "u_q"), _projected(case, "u_k")

    def terms(pair: Pair) -> dict[str, float]:
        scale = pair.scale(1 / math.sqrt(2 * len(pair.q)))
        content = scale * dot(pair.q, pair.k)
        if case.parameters["reset_cls"] and pair.m == 0:
            return {"content": content, "position": float(case.array("theta_1")[pair.head]), "bias": 0.0}
        if case.parameters["reset_cls"] and pair.n == 0:
            return {"content": content, "position": float(case.array("theta_2")[pair.head]), "bias": 0.0}
        return {
            "content": content,
            "position": scale * dot(u_q(pair.head, pair.m), u_k(pair.head, pair.n)),
            "bias": t5.formula(pair)["bias"],
        }

    return loop(terms)(case)


def _projected(case: Case, name: str) -> Callable[[int, float], Vector]:
    """U p^ by head and position, each computed once."""
    known: dict[tuple[int, float], Vector] = {}

    def projected(head: int, position: float) -> Vector:
        if (head, position) not in known:
            known[head, position] = case.array(name)[head] @ _normed(case, position)
        return known[head, position]

    return projected


def _normed(case: Case, position: float) -> Vector:
    row = case.array("table")[int(position)]
    mean = math.fsum(row) / len(row)
    variance = math.fsum((x - mean) ** 2 for x in row) / len(row)
    normed: Vector = (row - mean) / math.sqrt(variance + 1e-5) * case.array("norm_weight") + case.array("norm_bias")
    return normed


def _small(rng: np.random.Generator, sizes: Sizes) -> np.ndarray:
    """Noise that keeps the projected positions of the size of the content, whatever the width."""
    return rng.normal(size=(sizes.heads, sizes.head_dim, sizes.width)) / math.sqrt(sizes.width)


ORACLES = (
    Oracle(
        "formula, pair by pair, integer buckets",
        formula,
        anything(
            {**t5.WIDE, **dict.fromkeys(("u_q", "u_k"), _small)},
            "future keys, either mask, with and without the reset",
            head_dims=(1, 2, 3, 4, 6, 8, 16),
        ),
        200,
    ),
)
