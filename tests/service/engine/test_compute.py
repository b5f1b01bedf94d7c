from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.compute import Compute
from service.engine.job import JobResult
from service.errors import ModelFailed
from tests.service.engine.fakes import Broken, FakeRunner, Observer, job, marks


def compute(runner: FakeRunner, observer: Observer | None = None) -> Compute:
    ticks, tens = itertools.count(), itertools.count(step=10)
    return Compute(runner, observer or Observer(), lambda: float(next(ticks)), lambda: float(next(tens)))


def test_times_and_sizes_are_those_of_the_batch() -> None:
    first, second = compute(FakeRunner())([job(1.0), job(2.0)], "idle")
    for result in (first, second):
        assert isinstance(result, JobResult)
        assert (result.batch_assembly, result.compute, result.batch_jobs) == (1.0, 1.0, 2)
        assert result.work == 10.0
        assert result.provider == "CPUExecutionProvider"


def test_keys_are_counted_and_what_they_are_padded_with() -> None:
    observer = Observer()
    compute(FakeRunner(), observer)([job(tokens=3, batch=2), job(tokens=3)], "idle")
    padded = replace(job(tokens=3, batch=2), padded=(8, 16))
    compute(FakeRunner(), observer)([padded], "idle")
    compute(FakeRunner(fails=lambda _: Broken()), observer)([job()], "idle")
    assert observer.tokens == [("identity.none", 9, 0), ("identity.none", 6, 26)]


def test_results_are_views_of_the_outputs_of_one_run() -> None:
    results = compute(FakeRunner())([job(1.0), job(2.0)], "idle")
    bases = {id(result.outputs["scores"].base) for result in results if isinstance(result, JobResult)}
    assert len(bases) == 1


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_exactly_the_jobs_that_fail_alone_fail(bad: list[bool]) -> None:
    runner = FakeRunner(fails=lambda here: Broken("poison") if any(bad[int(mark)] for mark in here) else None)
    results = compute(runner)([job(float(i)) for i in range(len(bad))], "idle")
    for i, (result, poisoned) in enumerate(zip(results, bad, strict=True)):
        if poisoned:
            assert isinstance(result, ModelFailed)
            assert isinstance(result.__cause__, Broken)
        else:
            assert isinstance(result, JobResult)
            assert marks(result.outputs) == {"scores": {float(i)}}


def test_a_batch_that_fails_for_being_a_batch_fails_nobody() -> None:
    observer = Observer()
    runner = FakeRunner(fails=lambda here: Broken() if len(here) > 1 else None)
    results = compute(runner, observer)([job(float(i)) for i in range(3)], "full")
    assert all(isinstance(result, JobResult) and result.batch_jobs == 1 for result in results)
    assert runner.runs == [[0.0, 1.0, 2.0], [0.0], [1.0], [2.0]]
    name, provider = "identity.none", "CPUExecutionProvider"
    again = [("started", name, 1, "rerun"), ("finished", name, 1, provider, "rerun")]
    assert observer.told == [("started", name, 3, "full"), ("failed", name, 3, "full"), *again * 3]


def test_a_failure_names_the_graph_and_the_cause_and_is_short() -> None:
    (failure,) = compute(FakeRunner(fails=lambda _: Broken("x" * 10_000)))([job()], "idle")
    assert isinstance(failure, ModelFailed)
    assert "identity.none" in failure.detail
    assert "Broken: xxx" in failure.detail
    assert len(failure.detail) < 600


def test_a_runner_that_returns_too_few_rows_fails_no_neighbour() -> None:
    class Short(FakeRunner):
        def run(self, graph, outputs, masked, feeds, switches=(), into=None):  # type: ignore[no-untyped-def]
            found = super().run(graph, outputs, masked, feeds)
            return {name: array[:1] for name, array in found.items()}

    results = compute(Short())([job(1.0), job(2.0)], "idle")
    assert [marks(result.outputs)["scores"] for result in results if isinstance(result, JobResult)] == [{1.0}, {2.0}]


@pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit])
def test_what_is_no_ordinary_exception_is_not_swallowed(fatal: type[BaseException]) -> None:
    observer = Observer()
    with pytest.raises(fatal):
        compute(FakeRunner(fails=lambda _: fatal()), observer)([job(), job()], "idle")
    assert observer.count("started") == observer.count("failed") == 1


def test_an_observer_that_raises_disturbs_nothing() -> None:
    class Clumsy(Observer):
        def batch_started(self, graph: str, jobs: int, trigger: str) -> None:
            raise Broken

    (result,) = compute(FakeRunner(), Clumsy())([job(3.0)], "idle")
    assert isinstance(result, JobResult)
    np.testing.assert_array_equal(result.outputs["scores"], 3.0)
