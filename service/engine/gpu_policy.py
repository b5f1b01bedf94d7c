"""Which jobs share a run on a GPU: those whose lengths fall into one bucket."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from service.engine.appending import appended, matrices
from service.engine.assembly import MATRIX
from service.engine.buckets import Ladder
from service.engine.cost import Costs
from service.engine.job import Job
from service.engine.pruning import HALF
from service.engine.share import ALONE, Share


@dataclass(frozen=True, slots=True)
class GpuPolicy:
    """Lengths of one bucket of `ladder` share a run, padded to it.

    A run is bounded by what it computes and by what is copied back, both counted with the padding. The bounds are
    estimates: 64 MB pass a PCIe 4 link in about 3 ms, and came back in 2 to 4 from an H200 (docs/gpu.md).
    """

    costs: Costs = field(default_factory=Costs)
    ladder: Ladder = field(default_factory=Ladder)
    run_jobs: int = 64
    run_scores: int = 2**24
    """The most scores of several jobs in one run: batch x heads x queries x keys."""
    run_bytes: int = 64 * 2**20
    """The most bytes of matrices that a run of several jobs gives or, where it is of given ones, takes."""

    def group(self, job: Job) -> Hashable:
        return job.key if job.into is None else job

    def share(self, job: Job) -> Share:
        if job.into is not None:
            return ALONE
        if given := _given(job):
            return Share(self.run_jobs, self._most_scores(given))
        return Share(self.run_jobs, self._most_scores(job.outputs) * matrices(job.outputs))

    def inline(self, jobs: Sequence[Job]) -> bool:
        """Never: a run would hold up the event loop for longer than handing it over does."""
        return False

    def padded(self, rows: int, heads: int, queries: int, keys: int, passed: Sequence[str]) -> tuple[int, int] | None:
        """How many queries and keys a job is computed with that has these outputs, or is given these matrices; None
        where it stays as it is: it has no bucket, or is so large that not even two of its kind share a run.
        """
        lengths = self.ladder.bucket(queries), self.ladder.bucket(keys)
        if lengths[0] is None or lengths[1] is None:
            return None
        scores = rows * heads * lengths[0] * lengths[1]
        return (lengths[0], lengths[1]) if 2 * scores <= self._most_scores(passed) else None

    def _most_scores(self, passed: Sequence[str]) -> int:
        """Of a run of several jobs. The numbers of rows are nothing beside matrices."""
        halves = sum(name.startswith(HALF) for name in passed)
        size = 4 * sum(not appended(name) for name in passed) - 2 * halves
        return min(self.run_scores, self.run_bytes // size) if size else self.run_scores


def _given(job: Job) -> list[str]:
    """The matrices that a job brings: what it gives is their rows' numbers."""
    return [name for name, one in (job.own or {}).items() if len(one.axes) == MATRIX]
