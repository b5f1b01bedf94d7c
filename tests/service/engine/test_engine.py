"""The engine under a runner that does what it is told. A gate holds runs back, so no test depends on how fast anything
is.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from service.engine.batches import Limits
from service.engine.engine import Engine, Pending, Ticket
from service.engine.job import Job, JobResult
from service.engine.policy import CpuPolicy
from service.errors import DeadlineExceeded, Draining, ModelFailed, NotReady, Overloaded, PayloadTooLarge, ServiceError
from tests.service.engine.fakes import PATIENCE, Broken, FakeRunner, Observer, job, marks

Results = Sequence[list[JobResult] | BaseException]


@asynccontextmanager
async def running(runner: FakeRunner, *, workers: int = 1, **options: Any) -> AsyncIterator[Engine]:
    engine = Engine(runner, workers=workers, **options)
    await engine.start()
    try:
        async with asyncio.timeout(PATIENCE):
            yield engine
    finally:
        for gate in (runner.gate, *runner.gates.values()):
            if gate is not None:
                gate.set()
        await engine.stop(PATIENCE)


async def entered(runner: FakeRunner) -> None:
    """Waits for the next run to begin."""
    assert await asyncio.to_thread(runner.entered.acquire, timeout=PATIENCE)


async def begin(*calls: Coroutine[Any, Any, list[JobResult]]) -> list[asyncio.Task[list[JobResult]]]:
    """Starts these, and returns when each has queued its jobs."""
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    return tasks


async def busy(engine: Engine, runner: FakeRunner) -> asyncio.Task[list[JobResult]]:
    """Makes the only worker run something that lasts until the gate opens."""
    (task,) = await begin(engine.run([job(-1.0)]))
    await entered(runner)
    return task


def held() -> tuple[FakeRunner, threading.Event]:
    gate = threading.Event()
    return FakeRunner(gate=gate), gate


def only(results: list[JobResult]) -> float:
    """The one mark in the scores of one job."""
    (result,) = results
    (mark,) = marks(result.outputs)["scores"]
    return mark


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# Batching


def test_results_come_in_the_order_of_the_jobs() -> None:
    async def main() -> None:
        async with running(FakeRunner(), workers=3) as engine:
            results = await engine.run([job(float(i), tokens=1 + i % 3) for i in range(20)])
            assert [marks(result.outputs)["scores"] for result in results] == [{float(i)} for i in range(20)]

    asyncio.run(main())


def test_what_is_queued_when_the_worker_falls_idle_is_the_next_batch() -> None:
    async def main() -> None:
        runner, gate = held()
        async with running(runner) as engine:
            first = await busy(engine, runner)
            tasks = await begin(*(engine.run([job(float(i))]) for i in range(5)))
            assert (engine.queued_jobs, engine.running_jobs, engine.waiting_requests) == (5, 1, 6)
            gate.set()
            assert [only(results) for results in await asyncio.gather(*tasks)] == [0.0, 1.0, 2.0, 3.0, 4.0]
            await first
            assert runner.runs == [[-1.0], [0.0, 1.0, 2.0, 3.0, 4.0]]
            assert {(await task)[0].batch_jobs for task in tasks} == {5}

    asyncio.run(main())


def test_an_idle_worker_takes_a_single_job_without_waiting_for_more() -> None:
    async def main() -> None:
        runner = FakeRunner()
        async with running(runner) as engine:
            for i in range(5):
                assert only(await engine.run([job(float(i))])) == i
        assert runner.runs == [[0.0], [1.0], [2.0], [3.0], [4.0]]

    asyncio.run(main())


def test_requests_for_other_outputs_share_no_run_and_get_only_theirs() -> None:
    async def main() -> None:
        runner, gate = held()
        async with running(runner) as engine:
            await busy(engine, runner)
            wanted = [("scores",), ("weights", "scores"), ("output",), ("scores",)]
            tasks = await begin(*(engine.run([job(float(i), outputs=w)]) for i, w in enumerate(wanted)))
            gate.set()
            for i, (task, outputs) in enumerate(zip(tasks, wanted, strict=True)):
                (result,) = await task
                assert marks(result.outputs) == {name: {float(i)} for name in outputs}
            assert runner.runs == [[-1.0], [0.0, 3.0], [1.0], [2.0]]

    asyncio.run(main())


def test_a_batch_wakes_the_event_loop_once() -> None:
    async def main() -> None:
        runner, gate = held()
        async with running(runner) as engine:
            first = await busy(engine, runner)
            tasks = await begin(*(engine.run([job(float(i))]) for i in range(32)))
            loop = asyncio.get_running_loop()
            calls, wake = [], loop.call_soon_threadsafe

            def counted(*arguments: Any, **options: Any) -> asyncio.Handle:
                calls.append(arguments)
                return wake(*arguments, **options)

            loop.call_soon_threadsafe = counted  # type: ignore[assignment, method-assign]
            gate.set()
            await asyncio.gather(first, *tasks)
            assert len(calls) == len(runner.runs) == 2

    asyncio.run(main())


def test_all_workers_are_busy_where_there_is_work_for_them() -> None:
    class Together(FakeRunner):
        barrier = threading.Barrier(4)

        def run(self, *arguments: Any) -> Any:
            self.barrier.wait(PATIENCE)  # passes only when four runs are in it at once
            return super().run(*arguments)

    async def main() -> None:
        async with running(Together(), workers=4) as engine:
            for _ in range(3):
                await engine.run([job(tokens=1 + i) for i in range(4)])
                await asyncio.gather(*(engine.run([job(tokens=1 + i)]) for i in range(4)))

    asyncio.run(main())


def test_an_observer_sees_what_happens_to_a_request() -> None:
    async def main() -> None:
        observer = Observer()
        async with running(FakeRunner(), observer=observer) as engine:
            await engine.run([job(1.0), job(2.0)])
        name = "identity.none"
        assert observer.told == [
            ("queued", name, 2),
            ("started", name, 2, "idle"),
            ("finished", name, 2, "CPUExecutionProvider", "idle"),
        ]

    asyncio.run(main())


def test_the_time_in_the_queue_is_that_from_admission_to_the_run() -> None:
    async def main() -> None:
        clock = Clock()
        runner, gate = held()
        async with running(runner, clock=clock) as engine:
            await busy(engine, runner)
            (task,) = await begin(engine.run([job()]))
            clock.now += 7.0
            gate.set()
            (result,) = await task
            assert result.queue == 7.0

    asyncio.run(main())


def test_the_largest_run_is_told_while_it_lasts_and_once_after_it() -> None:
    async def main() -> None:
        runner, gate = held()
        async with running(runner, policy=CpuPolicy(inline_seconds=0)) as engine:
            (large,) = await begin(engine.run([job(cells=700)]))
            await entered(runner)
            assert engine.largest_run() == engine.largest_run() == 700
            gate.set()
            await large
            await engine.run([job(cells=30)])
            assert engine.largest_run() == 700
            assert engine.largest_run() == 0
            await engine.run([job(cells=30)])
            assert engine.largest_run() == 30

    asyncio.run(main())


def test_the_event_loop_makes_no_runs_while_memory_is_given_back() -> None:
    async def main() -> None:
        threads: list[int] = []

        def seen(_: list[float]) -> None:
            threads.append(threading.get_ident())

        def wait() -> None:
            assert given.wait(PATIENCE)

        given = threading.Event()
        small = job(cells=4)
        async with running(FakeRunner(fails=seen, built=True), policy=CpuPolicy(inline_seconds=1)) as engine:
            await engine.run([small])
            assert threads == [threading.get_ident()]
            assert engine.room(small) > 0
            giving = asyncio.create_task(engine.relieved(wait))
            await asyncio.sleep(0)
            assert engine.room(small) == 0
            assert only(await engine.run([small])) == 0.0
            assert threads[-1] != threading.get_ident()
            given.set()
            await giving
            await engine.run([small])
            assert threads[-1] == threading.get_ident()

    asyncio.run(main())


def test_no_jobs_give_no_results() -> None:
    async def main() -> None:
        async with running(FakeRunner()) as engine:
            assert await engine.run([]) == []

    asyncio.run(main())


# Small runs on the event loop


@dataclass
class Threads(FakeRunner):
    """Knows which threads ran it, and lets a clock go on by `seconds` in each run."""

    used: set[int] = field(default_factory=set)
    clock: Clock = field(default_factory=Clock)
    seconds: float = 0.0

    def run(self, *arguments: Any) -> Any:
        self.used.add(threading.get_ident())
        self.clock.now += self.seconds
        return super().run(*arguments)


def test_small_jobs_of_one_turn_are_one_run_on_the_event_loop() -> None:
    async def main() -> None:
        runner, observer = Threads(built=True), Observer()
        async with running(runner, observer=observer) as engine:
            results = await asyncio.gather(*(engine.run([job(float(i))]) for i in range(5)))
        assert [only(one) for one in results] == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert {result.batch_jobs for (result,) in results} == {5}
        assert runner.runs == [[0.0, 1.0, 2.0, 3.0, 4.0]]
        assert runner.used == {threading.get_ident()}
        assert observer.told[-2:] == [
            ("started", "identity.none", 5, "idle"),
            ("finished", "identity.none", 5, "CPUExecutionProvider", "idle"),
        ]

    asyncio.run(main())


@pytest.mark.parametrize("built", [True, False], ids=["on the event loop", "by a worker"])
def test_no_run_has_more_cells_than_its_limit_but_for_a_job_that_has_them_alone(built: bool) -> None:
    """BentoML#3710: batches were over their limit."""

    async def main() -> None:
        gate = threading.Event()
        runner, observer = Threads(built=built, gates={-1.0: gate}), Observer()
        async with running(runner, policy=CpuPolicy(run_cells=10), observer=observer) as engine:
            calls = [engine.run([job(float(i), cells=11 if i == 3 else 4)]) for i in range(6)]
            if built:
                found = await asyncio.gather(*calls)
            else:
                first = await busy(engine, runner)
                tasks = await begin(*calls)
                gate.set()
                found = await asyncio.gather(*tasks)
                await first
            assert [only(one) for one in found] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert [run for run in runner.runs if run != [-1.0]] == [[0.0, 1.0], [2.0], [3.0], [4.0, 5.0]]
        assert ("started", "identity.none", 2, "full") in observer.told

    asyncio.run(main())


