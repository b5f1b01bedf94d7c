"""FIRE (Li et al. 2024), equation 12. No library has it."""

from __future__ import annotations

import math

from tests.oracles.answer import Oracle
from tests.oracles.case import anything, log_uniform
from tests.oracles.loop import Pair, dot, loop


def formula(pair: Pair) -> dict[str, float]:
    """c q.k + f(psi(m - n) / psi(max(m, L))), psi(x) = ln(c x + 1), f an MLP of one hidden layer with a relu."""
    case = pair.case

    def psi(x: float) -> float:
        return math.log(case.number("c") * x + 1)

    x = psi(abs(pair.m - pair.n)) / psi(max(pair.m, case.number("L")))
    hidden = [max(w * x + b, 0.0) for w, b in zip(case.array("w_1"), case.array("b_1"), strict=True)]
    f = math.fsum(w * y for w, y in zip(case.array("w_2")[pair.head], hidden, strict=True))
    return {"content": pair.c * dot(pair.q, pair.k), "bias": f + float(case.array("b_2")[pair.head])}


ORACLES = (
    Oracle(
        "formula, pair by pair",
        loop(formula),
        anything({"c": log_uniform(0.01, 10), "L": log_uniform(1, 600)}, "future keys"),
        200,
    ),
)
