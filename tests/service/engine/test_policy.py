from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.engine.batches import Batches, Entry, Limits
from service.engine.cost import Costs, Rates
from service.engine.device import CPU, CUDA
from service.engine.gpu_policy import GpuPolicy
from service.engine.job import Graph, Job, Tables
from service.engine.policy import CpuPolicy, policy_for
from tests.service.engine.fakes import NOWHERE, job

MEASURED = Rates(run=26e-6, input=5.4e-9, cell=5.3e-10, product=0)
"""Of 4 heads of 16, scores and weights, on one core."""
POLICY = CpuPolicy(Costs(MEASURED))


def sized(tokens: int, heads: int = 4, head_dim: int = 16, outputs: tuple[str, ...] = ("scores", "weights")) -> Job:
    x = np.zeros((1, tokens, heads, head_dim), np.float32)
    return Job(NOWHERE, Tables("", {}), outputs, x, x, None, heads * tokens * tokens * len(outputs))


def together(policy: CpuPolicy, one: Job, count: int) -> int:
    """How many of so many equal jobs share the first run."""
    batches: Batches[Entry] = Batches(policy, Limits())
    batches.put([Entry(one, 0.0) for _ in range(count)])
    batch = batches.next_batch(0.0)
    assert batch is not None
    return len(batch.entries)


@pytest.mark.parametrize(("tokens", "shares"), [(8, True), (64, True), (128, False), (2048, False)])
def test_four_heads_share_a_run_up_to_64_tokens(tokens: int, shares: bool) -> None:
    assert (together(POLICY, sized(tokens), 2) == 2) is shares


def test_a_shared_run_never_gives_more_than_4_megabytes() -> None:
    patient = CpuPolicy(Costs(MEASURED), run_seconds=1.0)
    jobs = together(patient, sized(64), 64)
    assert jobs == 32
    assert jobs * sized(64).cells * 4 <= 4 * 2**20


@pytest.mark.parametrize("tokens", [1, 8, 16, 32, 64])
def test_a_shared_run_is_over_before_anybody_minds(tokens: int) -> None:
    one = sized(tokens)
    run, each = POLICY.costs.split(one)
    assert run + each * together(POLICY, one, 1000) <= POLICY.run_seconds


def test_a_run_of_the_smallest_jobs_has_a_last_one() -> None:
    assert together(POLICY, sized(1, 1, 1), 65) == 64


def test_the_event_loop_runs_small_requests_and_no_large_ones() -> None:
    assert POLICY.inline([sized(32)])
    assert POLICY.inline([sized(128)])
    assert not POLICY.inline([sized(256)])
    assert not POLICY.inline([sized(32)] * 20)


def test_a_graph_that_turns_out_to_be_slow_leaves_the_event_loop() -> None:
    policy, one = CpuPolicy(Costs(MEASURED)), sized(32)
    for _ in range(3):
        policy.costs.record(one, one.cells, 0.01)
    assert not policy.inline([one])
    assert policy.inline([replace(one, graph=Graph("identity.other", Path("other.onnx"), "1"))])


def test_a_device_of_its_own_is_never_waited_for_by_the_event_loop() -> None:
    assert not GpuPolicy().inline([sized(1)])
    assert isinstance(policy_for(CUDA), GpuPolicy)
    assert isinstance(policy_for(CPU), CpuPolicy)


def test_jobs_that_differ_in_anything_the_graph_sees_are_of_different_groups() -> None:
    base = job(1.0)
    mask = np.ones((1, 1, 2, 2), bool)
    others = [
        replace(base, graph=Graph("identity.rope", NOWHERE.path, NOWHERE.digest)),
        replace(base, graph=Graph(NOWHERE.name, NOWHERE.path, "another version")),
        replace(base, tables=Tables("others", {})),
        replace(base, outputs=("weights",)),
        replace(base, visible=mask),
        job(1.0, tokens=3),
        replace(base, keys=job(tokens=3).keys),
    ]
    for policy in (POLICY, GpuPolicy()):
        assert len({policy.group(one) for one in [base, *others]}) == len(others) + 1


def test_jobs_of_other_content_and_batch_size_are_of_one_group() -> None:
    alike: list[Job] = [job(1.0), job(2.0), job(3.0, batch=5)]
    assert len({POLICY.group(one) for one in alike}) == 1
