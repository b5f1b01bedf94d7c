"""The queue, as claims about every order of puts, removals and batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from service.engine.batches import Batches, Entry, Limits, Throughput
from service.engine.cost import Costs, Rates
from service.engine.policy import CpuPolicy
from service.errors import Overloaded, PayloadTooLarge
from tests.service.engine.fakes import job

POLICY = CpuPolicy(
    Costs(Rates(run=10, input=0, cell=1, product=0)), shared_share=4, run_cells=100, run_jobs=5, run_seconds=100
)
"""Jobs of up to 40 cells share runs of up to 90."""
LIMITS = Limits(queued_jobs=12, queued_cells=400, job_cells=200)


def entry(tokens: int = 2, cells: int = 4, arrived: float = 0.0, deadline: float | None = None) -> Entry:
    return Entry(job(tokens=tokens, cells=cells), arrived, deadline)


def cost(entries: Sequence[Entry]) -> int:
    return sum(one.job.cells for one in entries)


class QueueMachine(RuleBasedStateMachine):
    """Every entry is in exactly one place: refused, queued, in a batch, expired or removed."""

    @initialize()
    def begin(self) -> None:
        self.batches: Batches[Entry] = Batches(POLICY, LIMITS)
        self.now = 0.0
        self.queued: list[Entry] = []  # a plain list in order of arrival: what the queue must amount to
        self.gone: list[Entry] = []

    @rule(
        shapes=st.lists(
            st.tuples(st.integers(1, 2), st.sampled_from([1, 2, 3, 5, 20, 39, 41, 150, 201])),
            min_size=1,
            max_size=4,
        ),
        patience=st.none() | st.integers(0, 2),
    )
    def put(self, shapes: list[tuple[int, int]], patience: int | None) -> None:
        deadline = None if patience is None else self.now + patience
        group = [entry(tokens, cells, self.now, deadline) for tokens, cells in shapes]
        over = max(cells for _, cells in shapes) > LIMITS.job_cells or cost(group) > LIMITS.queued_cells
        full = (
            cost(self.queued) + cost(group) > LIMITS.queued_cells or len(self.queued) + len(group) > LIMITS.queued_jobs
        )
        if over:
            with pytest.raises(PayloadTooLarge):
                self.batches.put(group)
        elif full:
            with pytest.raises(Overloaded, match="try again") as caught:
                self.batches.put(group)
            assert caught.value.retry_after > 0
        else:
            self.batches.put(group)
            self.queued += group

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.queued + self.gone), unique_by=id))
        removed = self.batches.remove(chosen)
        assert removed == [one for one in chosen if one in self.queued]
        self._leave(removed)

    @rule(later=st.integers(0, 2))
    def wait(self, later: int) -> None:
        self.now += later

    @rule()
    def take(self) -> None:
        batch = self.batches.next_batch(self.now)
        if batch is None:
            assert not self.queued
            return
        taken, late = batch.entries, batch.expired
        assert taken or late
        assert all(one.late(self.now) for one in late)
        assert not any(one.late(self.now) for one in taken)
        alive = [one for one in self.queued if one not in late]
        if taken:
            assert taken[0] is alive[0]  # the oldest first
            alike = [one for one in alive if one.job.key == taken[0].job.key]
            assert taken == alike[: len(taken)]  # one key, in its order
            assert len(taken) == 1 or (cost(taken) <= 90 and len(taken) <= POLICY.run_jobs)
            if batch.trigger == "idle":
                assert taken == alike
            elif not alike[len(taken)].late(self.now):
                jobs, cells = POLICY.share(taken[0].job)
                assert len(taken) == jobs or cost(taken) + alike[len(taken)].job.cells > cells
        self._leave(taken + late)

    @rule()
    def clear(self) -> None:
        assert self.batches.clear() == self.queued
        self._leave(list(self.queued))

    @invariant()
    def accounts_agree(self) -> None:
        assert len(self.batches) == len(self.queued)
        assert self.batches.cells == cost(self.queued)
        assert sum(len(group) for group in self.batches._groups.values()) == len(self.queued)
        assert all(self.batches._groups.values())

    def teardown(self) -> None:
        """Whatever is left comes out too, and nothing stays behind."""
        while (batch := self.batches.next_batch(self.now)) is not None:
            self._leave(batch.entries + batch.expired)
        assert not self.queued
        assert not self.batches._order
        assert not self.batches._groups

    def _leave(self, entries: list[Entry]) -> None:
        for one in entries:
            self.queued.remove(one)
            assert one not in self.gone
            self.gone.append(one)


QueueMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=30, deadline=None)
TestQueue = QueueMachine.TestCase


def test_a_batch_is_the_oldest_job_and_those_like_it() -> None:
    batches: Batches[Entry] = Batches(POLICY, LIMITS)
    short, long, another_short = entry(2), entry(3), entry(2)
    batches.put([short])
    batches.put([long])
    batches.put([another_short])
    first, second = batches.next_batch(0.0), batches.next_batch(0.0)
    assert first is not None
    assert second is not None
    assert first.entries == [short, another_short]
    assert second.entries == [long]
    assert batches.next_batch(0.0) is None


def test_a_job_over_the_run_limit_runs_alone() -> None:
    batches: Batches[Entry] = Batches(POLICY, LIMITS)
    small, huge = entry(cells=4), entry(cells=POLICY.run_cells + 1)
    batches.put([huge, small])
    batch = batches.next_batch(0.0)
    assert batch is not None
    assert batch.entries == [huge]
    assert batch.trigger == "full"


def test_a_comparison_is_admitted_as_a_whole_or_not_at_all() -> None:
    batches: Batches[Entry] = Batches(POLICY, Limits(queued_jobs=3))
    batches.put([entry(), entry()])
    with pytest.raises(Overloaded) as caught:
        batches.put([entry(), entry()])
    assert len(batches) == 2
    assert caught.value.extra["queued_jobs"] == 2
    assert caught.value.extra["limit_jobs"] == 3
    assert "2 jobs" in caught.value.detail
    batches.put([entry()])


@pytest.mark.parametrize(
    ("cells", "allowed"),
    [([200], True), ([201], False), ([200, 200], True), ([200, 200, 1], False), ([1] * 12, True), ([1] * 13, False)],
)
def test_what_could_never_be_admitted_is_too_large_and_not_a_matter_of_waiting(cells: list[int], allowed: bool) -> None:
    batches: Batches[Entry] = Batches(POLICY, LIMITS)
    if allowed:
        batches.put([entry(cells=one) for one in cells])
        return
    with pytest.raises(PayloadTooLarge) as caught:
        batches.put([entry(cells=one) for one in cells])
    assert str(caught.value.extra["limit"]) in caught.value.detail
    assert len(batches) == 0


def test_an_entry_past_its_deadline_is_handed_out_as_expired_only() -> None:
    batches: Batches[Entry] = Batches(POLICY, LIMITS)
    late, alive = entry(deadline=1.0), entry(deadline=3.0)
    batches.put([late])
    batches.put([alive])
    batch = batches.next_batch(1.0)
    assert batch is not None
    assert batch.expired == [late]
    assert batch.entries == [alive]


def test_an_expired_entry_gives_its_place_to_the_next_oldest_of_any_group() -> None:
    batches: Batches[Entry] = Batches(POLICY, LIMITS)
    late, next_oldest, like_the_late = entry(2, deadline=1.0), entry(3), entry(2)
    batches.put([late, next_oldest, like_the_late])
    batch = batches.next_batch(1.0)
    assert batch is not None
    assert batch.expired == [late]
    assert batch.entries == [next_oldest]


def test_an_entry_that_expired_behind_a_live_one_is_not_computed_with_it() -> None:
    batches: Batches[Entry] = Batches(POLICY, LIMITS)
    alive, late, another = entry(), entry(deadline=1.0), entry()
    batches.put([alive, late, another])
    batch = batches.next_batch(1.0)
    assert batch is not None
    assert batch.expired == [late]
    assert batch.entries == [alive, another]


def test_a_queue_of_expired_entries_gives_a_batch_of_nothing_else() -> None:
    batches: Batches[Entry] = Batches(POLICY, LIMITS)
    batches.put([entry(2, deadline=1.0), entry(3, deadline=1.0)])
    batch = batches.next_batch(2.0)
    assert batch is not None
    assert len(batch.expired) == 2
    assert not batch.entries
    assert len(batches) == 0


@given(st.lists(st.tuples(st.integers(1, 10**7), st.floats(1e-5, 1.0)), min_size=30, max_size=40))
def test_the_estimate_lies_between_the_slowest_and_the_fastest_runs_seen(runs: list[tuple[int, float]]) -> None:
    throughput = Throughput(keep=0.5)
    for cells, seconds in runs:
        throughput.record(cells, seconds)
    pace = [seconds / cells for cells, seconds in runs]
    assert min(pace) * 0.999 <= throughput.time_for(10**6) / 10**6 <= max(pace) * 1.001


def test_the_fuller_the_queue_the_longer_the_wait_that_is_advised() -> None:
    batches: Batches[Entry] = Batches(POLICY, Limits(queued_cells=2**26, job_cells=2**26, queued_jobs=10))
    waits = [batches.retry_after]
    for _ in range(5):
        batches.put([entry(cells=10**6)])
        waits.append(batches.retry_after)
    assert waits == sorted(waits)
    assert waits[-1] > waits[0]


def slow(factor: float, workers: int = 1) -> Batches[Entry]:
    """One that has seen runs take so many times what was predicted."""
    batches: Batches[Entry] = Batches(POLICY, LIMITS, workers)
    while not batches.throughput.settled:
        batches.throughput.record(1.0, factor)
    for _ in range(200):
        batches.throughput.record(1.0, factor)
    return batches


@given(st.floats(0.1, 50.0), st.integers(1, 4), st.integers(1, 5), st.floats(1.0, 5000.0))
def test_what_would_be_done_after_its_deadline_only_is_refused_at_once(
    factor: float, workers: int, before: int, patience: float
) -> None:
    batches = slow(factor, workers)
    batches.put([entry() for _ in range(before)])
    wait = factor * 14 * (before + 1) / workers  # each is predicted to take 10, and 1 for each of its 4 cells
    late = entry(arrived=7.0, deadline=7.0 + patience)
    if wait > patience * 1.001:
        with pytest.raises(Overloaded, match="after its deadline") as caught:
            batches.put([late])
        assert caught.value.retry_after == pytest.approx(min(60.0, factor * 14 * before / workers), rel=1e-3)
        assert len(batches) == before
    elif wait < patience * 0.999:
        batches.put([late])
        assert len(batches) == before + 1


@pytest.mark.parametrize("why", ["nothing waits", "no deadline", "nothing measured", "too late already"])
def test_it_is_not_refused_where_that_is_not_known(why: str) -> None:
    batches: Batches[Entry] = Batches(POLICY, LIMITS) if why == "nothing measured" else slow(100.0)
    if why != "nothing waits":
        batches.put([entry()])
    deadline = {"no deadline": None, "too late already": 3.0}.get(why, 8.0)
    batches.put([entry(arrived=7.0, deadline=deadline)])


@pytest.mark.parametrize("wrong", [{"job_cells": 0}, {"job_cells": 11, "queued_cells": 10}, {"queued_jobs": 0}])
def test_limits_that_would_admit_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="queue"):
        Limits(**wrong)
