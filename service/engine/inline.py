"""Runs on the event loop itself, at the end of its turn: what arrived in one turn is one batch, if it is small."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic

from service.engine.batches import Batch, E, Limits
from service.engine.compute import Compute
from service.engine.policy import Policy
from service.engine.worker import Done
from service.errors import Overloaded


class Inline(Generic[E]):
    """The lane of jobs for which a thread would cost more than it frees. It has the same face as `Workers`.

    Its queue is that of one turn, so it is simpler: groups in the order of their first jobs. After `turn` seconds the
    event loop gets to its other work, and the rest runs in its next turn.
    """

    def __init__(
        self, policy: Policy, limits: Limits, compute: Compute, clock: Callable[[], float], turn: float
    ) -> None:
        self._policy = policy
        self._limits = limits
        self._compute = compute
        self._clock = clock
        self._turn = turn
        self._groups: dict[Hashable, list[E]] = {}
        self._jobs = 0
        self.cells = 0
        """The cost of all that is queued."""
        self._scheduled = False

    def __len__(self) -> int:
        return self._jobs

    def start(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Done[E]], None]) -> None:
        self._loop, self._deliver = loop, deliver

    def put(self, entries: Sequence[E], *, bounded: bool = True) -> None:
        """Queues all of these or, where they do not fit, none: raises Overloaded. Unbounded, all of them."""
        limits = self._limits
        if bounded and (self._jobs + len(entries) > limits.queued_jobs or self.cells > limits.queued_cells):
            raise Overloaded(
                f"{self._jobs} jobs of {self.cells} cells came in one moment; the limits are {limits.queued_jobs} jobs "
                f"and {limits.queued_cells} cells: try again",
                retry_after=0.1,
                queued_jobs=self._jobs,
                queued_cells=self.cells,
                limit_jobs=limits.queued_jobs,
                limit_cells=limits.queued_cells,
            )
        for entry in entries:
            group = self._policy.group(entry.job)
            queued = self._groups.get(group)
            if queued is None:
                self._groups[group] = [entry]
            else:
                queued.append(entry)
            self.cells += entry.job.cells
        self._jobs += len(entries)
        # Handlers of requests that arrived in the same turn are scheduled already: they come first.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def remove(self, entries: Iterable[E]) -> list[E]:
        """Takes these out of the queue, and returns those that were still in it."""
        found = []
        for entry in entries:
            group = self._policy.group(entry.job)
            queued = self._groups.get(group, [])
            if entry in queued:
                queued.remove(entry)
                if not queued:
                    del self._groups[group]
                found.append(entry)
        self._count(found)
        return found

    def end(self) -> list[E]:
        """Empties the queue, returning what was in it."""
        left = [entry for queued in self._groups.values() for entry in queued]
        self._groups.clear()
        self._count(left)
        return left

    def _count(self, gone: Sequence[E]) -> None:
        self._jobs -= len(gone)
        self.cells -= sum(entry.job.cells for entry in gone)

    def _run(self) -> None:
        self._scheduled = False
        began = now = self._clock()
        while self._groups:
            if now - began >= self._turn:
                self._scheduled = True
                self._loop.call_soon(self._run)
                return
            batch = self._next(now)
            jobs = [entry.job for entry in batch.entries]
            self._deliver(Done(batch, now, self._compute(jobs, batch.trigger) if jobs else []))
            now = self._clock()

    def _next(self, now: float) -> Batch[E]:
        group, queued = next(iter(self._groups.items()))
        share = self._policy.share(queued[0].job)
        batch: Batch[E] = Batch([], [], "idle")
        taken = cells = 0
        for entry in queued:
            if entry.late(now):
                batch.expired.append(entry)
            elif not batch.entries or (len(batch.entries) < share.jobs and cells + entry.job.cells <= share.cells):
                batch.entries.append(entry)
                cells += entry.job.cells
            else:
                batch.trigger = "full"
                break
            taken += 1
        if taken == len(queued):
            del self._groups[group]
        else:
            self._groups[group] = queued[taken:]
        self._jobs -= taken
        self.cells -= cells + sum(entry.job.cells for entry in batch.expired)
        return batch
