"""Which jobs share a run, and which thread runs them: one policy for each kind of device."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.engine.cost import Costs
from service.engine.device import CPU
from service.engine.gpu_policy import GpuPolicy
from service.engine.job import Job
from service.engine.share import ALONE, Share


class Policy(Protocol):
    """Decides. The queue asks it under a lock, so its answers must be cheap."""

    @property
    def costs(self) -> Costs:
        """What runs take; it learns from each."""

    def group(self, job: Job) -> Hashable:
        """Only jobs of equal group may share a run. A policy that pads puts lengths of one bucket into one group."""

    def share(self, job: Job) -> Share:
        """How large a run may become that `job` begins. It has that job whatever its size."""

    def inline(self, jobs: Sequence[Job]) -> bool:
        """Whether these, of one request, are so small that the event loop runs them itself."""


@dataclass(frozen=True, slots=True)
class CpuPolicy:
    """Equal shapes only, and only while sharing pays.

    Measured with 4 heads, scores and weights: a run has a fixed cost of 26 us, so one run of 32 jobs of 8 tokens costs
    a sixth of 32 runs, of 64 tokens two thirds, of 128 no less; above about 4 MB of output it leaves the L2 cache and
    costs up to twice as much; past 64 jobs nothing more is gained. Padding always lost (1.4 to 8 times slower).
    Handing a run to an idle thread and back costs 110 us.
    """

    costs: Costs = field(default_factory=Costs)
    shared_share: float = 4.0
    """A job that adds more than this many times the fixed cost of its run runs alone."""
    run_cells: int = 4 * 2**20 // 4
    """The most cells of several jobs in one run: 4 MB of float32."""
    run_jobs: int = 64
    run_seconds: float = 5e-4
    """The longest run of several jobs: nothing else happens on the event loop meanwhile."""
    inline_seconds: float = 3e-4
    """The longest work of one request that the event loop does itself."""

    def group(self, job: Job) -> Hashable:
        return job.key if job.into is None else job

    def share(self, job: Job) -> Share:
        if job.into is not None:
            return ALONE
        run, each = self.costs.split(job)
        if each > self.shared_share * run:
            return ALONE
        # Jobs of one group differ in their batch at most, so what they add goes with their cells.
        cells = job.cells * (self.run_seconds - run) / each if each else self.run_cells
        return Share(self.run_jobs, min(self.run_cells, int(cells)))

    def inline(self, jobs: Sequence[Job]) -> bool:
        seconds = self.costs.seconds(jobs[0]) if len(jobs) == 1 else sum(map(self.costs.seconds, jobs))
        return seconds <= self.inline_seconds


def policy_for(provider: str) -> Policy:
    return CpuPolicy() if provider == CPU else GpuPolicy()