def test_there_is_room_for_no_more_than_a_run_may_have() -> None:
    """For those that are made one job before the engine has them."""

    async def main() -> None:
        runner = Threads(built=True)
        policy = CpuPolicy(run_cells=10, run_jobs=3)
        async with running(runner, policy=policy) as engine:
            assert [engine.room(job(cells=cells)) for cells in (1, 3, 4, 5, 6, 11)] == [3, 3, 2, 2, 1, 1]
            assert engine.room(job(cells=10**8)) == 0, "too large to be run at once"
            runner.built = False
            assert engine.room(job()) == 0
        assert engine.room(job()) == 0

    asyncio.run(main())


@pytest.mark.parametrize(("built", "cells"), [(False, 4), (True, 10**8)])
def test_what_is_large_or_must_be_built_first_runs_on_a_thread(built: bool, cells: int) -> None:
    async def main() -> None:
        runner = Threads(built=built)
        async with running(runner, limits=Limits(job_cells=10**8, queued_cells=10**8)) as engine:
            await engine.run([job(cells=cells)])
        assert threading.get_ident() not in runner.used
        assert len(runner.used) == 1

    asyncio.run(main())


def test_small_runs_leave_the_event_loop_turns_for_others() -> None:
    async def main() -> None:
        runner = Threads(built=True, seconds=1e-3)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with running(runner, clock=runner.clock, turn=2.5e-3) as engine:
            other = asyncio.create_task(others())
            runs = [engine.run([job(float(i), tokens=1 + i)]) for i in range(12)]
            assert len(await asyncio.gather(*runs)) == 12
            other.cancel()
        assert len(runner.runs) == 12
        assert turns >= 12 / 3

    asyncio.run(main())


