"""One batch through the model: the same on a worker thread and, for small runs, on the event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np

from service.engine.assembly import Empty, assemble, cut, placed
from service.engine.finiteness import FINITE, covered
from service.engine.job import Graph, Into, Job, JobResult
from service.engine.observer import EngineObserver, tell
from service.errors import ModelFailed, ModelGone
from service.finite import all_finite, nonfinite

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """What computes: `Sessions`, or a stand-in for it in tests. Called from several threads at once."""

    @property
    def provider(self) -> str:
        """onnxruntime's name of where it computes, `CPUExecutionProvider`."""

    def ready(self, job: Job) -> bool:
        """Whether this can be run at once: what has to be built first holds up whoever waits for it."""

    def run(
        self,
        graph: Graph,
        outputs: tuple[str, ...],
        masked: bool,
        feeds: Mapping[str, np.ndarray],
        switches: tuple[str, ...] = (),
        into: Into | None = None,
    ) -> Mapping[str, np.ndarray]:
        """These outputs of this graph, in the arrays of `into` if it can write there. `feeds` may hold more than the
        graph needs. It may say in `FINITE` whether all numbers are finite. What it raises fails the batch.
        """


class Compute:
    """Runs batches and times them; `clock` counts seconds, `work_clock` those in which the calling thread works."""

    def __init__(
        self,
        runner: Runner,
        observer: EngineObserver,
        clock: Callable[[], float],
        work_clock: Callable[[], float] | None = None,
    ) -> None:
        self._runner = runner
        self._empty: Empty = getattr(runner, "empty", np.empty)
        self._observer = observer
        self._clock = clock
        self._work_clock = work_clock or clock

    def __call__(self, jobs: Sequence[Job], trigger: str) -> list[JobResult | ModelFailed]:
        """A result for each job. A batch that raises is run again member by member, so that only the culprit fails."""
        try:
            return list(self._run(jobs, trigger))
        except Exception as error:
            name, reason = jobs[0].graph.name, f"{type(error).__name__}: {str(error)[:400]}"
            if len(jobs) > 1:
                logger.warning("a batch of %d jobs for %s failed, running them one by one: %s", len(jobs), name, reason)
                return [result for job in jobs for result in self([job], "rerun")]
            logger.error("%s failed: %s", name, reason)
            failure = ModelFailed(f"{name} failed on this input: {reason}")
            if isinstance(error, FileNotFoundError):
                failure = ModelGone(f"the files of {name} are no longer there")
            failure.__cause__ = error
            return [failure]

    def together(self, job: Job, count: int, trigger: str) -> JobResult | None:
        """The whole result of a job that is `count` equal ones in one; None where the run raised."""
        try:
            (result,) = self._run([job], trigger, count)
        except Exception as error:
            logger.warning("a batch of %d jobs for %s failed: %s", count, job.graph.name, error)
            return None
        return result

    def _run(self, jobs: Sequence[Job], trigger: str, count: int | None = None) -> list[JobResult]:
        """`count`: how many they are, where that is not their number."""
        first, provider, count = jobs[0], self._runner.provider, count or len(jobs)
        tell(self._observer.batch_started, first.graph.name, count, trigger)
        try:
            working, began = self._work_clock(), self._clock()
            feeds = assemble(jobs, self._empty)
            assembled = self._clock()
            into = first.into if len(jobs) == 1 and first.padded is None else None
            outputs = self._runner.run(first.graph, first.outputs, first.masked, feeds, first.switches, into)
            compute, work = self._clock() - assembled, self._work_clock() - working
            outputs, flag = {name: array for name, array in outputs.items() if name != FINITE}, outputs.get(FINITE)
            finite = _finite(outputs, flag, jobs)
            parts = [placed(part, job.into) for part, job in zip(cut(outputs, jobs), jobs, strict=True)]
        except BaseException:
            tell(self._observer.batch_failed, first.graph.name, count, trigger)
            raise
        tell(self._observer.batch_finished, first.graph.name, count, compute, provider, trigger)
        tell(self._observer.computed, first.graph.name, *_tokens(jobs))
        assembly = assembled - began
        return [
            JobResult(
                part,
                batch_assembly=assembly,
                compute=compute,
                work=work,
                batch_jobs=count,
                nonfinite=0 if good else nonfinite(part.values()),
                provider=provider,
            )
            for part, good in zip(parts, finite, strict=True)
        ]


def _tokens(jobs: Sequence[Job]) -> tuple[int, int]:
    """Keys of all sequences, and what they are padded with."""
    real = padded = 0
    for job in jobs:
        sequences, keys = job.keys.shape[:2]
        real += sequences * keys
        padded += sequences * job.lengths[1]
    return real, padded - real


def _finite(outputs: Mapping[str, np.ndarray], flag: np.ndarray | None, jobs: Sequence[Job]) -> list[bool]:
    """Of each job, whether all its numbers are known to be finite. What `flag` is about need not be looked at."""
    looked_at = [array for array in outputs.values() if flag is None or not covered(array)]
    if not all(map(all_finite, looked_at)):
        return [False] * len(jobs)
    if flag is None or np.isfinite(flag).all():
        return [True] * len(jobs)
    ends = list(accumulate(len(job.queries) for job in jobs))
    return [bool(np.isfinite(flag[start:end]).all()) for start, end in zip([0, *ends], ends, strict=False)]
