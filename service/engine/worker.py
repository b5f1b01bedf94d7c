"""The threads that own the device, and the queue between them and the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.engine.batches import Batch, Batches, E
from service.engine.compute import Compute
from service.engine.job import JobResult
from service.errors import ModelFailed

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class Done(Generic[E]):
    """What a worker hands back of one batch: one wake-up of the event loop, however many jobs."""

    batch: Batch[E]
    taken: float
    results: list[JobResult | ModelFailed]


class Workers(Generic[E]):
    """Threads that take batches and run them. One that finds no work sleeps until some is put; none of them polls.

    One condition guards the queue and the note of what each thread runs. Whoever fills the empty queue wakes one
    thread, and a thread that leaves something in it wakes the next.
    """

    def __init__(self, batches: Batches[E], compute: Compute, count: int, clock: Callable[[], float]) -> None:
        self.batches = batches
        self._compute = compute
        self._clock = clock
        self._condition = threading.Condition(threading.Lock())
        self._running: dict[int, tuple[float, Batch[E]]] = {}
        self._ending = False
        self._count = count
        self._threads: list[threading.Thread] = []

    def __len__(self) -> int:
        return self._count

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[Done[E]], None],
        ended: Callable[[str | None], None],
    ) -> None:
        """Both are called on `loop`: `deliver` with each batch, `ended` once for each thread: with a reason if it
        died.
        """
        self._loop, self._deliver, self._ended = loop, deliver, ended
        # Not made before: to a process that is forked, those of its parent have ended.
        self._threads = [
            threading.Thread(target=self._work, name=f"attention-engine-{i}", daemon=True) for i in range(self._count)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, entries: Sequence[E], *, bounded: bool = True) -> None:
        """Queues all of these or none; raises what `Batches.put` raises. Unbounded, all of them."""
        with self._condition:
            was_empty = not self.batches
            if bounded:
                self.batches.put(entries)
            else:
                self.batches.add(entries)
            if was_empty:
                self._condition.notify()

    def remove(self, entries: Iterable[E]) -> list[E]:
        """Takes these out of the queue, and returns those that were still in it."""
        with self._condition:
            return self.batches.remove(entries)

    def waiting(self) -> dict[str, tuple[int, float]]:
        """Of each graph with queued jobs: how many, and for how many seconds the oldest of them."""
        with self._condition:
            return self.batches.waiting(self._clock())

    def end(self) -> list[E]:
        """Empties the queue, returning what was in it, and lets each thread end after what it runs now."""
        with self._condition:
            self._ending = True
            self._condition.notify_all()
            return self.batches.clear()

    def join(self) -> None:
        """Waits the last microseconds of threads that have said that they end."""
        for thread in self._threads:
            thread.join()

    @property
    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    @property
    def running(self) -> list[tuple[float, Batch[E]]]:
        """What each busy thread runs, and since when."""
        return list(self._running.values())

    def _work(self) -> None:
        reason: str | None = "a worker thread ended unasked"
        try:
            while (taken := self._take()) is not None:
                self._post(self._deliver, self._run(*taken))
                taken = None  # else its arrays would stay until there is other work
            reason = None
        except BaseException as error:
            reason = f"a worker thread died of {error!r}"
            logger.critical("%s", reason, exc_info=True)
        finally:
            with suppress(RuntimeError):  # the event loop is closed: nobody is left to tell
                self._post(self._ended, reason)

    def _take(self) -> tuple[Batch[E], float] | None:
        with self._condition:
            while not self._ending:
                now = self._clock()
                batch = self.batches.next_batch(now)
                if batch is not None:
                    if self.batches:
                        self._condition.notify()
                    if batch.entries:
                        self._running[threading.get_ident()] = now, batch
                    return batch, now
                self._condition.wait()
            return None

    def _run(self, batch: Batch[E], taken: float) -> Done[E]:
        if not batch.entries:
            return Done(batch, taken, [])
        try:
            return Done(batch, taken, self._compute([entry.job for entry in batch.entries], batch.trigger))
        finally:
            with self._condition:
                del self._running[threading.get_ident()]

    def _post(self, call: Callable[[T], None], argument: T) -> None:
        self._loop.call_soon_threadsafe(call, argument)