def test_a_small_job_whose_client_leaves_in_the_same_turn_is_not_waited_for() -> None:
    async def main() -> None:
        observer, runner = Observer(), Threads(built=True)
        async with running(runner, observer=observer) as engine:
            stays, leaves = (asyncio.create_task(engine.run([job(float(i))])) for i in range(2))
            asyncio.get_running_loop().call_soon(leaves.cancel)
            assert only(await stays) == 0.0
            with pytest.raises(asyncio.CancelledError):
                await leaves
            assert engine.queued_jobs == engine.waiting_requests == 0

    asyncio.run(main())


def test_a_small_job_past_its_deadline_is_not_computed() -> None:
    async def main() -> None:
        runner = Threads(built=True)
        async with running(runner, clock=runner.clock) as engine:
            with pytest.raises(DeadlineExceeded):
                await engine.run([job(1.0)], deadline=runner.clock.now)
            assert only(await engine.run([job(2.0)], deadline=runner.clock.now + 1)) == 2.0
        assert runner.runs == [[2.0]]

    asyncio.run(main())


def test_the_culprit_among_small_jobs_fails_alone_and_many_failures_suspend() -> None:
    async def main() -> None:
        runner = Threads(built=True, fails=lambda here: Broken("poison") if 1.0 in here else None)
        async with running(runner, failures_allowed=3) as engine:
            results: Results = await asyncio.gather(
                *(engine.run([job(float(i))]) for i in range(3)), return_exceptions=True
            )
            assert isinstance(results[1], ModelFailed)
            assert [only(one) for one in results if isinstance(one, list)] == [0.0, 2.0]
            for _ in range(3):
                assert engine.ready
                with pytest.raises(ModelFailed):
                    await engine.run([job(1.0)])
            assert not engine.ready

    asyncio.run(main())


