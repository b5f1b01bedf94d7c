"""What an oracle says, and how it is made from scores or from a library's probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from tests.oracles.case import Case, Domain

Pairs = Float64[np.ndarray, "batch heads queries keys"]
Output = Float64[np.ndarray, "batch queries heads head_dim"]


@dataclass(frozen=True)
class Answer:
    """Scores, weights, output and terms of a case; terms sum to the scores before a softcap.

    Where `relative` is set the oracle gives probabilities alone: its scores are their logarithms, known up to a
    constant for each row, and nan where a key is not visible.
    """

    scores: Pairs
    weights: Pairs
    output: Output
    terms: Mapping[str, Pairs] = field(default_factory=dict)
    relative: bool = False


@dataclass(frozen=True)
class Oracle:
    """An independent answer to the cases of a domain. `cases` is how many of them a test run draws."""

    name: str
    answer: Callable[[Case], Answer]
    domain: Domain
    cases: int


def softmax(case: Case, scores: Pairs) -> Pairs:
    """Over the visible keys and each head's sink, where there is one; a row that sees nothing is all 0."""
    visible = np.broadcast_to(case.visible, scores.shape)
    seen = np.where(visible, scores, -np.inf)
    top = np.max(seen, axis=-1, keepdims=True)
    sinks = case.given("sinks")
    sink = np.full_like(top, -np.inf) if sinks is None else np.broadcast_to(sinks[:, None, None], top.shape)
    top = np.maximum(top, sink)
    top = np.where(np.isfinite(top), top, 0.0)
    powers = np.where(visible, np.exp(seen - top), 0.0)
    total = powers.sum(-1, keepdims=True) + np.exp(sink - top)
    weights: Pairs = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)
    return weights


def softcapped(case: Case, scores: Pairs) -> Pairs:
    """cap tanh(scores / cap), where the case has a cap."""
    cap = case.given("softcap")
    capped: Pairs = scores if cap is None else cap * np.tanh(scores / cap)
    return capped


def from_scores(case: Case, scores: Pairs, terms: Mapping[str, Pairs] | None = None) -> Answer:
    """Of an encoding that leaves values alone."""
    weights = softmax(case, scores)
    return Answer(scores, weights, np.einsum("bhmn,bnhd->bmhd", weights, case.keys), terms or {})


def from_visible_scores(case: Case, scores: Pairs) -> Answer:
    """Of a library that knows nothing of future keys."""
    answer = from_scores(case, scores)
    visible = np.broadcast_to(case.visible, scores.shape)
    return Answer(np.where(visible, scores, np.nan), answer.weights, answer.output, relative=True)


def from_probabilities(case: Case, probabilities: Pairs, output: Output) -> Answer:
    """Of a library module that returns its softmax: ln A(m, n) = S(m, n) - a constant of the row."""
    visible = np.broadcast_to(case.visible, probabilities.shape)
    with np.errstate(divide="ignore"):
        scores = np.where(visible, np.log(probabilities), np.nan)
    return Answer(scores, np.where(visible, probabilities, 0.0), output, relative=True)
