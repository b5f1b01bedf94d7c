from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from service.engine.job import Graph, Job, Tables
from service.engine.policy import CpuPolicy
from tests.service.engine.fakes import NOWHERE, job

POLICY = CpuPolicy()


def cells_of(tokens: int, heads: int = 4, outputs: int = 2) -> int:
    return heads * tokens * tokens * outputs


@pytest.mark.parametrize(("tokens", "shares"), [(8, True), (64, True), (65, False), (128, False), (2048, False)])
def test_four_heads_share_a_run_up_to_64_tokens(tokens: int, shares: bool) -> None:
    assert POLICY.joins(1, cells_of(tokens), job(cells=cells_of(tokens))) is shares


def test_a_shared_run_never_gives_more_than_4_megabytes() -> None:
    one = job(cells=cells_of(64))
    jobs, cells = 1, one.cells
    while POLICY.joins(jobs, cells, one):
        jobs, cells = jobs + 1, cells + one.cells
    assert jobs == 32
    assert cells * 4 <= 4 * 2**20


def test_a_run_of_the_smallest_jobs_has_a_last_one() -> None:
    assert POLICY.joins(63, 63, job(cells=1))
    assert not POLICY.joins(64, 64, job(cells=1))


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
    groups = {POLICY.group(one) for one in [base, *others]}
    assert len(groups) == len(others) + 1


def test_jobs_of_other_content_and_batch_size_are_of_one_group() -> None:
    alike: list[Job] = [job(1.0), job(2.0), job(3.0, batch=5)]
    assert len({POLICY.group(one) for one in alike}) == 1