def test_a_calibration_measures_what_runs_cost_here() -> None:
    async def main() -> None:
        runner = Threads(built=True, seconds=0.02)
        policy = CpuPolicy()
        async with running(runner, clock=runner.clock, work_clock=runner.clock, policy=policy) as engine:
            await engine.calibrate([job(tokens=tokens) for tokens in (1, 2, 4, 8)])
            assert len(runner.runs) == 4 * 4
            assert policy.costs.seconds(job(tokens=3)) == pytest.approx(0.02)
            await engine.run([job()])
        assert threading.get_ident() not in runner.used, "20 ms are too long for the event loop"

    asyncio.run(main())


# Clients that leave


def test_one_of_eight_in_flight_leaves_and_seven_get_their_answers() -> None:
    async def main() -> None:
        runner, gate = held()
        async with running(runner) as engine:
            first = await busy(engine, runner)
            runner.gates[0.0] = second = threading.Event()
            tasks = await begin(*(engine.run([job(float(i))]) for i in range(8)))
            gate.set()
            await first
            await entered(runner)
            assert engine.running_jobs == 8
            tasks[3].cancel()
            await asyncio.wait([tasks[3]])
            second.set()
            results: Results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results[3], asyncio.CancelledError)
            assert [only(one) for one in results if isinstance(one, list)] == [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0]
            assert only(await engine.run([job(9.0)])) == 9.0

    asyncio.run(main())


def test_jobs_of_a_client_that_left_while_they_were_queued_are_never_computed() -> None:
    async def main() -> None:
        observer = Observer()
        runner, gate = held()
        async with running(runner, observer=observer) as engine:
            await busy(engine, runner)
            stays, leaves = await begin(engine.run([job(1.0)]), engine.run([job(float(i)) for i in range(2, 7)]))
            leaves.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaves
            assert engine.queued_jobs == 1
            gate.set()
            assert only(await stays) == 1.0
            assert runner.runs == [[-1.0], [1.0]]
            assert ("dropped", 5, "cancelled") in observer.told

    asyncio.run(main())


# Failures


def test_the_culprit_fails_alone_and_the_engine_goes_on() -> None:
    async def main() -> None:
        runner, gate = held()
        runner.fails = lambda here: Broken("poison") if 3.0 in here else None
        async with running(runner) as engine:
            await busy(engine, runner)
            tasks = await begin(*(engine.run([job(float(i))]) for i in range(8)))
            gate.set()
            results: Results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results[3], ModelFailed)
            assert [only(one) for one in results if isinstance(one, list)] == [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0]
            assert engine.ready
            assert only(await engine.run([job(9.0)])) == 9.0

    asyncio.run(main())


def test_a_comparison_fails_with_its_first_job_and_the_rest_of_it_is_not_computed() -> None:
    async def main() -> None:
        observer, gate = Observer(), threading.Event()
        runner = FakeRunner(fails=lambda here: Broken() if 0.0 in here else None, gates={1.0: gate})
        async with running(runner, observer=observer) as engine:
            with pytest.raises(ModelFailed):
                await engine.run([job(float(i), tokens=1 + i) for i in range(4)])
            assert engine.queued_jobs == 0
            gate.set()
            assert only(await engine.run([job(9.0)])) == 9.0
            assert [0.0] in runner.runs
            assert not {2.0, 3.0} & {mark for run in runner.runs for mark in run}
            # The worker may or may not have begun with the second when the first is given back.
            assert {("dropped", 2, "model_failed"), ("dropped", 3, "model_failed")} & set(observer.told)

    asyncio.run(main())


