"""Outputs written to arrays of the caller's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.engine.batches import Batches, Entry, Limits
from service.engine.compute import Compute
from service.engine.gpu_policy import GpuPolicy
from service.engine.job import Into, Job, JobResult
from service.engine.memory import HostMemory
from service.engine.observer import Unobserved
from service.engine.policy import CpuPolicy, Policy
from service.engine.session import Sessions
from tests.service.engine.exports import exported, exported_job
from tests.service.engine.fakes import FakeRunner, job

OUTPUTS = ("weights", "scores", "half.output")


def into(one: Job) -> Into:
    """Arrays of what is no number, within a larger one: exactly they are to be written."""
    rows, queries, heads, width = one.queries.shape
    keys = one.keys.shape[1]
    arrays = {}
    for name in one.outputs:
        shape = (rows, queries, heads, width) if name.endswith("output") else (rows, heads, queries, keys)
        kind = np.float16 if name.startswith("half.") else np.float32
        around = np.full(int(np.prod(shape)) + 2, np.nan, kind)
        arrays[name] = around[1:-1].reshape(shape)
    return Into(arrays)


def compute(sessions: Sessions, *jobs: Job) -> list[JobResult]:
    results = Compute(sessions, Unobserved(), lambda: 0.0)(jobs, "idle")
    assert all(isinstance(one, JobResult) for one in results), results
    return [one for one in results if isinstance(one, JobResult)]


@pytest.mark.parametrize("bound", [False, True], ids=["written there", "copied there"])
@pytest.mark.parametrize("encoding", exported())
def test_the_same_bits_come_to_the_callers_arrays_and_nothing_beside_them(encoding: str, bound: bool) -> None:
    sessions = Sessions("cpu", memory=HostMemory() if bound else None)
    plain = exported_job(sessions, encoding, OUTPUTS, tokens=7, seed=3)
    placed = replace(plain, into=into(plain))
    (expected,) = compute(sessions, plain)
    for _ in range(3):
        (found,) = compute(sessions, placed)
        assert placed.into is not None
        for name, array in expected.outputs.items():
            there = placed.into.arrays[name]
            assert found.outputs[name] is there
            assert there.tobytes() == array.tobytes()
            assert np.isnan(there.base[[0, -1]]).all()  # type: ignore[index]
            there[...] = np.nan


def test_what_is_bound_follows_the_inputs(tmp_path: Path) -> None:
    sessions = Sessions("cpu")
    first, second = (exported_job(sessions, "rope", ("scores",), tokens=6, seed=seed) for seed in (1, 2))
    target = into(first)
    for one in (first, second, first, replace(second, outputs=("scores",)), first):
        (expected,) = compute(sessions, one)
        (found,) = compute(sessions, replace(one, into=target))
        assert found.outputs["scores"].tobytes() == expected.outputs["scores"].tobytes()


def test_runs_at_the_same_time_write_the_same_arrays_without_harm() -> None:
    sessions = Sessions("cpu")
    plain = exported_job(sessions, "rope", ("scores",), tokens=64, seed=1)
    placed = replace(plain, into=into(plain))
    (expected,) = compute(sessions, plain)
    with ThreadPoolExecutor(4) as pool:
        for (found,) in pool.map(lambda _: compute(sessions, placed), range(200)):
            assert found.outputs["scores"].tobytes() == expected.outputs["scores"].tobytes()


def test_arrays_of_another_shape_are_an_error_and_not_written() -> None:
    sessions = Sessions("cpu")
    plain = exported_job(sessions, "rope", ("scores",), tokens=6, seed=1)
    other = into(exported_job(sessions, "rope", ("scores",), tokens=5, seed=1))
    (failure,) = Compute(sessions, Unobserved(), lambda: 0.0)([replace(plain, into=other)], "idle")
    assert not isinstance(failure, JobResult)
    assert np.isnan(other.arrays["scores"]).all()


def test_numbers_that_are_not_finite_are_counted_there() -> None:
    sessions = Sessions("cpu")
    plain = exported_job(sessions, "rope", ("scores",), tokens=6, seed=1)
    queries = plain.queries.copy()
    queries[0, 2] = np.inf
    plain = replace(plain, queries=queries)
    (expected,), (found,) = compute(sessions, plain), compute(sessions, replace(plain, into=into(plain)))
    assert found.nonfinite == expected.nonfinite > 0


@pytest.mark.parametrize("policy", [CpuPolicy(), GpuPolicy()])
def test_such_a_job_runs_alone_even_where_it_is_queued_twice(policy: Policy) -> None:
    ordinary = job(1.0)
    placed = replace(ordinary, into=into(ordinary))
    queue: Batches[Entry] = Batches(policy, Limits())
    queue.put([Entry(one, 0.0) for one in (ordinary, placed, placed, ordinary, replace(placed))])
    taken = []
    while (batch := queue.next_batch(0.0)) is not None:
        taken.append([entry.job for entry in batch.entries])
    assert [len(jobs) for jobs in taken if jobs[0].into is not None] == [1, 1, 1]
    assert sorted(len(jobs) for jobs in taken if jobs[0].into is None) in ([1, 1], [2])


def test_a_runner_that_writes_elsewhere_has_its_answer_copied() -> None:
    one = replace(job(3.0), into=into(job(3.0)))
    (result,) = Compute(FakeRunner(), Unobserved(), lambda: 0.0)([one], "idle")
    assert isinstance(result, JobResult)
    assert one.into is not None
    assert result.outputs["scores"] is one.into.arrays["scores"]
    assert (one.into.arrays["scores"] == 3).all()
