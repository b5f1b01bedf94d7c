"""Runs on the event loop itself, at the end of its turn: what arrived in one turn is one batch, if it is small."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Generic

from service.engine.batches import Batches, E
from service.engine.compute import Compute
from service.engine.worker import Done


class Inline(Generic[E]):
    """The lane of jobs for which a thread would cost more than it frees. It has the same face as `Workers`.

    After `turn` seconds the event loop gets to its other work, and the rest runs in its next turn.
    """

    def __init__(self, batches: Batches[E], compute: Compute, clock: Callable[[], float], turn: float) -> None:
        self.batches = batches
        self._compute = compute
        self._clock = clock
        self._turn = turn
        self._scheduled = False

    def start(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Done[E]], None]) -> None:
        self._loop, self._deliver = loop, deliver

    def put(self, entries: Sequence[E], *, bounded: bool = True) -> None:
        """Queues all of these or none; raises what `Batches.put` raises. Unbounded, all of them."""
        if bounded:
            self.batches.put(entries)
        else:
            self.batches.add(entries)
        self._schedule()

    def remove(self, entries: Iterable[E]) -> list[E]:
        """Takes these out of the queue, and returns those that were still in it."""
        return self.batches.remove(entries)

    def end(self) -> list[E]:
        """Empties the queue, returning what was in it."""
        return self.batches.clear()

    def _schedule(self) -> None:
        # Handlers of requests that arrived in the same turn are scheduled already: they come first.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        began = now = self._clock()
        while now - began < self._turn:
            batch = self.batches.next_batch(now)
            if batch is None:
                return
            jobs = [entry.job for entry in batch.entries]
            self._deliver(Done(batch, now, self._compute(jobs, batch.trigger) if jobs else []))
            now = self._clock()
        if self.batches:
            self._schedule()