def test_a_worker_that_dies_makes_the_engine_not_ready_and_leaves_nobody_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        observer = Observer()
        runner, gate = held()
        runner.fails = lambda _: SystemExit("the thread is gone")
        async with running(runner, observer=observer) as engine:
            first = await busy(engine, runner)
            tasks = await begin(*(engine.run([job(tokens=1 + i)]) for i in range(4)))
            gate.set()
            for task in [first, *tasks]:
                with pytest.raises(NotReady, match="died of SystemExit"):
                    await task
            assert not engine.ready
            assert not engine.alive
            assert engine.health is not None
            assert "died of SystemExit" in engine.health
            with pytest.raises(NotReady, match="died"):
                await engine.run([job()])
            assert ("rejected", "not_ready") in observer.told
            assert ("dropped", 1, "not_ready") in observer.told
            assert engine.queued_jobs == engine.running_jobs == engine.waiting_requests == 0

    asyncio.run(main())
    assert any(record.levelname == "CRITICAL" for record in caplog.records)


def test_batches_that_fail_again_and_again_make_the_engine_not_ready() -> None:
    async def main() -> None:
        runner = FakeRunner(fails=lambda _: Broken("no kernel image"))
        async with running(runner, failures_allowed=3) as engine:
            for _ in range(3):
                assert engine.ready
                with pytest.raises(ModelFailed):
                    await engine.run([job()])
            assert engine.health == "3 batches in a row failed"
            with pytest.raises(NotReady, match="3 batches in a row failed"):
                await engine.run([job()])

    asyncio.run(main())


def test_requests_that_wait_when_the_engine_gives_up_are_told_so() -> None:
    async def main() -> None:
        gate = threading.Event()
        runner = FakeRunner(fails=lambda here: Broken() if here == [0.0] else None, gates={1.0: gate})
        async with running(runner, failures_allowed=1) as engine:
            tasks = await begin(*(engine.run([job(float(i), tokens=1 + i)]) for i in range(3)))
            with pytest.raises(ModelFailed):
                await tasks[0]
            for task in tasks[1:]:  # one in flight, one queued
                with pytest.raises(NotReady, match="1 batches in a row failed"):
                    await task
            gate.set()

    asyncio.run(main())


def test_failures_with_successes_between_them_are_the_requests_affair() -> None:
    async def main() -> None:
        runner = FakeRunner(fails=lambda here: Broken() if 3.0 in here else None)
        async with running(runner, failures_allowed=2) as engine:
            for _ in range(5):
                with pytest.raises(ModelFailed):
                    await engine.run([job(3.0)])
                await engine.run([job(1.0)])
            assert engine.ready

    asyncio.run(main())


def test_requests_that_all_fail_do_not_take_the_engine_down_while_a_job_known_to_work_still_does() -> None:
    async def main() -> None:
        runner = FakeRunner(fails=lambda here: Broken() if 3.0 in here else None)
        async with running(runner, failures_allowed=2) as engine:
            await engine.warm_up([job(0.0)])
            for _ in range(20):
                with pytest.raises(ModelFailed):
                    await engine.run([job(3.0)])
            assert engine.ready
            assert [0.0] in runner.runs[1:]  # it was asked

    asyncio.run(main())


def test_a_device_that_recovers_makes_the_engine_ready_again() -> None:
    async def main() -> None:
        broken = True
        runner = FakeRunner(fails=lambda here: Broken("out of memory") if broken and here != [5.0] else None)
        async with running(runner, failures_allowed=2, recheck=0.0) as engine:
            await engine.warm_up([job(5.0)])
            runner.fails = lambda _: Broken("out of memory") if broken else None
            while engine.health is None:
                with pytest.raises(ServiceError):
                    await engine.run([job()])
            assert "known to work: identity.none failed on this input: Broken: out of memory" in engine.health
            broken = False
            while not engine.ready:
                await asyncio.sleep(0)
            assert only(await engine.run([job(4.0)])) == 4.0

    asyncio.run(main())


def test_an_engine_that_waits_for_its_device_to_recover_can_be_stopped() -> None:
    async def main() -> None:
        runner = FakeRunner()
        async with running(runner, failures_allowed=1, recheck=PATIENCE) as engine:
            await engine.warm_up([job(5.0)])
            runner.fails = lambda _: Broken()
            with pytest.raises(ModelFailed):
                await engine.run([job()])
            while engine.health is None:
                await asyncio.sleep(0)
            assert await engine.stop(PATIENCE)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert engine.waiting_requests == 0

    asyncio.run(main())


