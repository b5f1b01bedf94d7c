"""Which jobs share a run on a GPU: those whose lengths fall into one bucket."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

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
    """The most bytes that a run of several jobs gives."""

    def group(self, job: Job) -> Hashable:
        return job.key if job.into is None else job

    def share(self, job: Job) -> Share:
        return ALONE if job.into is not None else Share(self.run_jobs, self._most_cells(job.outputs))

    def inline(self, jobs: Sequence[Job]) -> bool:
        """Never: a run would hold up the event loop for longer than handing it over does."""
        return False

    def padded(self, rows: int, heads: int, queries: int, keys: int, outputs: Sequence[str]) -> tuple[int, int] | None:
        """How many queries and keys such a job is computed with; None where it stays as it is: it has no bucket, or is
        so large that not even two of its kind share a run.
        """
        lengths = self.ladder.bucket(queries), self.ladder.bucket(keys)
        if lengths[0] is None or lengths[1] is None:
            return None
        cells = rows * heads * lengths[0] * lengths[1] * len(outputs)
        return (lengths[0], lengths[1]) if 2 * cells <= self._most_cells(outputs) else None

    def _most_cells(self, outputs: Sequence[str]) -> int:
        """Of a run of several jobs."""
        halves = sum(output.startswith(HALF) for output in outputs)
        scores = min(self.run_scores, self.run_bytes // (4 * len(outputs) - 2 * halves))
        return scores * len(outputs)
