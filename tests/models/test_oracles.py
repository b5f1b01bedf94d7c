"""Exported graphs beside independent answers: see `tests/oracles`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from models.encodings import ENCODINGS
from tests.oracles import ORACLES
from tests.oracles.answer import Oracle
from tests.oracles.errors import CACHE, Errors, cases, errors, every

SCORES = 1e-5  # relative to the largest score
SOFTMAX = 1e-6
# A weight moves by at most half of what the scores move, and the rounding of float32 scores grows with their size. So
# weights are held to 1e-6, or to two float32 epsilons of the largest score where that is more (scores above 4; integer
# positions, ALiBi at far distances and T5 without its scale have scores of hundreds).
WEIGHTS = 1e-6
EPSILON = float(np.finfo(np.float32).eps)

EVERY = [pytest.param(encoding, oracle, id=f"{encoding}-{oracle.name}") for encoding, oracle in every()]


@pytest.mark.parametrize(("encoding", "oracle"), EVERY)
def test_exported_graphs_give_the_oracles_numbers(encoding: str, oracle: Oracle) -> None:
    for seed, case in enumerate(cases(encoding, oracle)):
        found = errors(case, oracle.answer(case))
        assert not excess(found), f"case {seed}: {excess(found)}"


def excess(found: Errors) -> dict[str, tuple[float, float]]:
    """What exceeds its tolerance, as (found, allowed)."""
    weights = max(WEIGHTS, 2 * EPSILON * found.size)
    allowed = Errors(SCORES, weights, 2 * weights, SCORES, SOFTMAX)
    pairs = {
        name: (getattr(found, name), getattr(allowed, name))
        for name in ("scores", "weights", "output", "terms", "softmax")
    }
    return {name: (error, limit) for name, (error, limit) in pairs.items() if not error <= limit}


def test_every_encoding_has_a_formula_of_its_own_and_at_least_200_cases() -> None:
    assert set(ORACLES) == {encoding.card.id for encoding in ENCODINGS}
    for encoding, oracles in ORACLES.items():
        assert oracles[0].name.startswith("formula"), encoding
        assert sum(oracle.cases for oracle in oracles) >= 200, encoding


def test_documented_errors_name_the_oracles_of_today() -> None:
    written = [(row["encoding"], row["oracle"]) for row in json.loads(CACHE.read_text())]
    assert written == [(encoding, oracle.name) for encoding, oracle in every()], "run python -m tests.oracles --write"
