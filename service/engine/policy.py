"""Which jobs share a run: one policy for each kind of device."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from service.engine.job import Job


class Policy(Protocol):
    """Decides; keeps no state. The queue asks it under a lock, so both answers must be cheap."""

    def group(self, job: Job) -> Hashable:
        """Only jobs of equal group may share a run. A policy that pads puts lengths of one bucket into one group."""

    def joins(self, jobs: int, cells: int, job: Job) -> bool:
        """Whether `job` may join a run that already has `jobs` (>= 1) jobs of its group, `cells` in all."""


@dataclass(frozen=True, slots=True)
class CpuPolicy:
    """Equal shapes only, and only while sharing pays.

    Measured with 4 heads, scores and weights: a run has a fixed cost of 26 us, so one run of 32 jobs of 8 tokens costs
    a sixth of 32 runs, of 64 tokens two thirds, of 128 no less; above about 4 MB of output it leaves the L2 cache and
    costs up to twice as much; past 64 jobs nothing more is gained. Padding always lost (1.4 to 8 times slower).
    """

    shared_cells: int = 64 * 64 * 4 * 2
    """A job of more cells than this runs alone: its own size has already paid for the run."""
    run_cells: int = 4 * 2**20 // 4
    """The most cells of several jobs in one run: 4 MB of float32."""
    run_jobs: int = 64

    def group(self, job: Job) -> Hashable:
        return job.key

    def joins(self, jobs: int, cells: int, job: Job) -> bool:
        return job.cells <= self.shared_cells and jobs < self.run_jobs and cells + job.cells <= self.run_cells
