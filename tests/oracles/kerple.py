"""KERPLE (Chi et al. 2022), equation 3, with the released code's bounds on its parameters. No library has it."""

from __future__ import annotations

import math

import numpy as np

from tests.oracles.answer import Oracle
from tests.oracles.case import Draw, Sizes, anything
from tests.oracles.loop import Pair, dot, loop


def formula(pair: Pair) -> dict[str, float]:
    """c q.k - p ln(1 + a |m - n|), or - a |m - n|^p; p and a at least 0.01, an exponent at most 2."""
    distance = abs(pair.m - pair.n)
    p, a = (max(float(pair.case.array(name)[pair.head]), 0.01) for name in ("p", "a"))
    if pair.case.parameters["kernel"] == "logarithmic":
        bias = -p * math.log(1 + a * distance)
    else:
        bias = -a * distance ** min(p, 2)
    return {"content": pair.c * dot(pair.q, pair.k), "bias": bias}


def _around(low: float, high: float) -> Draw:
    def draw(rng: np.random.Generator, sizes: Sizes) -> np.ndarray:
        return rng.uniform(low, high, size=sizes.heads)

    return draw


ORACLES = (
    Oracle(
        "formula, pair by pair",
        loop(formula),
        anything({"p": _around(-0.2, 3), "a": _around(-0.2, 2)}, "future keys, either mask, both kernels"),
        200,
    ),
)
