"""A formula as its paper writes it: Python floats, one pair of a query and a key at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from tests.oracles.answer import Answer
from tests.oracles.case import Case

Vector = Float64[np.ndarray, " head_dim"]


@dataclass(frozen=True)
class Pair:
    """Query at m, key at n, in one head (counted from 0) of one member of a case's batch."""

    case: Case
    member: int
    head: int
    q: Vector
    k: Vector
    m: float
    n: float

    @property
    def c(self) -> float:
        """1 / sqrt(d_h), or the scale that the case gives."""
        return self.scale(1 / math.sqrt(len(self.q)))

    def scale(self, own: float) -> float:
        """The scale that the case gives, or the encoding's own."""
        given = self.case.given("scale")
        return own if given is None else float(given)


Terms = Callable[[Pair], Mapping[str, float]]
Value = Callable[[Pair], Vector]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def loop(terms: Terms, value: Value = lambda pair: pair.k) -> Callable[[Case], Answer]:
    """An oracle from the terms of one pair, and the vector a query takes from a key (the key itself, in identity)."""

    def answer(case: Case) -> Answer:
        batch, queries, heads, _ = case.queries.shape
        shape = (batch, heads, queries, case.keys.shape[1])
        scores, weights, output = np.zeros(shape), np.zeros(shape), np.zeros(case.queries.shape)
        named: dict[str, np.ndarray] = {}
        visible = np.broadcast_to(case.visible, shape)
        for b in range(batch):
            for h in range(heads):
                for i, m in enumerate(case.m):
                    pairs = [
                        Pair(case, b, h, case.queries[b, i, h], case.keys[b, j, h], float(m), float(n))
                        for j, n in enumerate(case.n)
                    ]
                    for j, pair in enumerate(pairs):
                        addends = terms(pair)
                        scores[b, h, i, j] = capped(math.fsum(addends.values()), case.given("softcap"))
                        for name, addend in addends.items():
                            named.setdefault(name, np.zeros(shape))[b, h, i, j] = addend
                    sink = None if case.given("sinks") is None else float(case.array("sinks")[h])
                    weights[b, h, i] = softmax_row(scores[b, h, i], visible[b, h, i], sink)
                    for j, pair in enumerate(pairs):
                        if weights[b, h, i, j] > 0:
                            output[b, i, h] += weights[b, h, i, j] * value(pair)
        return Answer(scores, weights, output, named)

    return answer


def capped(score: float, cap: float | None) -> float:
    """cap tanh(score / cap)"""
    return score if cap is None else cap * math.tanh(score / cap)


def softmax_row(
    scores: Float64[np.ndarray, " keys"], visible: np.ndarray, sink: float | None
) -> Float64[np.ndarray, " keys"]:
    """Weights of one query, beside a sink that has no key."""
    seen = [j for j in range(len(scores)) if visible[j]]
    weights = np.zeros(len(scores))
    if seen:
        others = [] if sink is None else [sink]
        top = max([*(scores[j] for j in seen), *others])
        powers = {j: math.exp(scores[j] - top) for j in seen}
        total = math.fsum([*powers.values(), *(math.exp(other - top) for other in others)])
        for j, power in powers.items():
            weights[j] = power / total
    return weights