def test_a_run_that_does_not_return_makes_the_engine_not_ready_until_it_does() -> None:
    async def main() -> None:
        clock = Clock()
        runner, gate = held()
        async with running(runner, clock=clock, stall=60.0) as engine:
            task = await busy(engine, runner)
            clock.now += 60.0
            assert engine.ready
            clock.now += 1.0
            assert engine.health == "a run of identity.none has not returned for 61 s"
            gate.set()
            await task
            assert engine.ready

    asyncio.run(main())


# Admission and deadlines


def test_a_full_queue_refuses_and_takes_work_again_when_it_is_not() -> None:
    async def main() -> None:
        observer = Observer()
        runner, gate = held()
        async with running(runner, observer=observer, limits=Limits(queued_jobs=3)) as engine:
            first = await busy(engine, runner)
            tasks = await begin(engine.run([job(1.0), job(2.0)]))
            with pytest.raises(Overloaded) as caught:
                await engine.run([job(3.0), job(4.0)])
            assert caught.value.retry_after > 0
            assert ("rejected", "queue_full") in observer.told
            tasks += await begin(engine.run([job(5.0)]))
            gate.set()
            await asyncio.gather(first, *tasks)
            await engine.run([job(6.0)])
            assert not any(3.0 in run or 4.0 in run for run in runner.runs)

    asyncio.run(main())


def test_a_job_over_the_limit_is_refused_at_once() -> None:
    async def main() -> None:
        observer = Observer()
        limits = Limits(job_cells=100, queued_cells=1000)
        async with running(FakeRunner(), observer=observer, limits=limits) as engine:
            with pytest.raises(PayloadTooLarge, match="101 cells"):
                await engine.run([job(cells=1), job(cells=101)])
            await engine.run([job(cells=100)])
        assert [one for one in observer.told if one[0] in ("rejected", "queued")] == [
            ("rejected", "too_large"),
            ("queued", "identity.none", 1),
        ]

    asyncio.run(main())


def test_a_job_past_its_deadline_is_not_computed() -> None:
    async def main() -> None:
        clock, observer = Clock(), Observer()
        runner, gate = held()
        async with running(runner, clock=clock, observer=observer) as engine:
            await busy(engine, runner)
            late, patient = await begin(
                engine.run([job(1.0)], deadline=clock.now + 1000), engine.run([job(2.0)], deadline=clock.now + 3000)
            )
            clock.now += 1000
            gate.set()
            with pytest.raises(DeadlineExceeded, match="1e\\+03 s before"):
                await late
            assert only(await patient) == 2.0
            assert runner.runs == [[-1.0], [2.0]]
            assert ("dropped", 1, "deadline") in observer.told

    asyncio.run(main())


def test_a_deadline_is_kept_while_every_worker_is_busy() -> None:
    async def main() -> None:
        clock, observer = Clock(), Observer()
        runner, gate = held()
        async with running(runner, clock=clock, observer=observer) as engine:
            first = await busy(engine, runner)
            with pytest.raises(DeadlineExceeded):
                await engine.run([job(1.0), job(2.0)], deadline=clock.now)
            assert ("dropped", 2, "deadline") in observer.told
            gate.set()
            await first
            assert runner.runs == [[-1.0]]

    asyncio.run(main())


def test_a_run_that_outlasts_the_deadline_answers_nobody_and_disturbs_nobody() -> None:
    async def main() -> None:
        runner, gate = held()
        async with running(runner) as engine:
            (task,) = await begin(engine.run([job(1.0)], deadline=time.monotonic()))
            with pytest.raises(DeadlineExceeded):
                await task
            gate.set()
            assert only(await engine.run([job(2.0)])) == 2.0

    asyncio.run(main())


# Beginning and end


def test_an_engine_that_was_not_started_is_not_ready() -> None:
    async def main() -> None:
        engine = Engine(FakeRunner(), workers=1)
        with pytest.raises(NotReady, match="not been started"):
            await engine.run([job()])
        assert await engine.stop()

    asyncio.run(main())


def test_an_engine_starts_once() -> None:
    async def main() -> None:
        async with running(FakeRunner()) as engine:
            with pytest.raises(RuntimeError, match="started before"):
                await engine.start()

    asyncio.run(main())


