"""The queue: admits jobs, bounded by what they cost, and forms batches of them. Pure: no threads, no clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from service.deadline import told
from service.engine.job import Job
from service.engine.policy import Policy
from service.engine.share import ALONE
from service.errors import Overloaded, PayloadTooLarge


@dataclass(frozen=True, slots=True)
class Limits:
    """What the queue holds at most. Cells are float32 values of output, so 2**26 of them are 256 MB of answers."""

    queued_jobs: int = 1024
    queued_cells: int = 2**28
    job_cells: int = 2**27

    def __post_init__(self) -> None:
        if not 0 < self.job_cells <= self.queued_cells:
            raise ValueError(
                f"one job may have {self.job_cells} cells and the whole queue {self.queued_cells}: "
                "the largest job must be over 0 and fit into an empty queue"
            )
        if self.queued_jobs < 1:
            raise ValueError(f"the queue must hold at least 1 job, not {self.queued_jobs}")


@dataclass(slots=True, eq=False)
class Entry:
    """A job in the queue. Times are those of the caller's clock, in seconds."""

    job: Job
    arrived: float
    deadline: float | None = None
    group: Hashable = field(default=None, init=False)
    seconds: float = field(default=0.0, init=False)
    """What it is predicted to take, alone."""

    def late(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline


E = TypeVar("E", bound=Entry)


@dataclass(slots=True)
class Batch(Generic[E]):
    """What to run next, oldest first, and the entries found past their deadline on the way. One of the lists may be
    empty.
    """

    entries: list[E]
    expired: list[E]
    trigger: str


@dataclass(slots=True)
class Throughput:
    """Work a second of one worker, in whatever unit, over roughly the last `1 / (1 - keep)` runs. It tells clients when
    to come back.
    """

    work: float = 1e6
    seconds: float = 0.02
    keep: float = 0.95
    runs: int = 0

    @property
    def settled(self) -> bool:
        """Whether it is measured, and no longer what was assumed at first."""
        return self.runs * (1 - self.keep) >= 1

    def record(self, work: float, seconds: float) -> None:
        self.work = self.keep * self.work + work
        self.seconds = self.keep * self.seconds + seconds
        self.runs += 1

    def time_for(self, work: float) -> float:
        return work * self.seconds / self.work


class Batches(Generic[E]):
    """Entries in order of arrival. A batch is the oldest entry and those of its group that the policy lets join it."""

    def __init__(self, policy: Policy, limits: Limits, workers: int = 1) -> None:
        self.limits = limits
        self.forget_speed()
        self._policy = policy
        self._workers = workers
        # Linked lists: looking at the first of a plain dict walks over all that was deleted before it.
        self._order: OrderedDict[E, None] = OrderedDict()
        self._groups: dict[Hashable, OrderedDict[E, None]] = {}
        self._cells = 0
        self._seconds = 0.0

    def forget_speed(self) -> None:
        """What was seen until now was not how runs will be."""
        self.throughput = Throughput(work=1.0, seconds=1.0)
        """Of work in the seconds that it was predicted to take: of a core that others use too there are fewer."""

    def __len__(self) -> int:
        return len(self._order)

    @property
    def cells(self) -> int:
        """The cost of all that is queued."""
        return self._cells

    def waiting(self, now: float) -> dict[str, tuple[int, float]]:
        """Of each graph with queued jobs: how many, and for how long the oldest of them."""
        found: dict[str, tuple[int, float]] = {}
        for entry in self._order:
            jobs, longest = found.get(entry.job.graph.name, (0, 0.0))
            found[entry.job.graph.name] = jobs + 1, max(longest, now - entry.arrived)
        return found

    @property
    def retry_after(self) -> float:
        """Seconds until what is queued now will be done, an estimate."""
        return min(60.0, max(0.1, self._wait()))

    def put(self, entries: Sequence[E]) -> None:
        """Admits all of these or none.

        Raises Overloaded where they do not fit now or would not be done by their deadline, PayloadTooLarge where they
        would not fit into an empty queue either.
        """
        limits = self.limits
        if len(entries) == 1:
            cells = largest = entries[0].job.cells
        else:
            cells = sum(entry.job.cells for entry in entries)
            largest = max((entry.job.cells for entry in entries), default=0)
        if largest > limits.job_cells:
            raise PayloadTooLarge(
                f"one encoding's answer has {largest} cells (batch x heads x queries x keys x outputs), the limit is "
                f"{limits.job_cells}; send fewer tokens or ask for fewer outputs",
                cells=largest,
                limit=limits.job_cells,
            )
        if cells > limits.queued_cells or len(entries) > limits.queued_jobs:
            raise PayloadTooLarge(
                f"the request makes {len(entries)} jobs of {cells} cells in all, the limits are "
                f"{limits.queued_jobs} jobs and {limits.queued_cells} cells; compare fewer encodings at once",
                cells=cells,
                limit=limits.queued_cells,
            )
        if (refusal := self.refusal(len(entries), cells)) is not None:
            raise refusal
        self._check_in_time(entries)
        self.add(entries)

    def _wait(self, more: float = 0.0) -> float:
        """Seconds until all that is queued will be done, and so much more."""
        return self.throughput.time_for(self._seconds + more) / self._workers

    def _check_in_time(self, entries: Sequence[E]) -> None:
        """Raises Overloaded for what would wait until its deadline: nobody waits for a refusal as long."""
        if not self._order or not self.throughput.settled or not entries or entries[0].deadline is None:
            return
        left = entries[0].deadline - entries[0].arrived
        wait = self._wait(sum(self._policy.costs.seconds(entry.job) for entry in entries))
        # One whose time is over before it came is not told to come back.
        if 0 < left < wait:
            advised = self.retry_after
            raise Overloaded(
                f"{len(self)} jobs are queued, and this would be done in about {wait:.1f} s, after "
                f"{told(entries[0].deadline)}, which is {left:.3g} s away; try again in about {advised:.1f} s",
                retry_after=advised,
                queued_jobs=len(self),
                queued_cells=self._cells,
            )

    def refusal(self, jobs: int, cells: int) -> Overloaded | None:
        """What so many jobs are told that do not fit now; None where they do."""
        limits = self.limits
        if self._cells + cells <= limits.queued_cells and len(self) + jobs <= limits.queued_jobs:
            return None
        wait = self.retry_after
        return Overloaded(
            f"{len(self)} jobs of {self._cells} cells are queued and {jobs} more of {cells} cells do not "
            f"fit: the limits are {limits.queued_jobs} jobs and {limits.queued_cells} cells; try again in about "
            f"{wait:.1f} s",
            retry_after=wait,
            queued_jobs=len(self),
            queued_cells=self._cells,
            limit_jobs=limits.queued_jobs,
            limit_cells=limits.queued_cells,
        )

    def add(self, entries: Iterable[E]) -> None:
        """Admits these whatever the limits say: for the engine's own checks."""
        for entry in entries:
            entry.group = self._policy.group(entry.job)
            entry.seconds = self._policy.costs.seconds(entry.job)
            self._order[entry] = None
            group = self._groups.get(entry.group)
            if group is None:
                group = self._groups[entry.group] = OrderedDict()
            group[entry] = None
            self._cells += entry.job.cells
            self._seconds += entry.seconds

    def remove(self, entries: Iterable[E]) -> list[E]:
        """Takes these out, and returns those that were still queued."""
        found = [entry for entry in entries if entry in self._order]
        for entry in found:
            self._take(entry)
        return found

    def clear(self) -> list[E]:
        return self.remove(list(self._order))

    def next_batch(self, now: float) -> Batch[E] | None:
        """The next batch, or None where nothing is queued. Splitting it between idle workers was tried, and lost."""
        if not self._order:
            return None
        batch: Batch[E] = Batch([], [], "idle")
        while self._order and not batch.entries:
            oldest = next(iter(self._order))
            if oldest.late(now):
                batch.expired.append(oldest)
                self._take(oldest)
            else:
                self._fill(batch, self._groups[oldest.group], now)
        return batch

    def _fill(self, batch: Batch[E], group: OrderedDict[E, None], now: float) -> None:
        cells, share = 0, ALONE
        while group:
            entry = next(iter(group))
            if entry.late(now):
                batch.expired.append(entry)
            elif not batch.entries:
                share = self._policy.share(entry.job)
                batch.entries.append(entry)
                cells = entry.job.cells
            elif len(batch.entries) < share.jobs and cells + entry.job.cells <= share.cells:
                batch.entries.append(entry)
                cells += entry.job.cells
            else:
                batch.trigger = "full"
                return
            self._take(entry)

    def _take(self, entry: E) -> None:
        del self._order[entry]
        group = self._groups[entry.group]
        del group[entry]
        if not group:
            del self._groups[entry.group]
        self._cells -= entry.job.cells
        # What rounding has left of it must not add up.
        self._seconds = self._seconds - entry.seconds if self._order else 0.0
