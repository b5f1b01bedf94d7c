"""What a run costs: one model for a device, fitted to a few timed runs, and what each graph costs beside it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from service.engine.job import Job

if TYPE_CHECKING:
    from jaxtyping import Float64


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds: of a run, whatever it computes, and of each number of queries and keys, number of an answer, and
    multiply-add of q.k.

    The defaults are those of one core with AVX-512; `fit` replaces them.
    """

    run: float = 2.5e-5
    input: float = 4e-9
    cell: float = 5e-10
    product: float = 2e-11

    @classmethod
    def fit(cls, jobs: Sequence[Job], seconds: Sequence[float]) -> Rates:
        """The rates, none below 0, that come closest in proportion to what these took, each alone in its run."""
        counts = np.array([(1, *_counts(job)) for job in jobs], dtype=np.float64)
        relative = counts / np.array(seconds)[:, None]
        return cls(*_nonnegative(relative).tolist())


def _counts(job: Job) -> tuple[int, int, int]:
    """Numbers of queries and keys, of the answer, and multiply-adds of q.k."""
    queries, keys = job.queries, job.keys
    return queries.size + keys.size, job.cells, queries.size * keys.shape[1]


def _nonnegative(rows: Float64[np.ndarray, "runs rates"]) -> Float64[np.ndarray, " rates"]:
    """The least squares solution of rows . x = 1, without the columns that it would give a negative weight."""
    kept = np.arange(rows.shape[1])
    scale = rows.max(axis=0)
    while True:
        found = np.linalg.lstsq(rows[:, kept] / scale[kept], np.ones(len(rows)), rcond=None)[0]
        if (found >= 0).all():
            solution = np.zeros(rows.shape[1])
            solution[kept] = found / scale[kept]
            return solution
        kept = np.delete(kept, found.argmin())


@dataclass(slots=True)
class Factor:
    """How many times the model's estimate one graph takes."""

    value: float = 1.0
    runs: int = 0

    def record(self, ratio: float) -> None:
        """The first run does not count, for it built the session; later ones matter less and less."""
        if self.runs:
            # One run that lost its core to somebody else must not count for more than it is.
            self.value *= min(8.0, max(0.125, ratio)) ** max(0.1, 1 / self.runs)
        self.runs += 1


class Costs:
    """Predicts runs, and learns from those that were made. Belongs to one thread, but for predictions."""

    def __init__(self, rates: Rates | None = None) -> None:
        self.rates = rates or Rates()
        self._factors: dict[Hashable, Factor] = {}

    def seconds(self, job: Job) -> float:
        """Of a run of this job alone."""
        factor, rates, queries, keys = self._factors.get(_kind(job)), self.rates, job.queries, job.keys
        seconds = (
            rates.run
            + rates.input * (queries.size + keys.size)
            + rates.cell * job.cells
            + rates.product * queries.size * keys.shape[1]
        )
        return float(seconds if factor is None else seconds * factor.value)

    def split(self, job: Job) -> tuple[float, float]:
        """What a run of such jobs costs once, and what this one adds."""
        factor, rates = self._factors.get(_kind(job)), self.rates
        inputs, cells, products = _counts(job)
        scale = 1.0 if factor is None else factor.value
        return scale * rates.run, scale * (rates.input * inputs + rates.cell * cells + rates.product * products)

    def record(self, job: Job, cells: int, seconds: float) -> None:
        """A run of such jobs, `cells` in all, took so long."""
        run, each = self.split(job)
        # Jobs that share a run differ in their batch at most, so what they add goes with their cells.
        predicted = run + each * cells / job.cells
        self._factors.setdefault(_kind(job), Factor()).record(seconds / predicted)

    def fit(self, jobs: Sequence[Job], seconds: Sequence[float]) -> None:
        """Starts from these runs; what each graph costs beside the model is learnt anew."""
        self.rates = Rates.fit(jobs, seconds)
        self._factors.clear()


def _kind(job: Job) -> Hashable:
    return job.graph.name, job.outputs, job.visible is None