def test_a_warm_up_runs_every_job_and_a_failing_one_says_why() -> None:
    async def main() -> None:
        runner = FakeRunner(fails=lambda here: Broken("no such operator") if 2.0 in here else None)
        async with running(runner) as engine:
            await engine.warm_up([job(0.0), job(1.0)])
            assert runner.runs == [[0.0], [0.0], [1.0], [1.0]]  # once to be built, once to be measured
            assert engine.ready
            with pytest.raises(NotReady, match=r"warm-up of identity\.none failed: .*no such operator"):
                await engine.warm_up([job(2.0)])
            assert not engine.ready

    asyncio.run(main())


def test_draining_finishes_what_was_admitted_and_refuses_the_rest() -> None:
    async def main() -> None:
        observer = Observer()
        runner, gate = held()
        others = set(threading.enumerate())
        async with running(runner, observer=observer) as engine:
            tasks = [await busy(engine, runner), *await begin(*(engine.run([job(tokens=1 + i)]) for i in range(4)))]
            stop = asyncio.create_task(engine.stop(PATIENCE))
            await asyncio.sleep(0)
            assert not engine.ready
            with pytest.raises(Draining):
                await engine.run([job()])
            assert ("rejected", "draining") in observer.told
            assert not stop.done()
            gate.set()
            await asyncio.gather(*tasks)
            assert await stop
            assert len(runner.runs) == 5
            left = set(threading.enumerate()) - others
            assert not any(thread.name.startswith("attention-engine") for thread in left)

    asyncio.run(main())


def test_a_drain_that_takes_too_long_tells_those_who_wait() -> None:
    async def main() -> None:
        observer = Observer()
        runner, gate = held()
        async with running(runner, observer=observer) as engine:
            first = await busy(engine, runner)
            (second,) = await begin(engine.run([job(1.0)]))
            assert not await engine.stop(0.0)
            for task in (first, second):
                with pytest.raises(Draining):
                    await task
            assert ("dropped", 1, "draining") in observer.told
            gate.set()
            assert await engine.stop(PATIENCE)
            assert runner.runs == [[-1.0]]

    asyncio.run(main())


def test_ten_thousand_requests_of_which_a_third_leave_or_fail_leave_nothing_behind() -> None:
    def alive() -> int:
        gc.collect()
        return sum(type(one) in (Ticket, Pending, Job) for one in gc.get_objects())  # isinstance would ask proxies

    async def main() -> None:
        observer = Observer()
        runner = FakeRunner(fails=lambda here: Broken() if any(mark % 10 == 9 for mark in here) else None)
        counts = {"answered": 0, "failed": 0, "left": 0}
        limits = Limits(queued_jobs=20_000)
        async with running(runner, workers=2, observer=observer, limits=limits, failures_allowed=10**6) as engine:

            async def client(i: int) -> None:
                try:
                    assert only(await engine.run([job(float(i), tokens=1 + i % 3)])) == i
                    counts["answered"] += 1
                except ModelFailed:
                    counts["failed"] += 1
                except asyncio.CancelledError:
                    counts["left"] += 1

            for start in range(0, 10_000, 500):
                tasks = [asyncio.create_task(client(i)) for i in range(start, start + 500)]
                await asyncio.sleep(0)
                for i in range(0, 500, 5):
                    tasks[i].cancel()
                await asyncio.gather(*tasks)
            assert sum(counts.values()) == 10_000
            assert counts["failed"] == 1000
            assert 0 < counts["left"] <= 2000
            assert engine.ready
            assert engine.queued_jobs == engine.queued_cells == engine.waiting_requests == 0
            assert await engine.stop(PATIENCE)
            assert engine.running_jobs == 0

    before = alive()
    asyncio.run(main())
    assert alive() <= before


def test_idle_workers_use_less_than_a_hundredth_of_a_core() -> None:
    async def main() -> None:
        others = set(threading.enumerate())
        async with running(FakeRunner(), workers=2) as engine:
            await engine.run([job()])
            clocks = [
                time.pthread_getcpuclockid(thread.ident)
                for thread in threading.enumerate()
                if thread.name.startswith("attention-engine") and thread.ident is not None and thread not in others
            ]
            assert len(clocks) == 2
            before = sum(map(time.clock_gettime, clocks))
            await asyncio.sleep(0.5)
            # Falling asleep takes microseconds. Looking for work every millisecond would take more than this.
            assert sum(map(time.clock_gettime, clocks)) - before < 0.01 * 0.5

    asyncio.run(main())
