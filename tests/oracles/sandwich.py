"""Sandwich (Chi et al. 2022), section 5. No library has it."""

from __future__ import annotations

import math

from tests.oracles.answer import Oracle
from tests.oracles.case import anything
from tests.oracles.loop import Pair, dot, loop


def formula(pair: Pair) -> dict[str, float]:
    """c q.k + (sum_{i=1}^{w/2} cos((m - n) / 10000^(2i/w)) - w/2) / (8h/H), h from 1 to H"""
    w, r, h = 2 * (int(pair.case.number("w")) // 2), pair.m - pair.n, pair.head + 1
    waves = math.fsum(math.cos(r / 10000 ** (2 * i / w)) for i in range(1, w // 2 + 1))
    return {"content": pair.c * dot(pair.q, pair.k), "bias": (waves - w / 2) / (8 * h / pair.case.heads)}


ORACLES = (
    Oracle(
        "formula, pair by pair",
        loop(formula),
        anything({"w": lambda rng, sizes: int(rng.choice((2, 3, 16, 101, 128)))}),
        200,
    ),
)
