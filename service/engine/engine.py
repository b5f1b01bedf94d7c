"""The engine as the event loop sees it: hand in jobs, await their results."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from service.deadline import exceeded
from service.engine.batches import Batches, Entry, Limits
from service.engine.compute import Compute, Runner
from service.engine.cores import usable_cores
from service.engine.device import CPU, CUDA
from service.engine.inline import Inline
from service.engine.job import Job, JobResult
from service.engine.observer import EngineObserver, Unobserved, tell
from service.engine.policy import Policy, policy_for
from service.engine.worker import Done, Workers
from service.errors import (
    ClientClosedRequest,
    DeadlineExceeded,
    Draining,
    ModelFailed,
    NotReady,
    Overloaded,
    ServiceError,
)

logger = logging.getLogger(__name__)


class Pending:
    """One call of `run` that waits: its future, and the results so far. Touched on the event loop only."""

    __slots__ = ("future", "left", "results")

    def __init__(self, future: asyncio.Future[list[JobResult]], jobs: int) -> None:
        self.future = future
        self.results: list[JobResult] = [JobResult({})] * jobs
        self.left = jobs

    def settle(self, index: int, result: JobResult | ServiceError) -> None:
        if isinstance(result, ServiceError):
            self.fail(result)
            return
        self.results[index] = result
        self.left -= 1
        if not self.left and not self.future.done():
            self.future.set_result(self.results)

    def fail(self, error: ServiceError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class Ticket(Entry):
    """A queued job that knows who waits for it."""

    pending: Pending = field(kw_only=True)
    index: int = field(kw_only=True)


class Engine:
    """Natural batching: a worker that falls idle takes what is queued and waits for no more. Small jobs are run on the
    event loop itself, together with others of the same turn.

    `run`, `warm_up`, `start` and `stop` belong to one event loop, and so does all that is kept here.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        policy: Policy | None = None,
        limits: Limits | None = None,
        workers: int | None = None,
        observer: EngineObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        work_clock: Callable[[], float] | None = None,
        failures_allowed: int = 5,
        recheck: float = 5.0,
        stall: float = 120.0,
        turn: float = 5e-4,
    ) -> None:
        """`workers` is by default one on CUDA, else one for each usable core: several runs at once on one session
        scale best.

        After `failures_allowed` batches in a row that failed wholly, a job known to work (from `warm_up`) tells a
        broken device from bad requests; a broken one is asked again every `recheck` seconds. A run of more than
        `stall` seconds also makes the engine not ready. `clock` counts seconds; `work_clock` those
        that a run costs, by default the processor's for the thread where that computes. After `turn` seconds of small
        runs the event loop does something else.
        """
        count = workers or (1 if runner.provider == CUDA else usable_cores())
        self._runner = runner
        self._observer = observer or Unobserved()
        self._policy = policy or policy_for(runner.provider)
        limits = limits or Limits()
        if work_clock is None:
            work_clock = time.thread_time if runner.provider == CPU else clock
        compute = self._compute = Compute(runner, self._observer, clock, work_clock)
        self._workers: Workers[Ticket] = Workers(Batches(self._policy, limits, count), compute, count, clock)
        self._inline: Inline[Ticket] = Inline(self._policy, limits, compute, clock, turn)
        self._clock = clock
        self._failures_allowed = failures_allowed
        self._recheck = recheck
        self._stall = stall

        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[Pending] = set()
        self._nobody_waits = asyncio.Event()
        """Set while draining only."""
        self._working = count
        self._workers_ended = asyncio.Event()
        self._draining = False
        self._dead: str | None = None
        self._suspended: str | None = None
        self._failures = 0
        self._known_good: Job | None = None
        self._checking: asyncio.Task[None] | None = None
        self._largest = 0
        self._giving_back = False

    # What others may ask

    @property
    def health(self) -> str | None:
        """Why the engine takes no work, or None where it does."""
        if (reason := self._closed) is not None:
            return reason
        if not self._workers.alive:
            return "a worker thread has ended"
        now = self._clock()
        for began, batch in self._workers.running:
            if now - began > self._stall:
                return f"a run of {batch.entries[0].job.graph.name} has not returned for {now - began:.0f} s"
        return None

    @property
    def _closed(self) -> str | None:
        """The same, as far as it was noticed already."""
        if self._draining:
            return "the service is shutting down"
        if self._loop is None:
            return "the engine has not been started"
        return self._dead or self._suspended

    @property
    def ready(self) -> bool:
        return self.health is None

    @property
    def alive(self) -> bool:
        """False where only a new process helps: a worker thread has died."""
        return self._dead is None

    @property
    def workers(self) -> int:
        return len(self._workers)

    @property
    def queued_jobs(self) -> int:
        return len(self._workers.batches) + len(self._inline)

    def queues(self) -> dict[str, tuple[int, float]]:
        """Of each graph with jobs that wait for a worker: how many, and the seconds that the oldest of them has waited.
        Those that the event loop runs itself are gone before it does anything else.
        """
        return self._workers.waiting()

    @property
    def queued_cells(self) -> int:
        return self._workers.batches.cells + self._inline.cells

    @property
    def running_jobs(self) -> int:
        return sum(len(batch.entries) for _, batch in self._workers.running)

    def largest_run(self) -> int:
        """Cells of the largest run that was made since this was last asked, or is made now."""
        running = [sum(entry.job.cells for entry in batch.entries) for _, batch in self._workers.running]
        largest, self._largest = max((self._largest, *running)), 0
        return largest

    @property
    def waiting_requests(self) -> int:
        """Calls of `run` that have not returned."""
        return len(self._waiting)

    # Life

    async def start(self) -> None:
        """Starts the workers. Raises RuntimeError when called twice."""
        if self._loop is not None:
            raise RuntimeError("the engine has been started before")
        self._loop = asyncio.get_running_loop()
        self._inline.start(self._loop, self._deliver)
        self._workers.start(self._loop, self._deliver, self._worker_ended)

    async def warm_up(self, jobs: Iterable[Job]) -> None:
        """Runs each of these small jobs alone, so that ready means able to serve, and once more to see what it costs.
        Raises NotReady where one fails, and why.
        """
        for job in jobs:
            for _ in range(2):
                await self._warm(job)
            self._known_good = self._known_good or job

    async def attempt(self, job: Job) -> JobResult:
        """The result of a job that is to show whether its graph works, whatever else is queued. Raises ModelFailed."""
        (result,) = await self._submit([job], self._workers, bounded=False)
        return result

    async def calibrate(self, jobs: Sequence[Job], repetitions: int = 4) -> None:
        """Measures what runs cost here by running these alone, of one graph and of many sizes. Raises NotReady as
        above.
        """
        if not jobs:
            return
        least = [math.inf] * len(jobs)
        for _ in range(repetitions):
            for i, job in enumerate(jobs):
                result = await self._warm(job)
                least[i] = min(least[i], result.work)
        self._policy.costs.fit(jobs, least)
        # The warm-up's first runs built their sessions.
        self._workers.batches.forget_speed()
        logger.debug("a run costs %s", self._policy.costs.rates)

    async def _warm(self, job: Job) -> JobResult:
        try:
            (result,) = await self._submit([job], self._workers, bounded=False)
        except ModelFailed as error:
            self._suspended = f"the warm-up of {job.graph.name} failed: {error.detail}"
            raise NotReady(self._suspended) from error
        return result

    async def relieved(self, give_back: Callable[[], None]) -> None:
        """Calls this on a thread. Runs that need memory wait while that is given back, so the event loop makes none."""
        self._giving_back = True
        try:
            while len(self._inline):
                await asyncio.sleep(0)
            await asyncio.to_thread(give_back)
        finally:
            self._giving_back = False

    async def stop(self, timeout: float = 30.0) -> bool:
        """Refuses new work, lets what was admitted finish, ends the workers. False where `timeout` seconds were too
        few.
        """
        self._draining = True
        if self._loop is None:
            return True
        if self._checking is not None:
            self._checking.cancel()
        if not self._waiting:
            self._nobody_waits.set()
        began = time.monotonic()
        drained = await _within(self._nobody_waits, timeout)
        for pending in self._waiting:
            pending.fail(Draining(f"shutting down; this was not computed within the {timeout:g} s given to finish"))
        dropped = [*self._inline.end(), *self._workers.end()]
        for ticket in dropped:
            ticket.pending.fail(Draining("shutting down"))
        self._count_dropped(len(dropped), Draining.reason)
        # A run that nobody waits for any more may still be going on.
        if not await _within(self._workers_ended, timeout - (time.monotonic() - began)):
            return False
        self._workers.join()
        return drained

    # Requests, on the event loop

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        """The results of these jobs, in order. They are admitted together or not at all.

        `deadline` is a time of `clock`. Raises PayloadTooLarge, Overloaded, Draining or NotReady at the door; later
        DeadlineExceeded, ModelFailed (the first job that failed alone), NotReady or Draining. When the awaiting task is
        cancelled, or one of the jobs fails, those still queued are never computed.
        """
        if not jobs:
            return []
        small = not self._giving_back and self._policy.inline(jobs) and all(map(self._runner.ready, jobs))
        if (reason := self._closed if small else self.health) is not None:
            refusal = Draining(reason) if self._draining else NotReady(reason)
            tell(self._observer.rejected, refusal.reason)
            raise refusal
        return await self._submit(jobs, self._inline if small else self._workers, deadline)

    def refusal(self, jobs: int, cells: int) -> Overloaded | None:
        """What `run` would tell so many jobs that wait for a worker, if the queue has no room for them now."""
        return self._workers.batches.refusal(jobs, cells)

    def room(self, job: Job) -> int:
        """How many jobs like this one may share a run on the event loop; 0 where it is too large for that, has to wait
        for its session or for memory, or no work is taken.
        """
        if self._closed is not None or self._giving_back:
            return 0
        if not self._policy.inline((job,)) or not self._runner.ready(job):
            return 0
        share = self._policy.share(job)
        return max(1, min(share.jobs, share.cells // job.cells))

    def run_at_once(self, job: Job, one: Job, count: int, *, full: bool) -> JobResult | None:
        """The result of `job`, run here and now: it is `count` jobs like `one`, at most as many as there is `room` for,
        in one, and whoever asks cuts their parts. `full` says that there were more.

        None where it failed: run one by one, each will show whether the fault was its own.
        """
        tell(self._observer.queued, job.graph.name, count)
        result = self._compute.together(job, count, "full" if full else "idle")
        if result is not None:
            self._worked(one, job.cells, result)
        return result

    async def _submit(
        self,
        jobs: Sequence[Job],
        lane: Inline[Ticket] | Workers[Ticket],
        deadline: float | None = None,
        *,
        bounded: bool = True,
    ) -> list[JobResult]:
        assert self._loop is not None
        pending = Pending(self._loop.create_future(), len(jobs))
        now = self._clock()
        tickets = [Ticket(job, now, deadline, pending=pending, index=i) for i, job in enumerate(jobs)]
        self._enqueue(tickets, lane, bounded)
        timer = None
        if deadline is not None and lane is self._workers:
            timer = self._loop.call_later(max(0.0, deadline - now), _expire, pending, now, deadline)
        self._waiting.add(pending)
        reason = ClientClosedRequest.reason
        try:
            return await pending.future
        except ServiceError as error:
            reason = error.reason
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if pending.left:
                self._abandon(pending, tickets, lane, reason)
            self._waiting.discard(pending)
            if self._draining and not self._waiting:
                self._nobody_waits.set()
            # The future keeps its exception, whose traceback keeps this frame: it must not keep the future.
            del pending, tickets

    def _enqueue(self, tickets: list[Ticket], lane: Inline[Ticket] | Workers[Ticket], bounded: bool) -> None:
        try:
            lane.put(tickets, bounded=bounded)
        except ServiceError as error:
            tell(self._observer.rejected, error.reason)
            raise
        if len(tickets) == 1:
            tell(self._observer.queued, tickets[0].job.graph.name, 1)
            return
        for graph, jobs in Counter(ticket.job.graph.name for ticket in tickets).items():
            tell(self._observer.queued, graph, jobs)

    def _abandon(
        self, pending: Pending, tickets: list[Ticket], lane: Inline[Ticket] | Workers[Ticket], reason: str
    ) -> None:
        self._count_dropped(len(lane.remove(tickets)), reason)
        if pending.future.done() and not pending.future.cancelled():
            # Else asyncio logs it as never retrieved where the waiting task was cancelled in the same turn.
            pending.future.exception()

    def _count_dropped(self, jobs: int, reason: str) -> None:
        if jobs:
            tell(self._observer.dropped, jobs, reason)

    # Results, on the event loop

    def _deliver(self, done: Done[Ticket]) -> None:
        for ticket in done.batch.expired:
            ticket.pending.fail(late(ticket.arrived, ticket.deadline or done.taken))
        self._count_dropped(len(done.batch.expired), DeadlineExceeded.reason)
        for ticket, result in zip(done.batch.entries, done.results, strict=True):
            if isinstance(result, JobResult):
                result.queue = done.taken - ticket.arrived
            ticket.pending.settle(ticket.index, result)
        worked = [result for result in done.results if isinstance(result, JobResult)]
        if worked:
            entries = done.batch.entries
            cells = sum(ticket.job.cells for ticket in entries)
            self._largest = max(self._largest, cells)
            # Else it failed, and its members were run again.
            whole = worked[0].batch_jobs == len(entries)
            self._worked(entries[0].job if whole else None, cells, worked[0])
        elif done.results:
            self._failures += 1
            if self._failures >= self._failures_allowed and self._checking is None and self._suspended is None:
                self._doubt()

    def _worked(self, one: Job | None, cells: int, result: JobResult) -> None:
        """A run of so many cells, of jobs like this one."""
        self._failures = 0
        if one is None:
            return
        # Alone, each would take this: what sharing a run saves counts as speed.
        predicted = result.batch_jobs * self._policy.costs.seconds(one)
        self._workers.batches.throughput.record(predicted, result.compute + result.batch_assembly)
        self._policy.costs.record(one, cells, result.work)

    def _doubt(self) -> None:
        assert self._loop is not None
        if self._known_good is None:
            self._suspend(f"{self._failures} batches in a row failed")
        else:
            self._checking = self._loop.create_task(self._check(self._known_good))

    async def _check(self, job: Job) -> None:
        """Requests that fail are the clients' affair, a device that fails is ours: this job worked before."""
        try:
            while True:
                try:
                    await self._submit([job], self._workers, bounded=False)
                except ModelFailed as error:
                    self._suspend(
                        f"{self._failures} batches in a row failed, and so did one known to work: {error.detail}"
                    )
                else:
                    self._suspended, self._failures = None, 0
                    return
                await asyncio.sleep(self._recheck)
        except (NotReady, Draining):
            return
        finally:
            self._checking = None

    def _suspend(self, reason: str) -> None:
        if self._suspended is None:
            logger.error("the engine takes no work: %s", reason)
        self._suspended = reason
        self._fail_all(reason)

    def _fail_all(self, reason: str) -> None:
        for pending in self._waiting:
            pending.fail(NotReady(reason))

    def _worker_ended(self, reason: str | None) -> None:
        if reason is not None:
            self._dead = reason
            self._fail_all(reason)
        self._working -= 1
        if not self._working:
            self._workers_ended.set()


def late(arrived: float, deadline: float) -> DeadlineExceeded:
    """Both are times of the engine's clock."""
    if deadline <= arrived:
        return exceeded(deadline, "that had already passed when it was to be queued")
    return exceeded(deadline, f"it was queued {deadline - arrived:.3g} s before, and not computed yet")


def _expire(pending: Pending, arrived: float, deadline: float) -> None:
    pending.fail(late(arrived, deadline))


async def _within(event: asyncio.Event, timeout: float) -> bool:
    try:
        async with asyncio.timeout(max(0.0, timeout)):
            await event.wait()
    except TimeoutError:
        return False
    return True
