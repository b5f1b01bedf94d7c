"""How far the exported graphs are from their oracles."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tests.oracles import ORACLES
from tests.oracles.answer import Answer, Oracle, softcapped, softmax
from tests.oracles.case import Case, draw
from tests.oracles.served import EXPORTED, served

CACHE = Path(__file__).parents[2] / "docs" / "encodings-errors.json"


@dataclass(frozen=True)
class Errors:
    """Of one case, or the largest of many.

    scores: against the oracle, relative to the largest score. weights: absolute. output: relative to the largest value.
    terms: the served terms' (capped) sum against the served scores, and each against the oracle's where it has terms,
    relative to the largest score or term. softmax: weights against the float64 softmax of the served scores, absolute.
    size: the largest score.
    """

    scores: float = 0.0
    weights: float = 0.0
    output: float = 0.0
    terms: float = 0.0
    softmax: float = 0.0
    size: float = 0.0


@dataclass(frozen=True)
class Row:
    """One line of the table: an oracle of an encoding, its largest errors over its cases."""

    encoding: str
    oracle: str
    domain: str
    cases: int
    scores: float
    weights: float


def errors(case: Case, expected: Answer) -> Errors:
    """Of the served answer to a case."""
    got = served(case.encoding).answer(case)
    size = float(np.abs(got.scores if expected.relative else expected.scores).max())
    largest = max([size, *(float(np.abs(term).max()) for term in got.terms.values())])
    together = np.sum(list(got.terms.values()), axis=0)
    terms = float(np.abs(softcapped(case, together) - got.scores).max())
    if expected.terms:
        if expected.terms.keys() != got.terms.keys():
            raise AssertionError(f"{case.encoding}: terms {sorted(got.terms)}, not {sorted(expected.terms)}")
        terms = max([terms, *(float(np.abs(got.terms[name] - term).max()) for name, term in expected.terms.items())])
    return Errors(
        scores=_scores(got, expected) / size if size else 0.0,
        weights=float(np.abs(got.weights - expected.weights).max()),
        output=float(np.abs(got.output - expected.output).max()) / max(1.0, float(np.abs(expected.output).max())),
        terms=terms / largest if largest else 0.0,
        softmax=float(np.abs(got.weights - softmax(case, got.scores)).max()),
        size=size,
    )


def _scores(got: Answer, expected: Answer) -> float:
    """The largest difference of scores.

    Where the oracle knows them up to a constant of the row: of S(m, n) - S(m, n'), n' the row's heaviest key.
    """
    if not expected.relative:
        return float(np.abs(got.scores - expected.scores).max())
    heaviest = expected.weights.argmax(-1)[..., None]
    theirs = expected.scores - np.take_along_axis(expected.scores, heaviest, -1)
    ours = got.scores - np.take_along_axis(got.scores, heaviest, -1)
    return float(np.abs(np.where(np.isnan(theirs), 0.0, ours - theirs)).max())


def every() -> list[tuple[str, Oracle]]:
    """Every exported encoding with each of its oracles."""
    exported = [encoding for encoding in ORACLES if (EXPORTED / f"{encoding}.onnx").exists()]
    return [(encoding, oracle) for encoding in exported for oracle in ORACLES[encoding]]


def cases(encoding: str, oracle: Oracle) -> list[Case]:
    """The cases of an oracle: the same on every run."""
    about = served(encoding).about
    return [draw(about, oracle.domain, seed) for seed in range(oracle.cases)]


def largest(encoding: str, oracle: Oracle) -> Errors:
    """Over all of an oracle's cases."""
    worst = Errors()
    for case in cases(encoding, oracle):
        found = errors(case, oracle.answer(case))
        worst = Errors(**{name: max(value, asdict(found)[name]) for name, value in asdict(worst).items()})
    return worst


def error_table(progress: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Every encoding under each of its oracles: a minute or two."""
    rows = []
    for encoding, oracle in every():
        progress(f"{encoding}: {oracle.name}")
        worst = largest(encoding, oracle)
        figures = _rounded(worst.scores, worst.weights)
        rows.append(Row(encoding, oracle.name, oracle.domain.description, oracle.cases, *figures))
    return rows


def write(rows: list[Row], path: Path = CACHE) -> None:
    """The table as JSON, for whoever writes the documentation."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False) + "\n")


def cached(path: Path = CACHE) -> list[Row]:
    """The table as last written."""
    return [Row(**row) for row in json.loads(path.read_text())]


def _rounded(*numbers: float) -> tuple[float, ...]:
    return tuple(float(f"{number:.1e}") for number in numbers)
