from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.cost import Costs, Rates
from service.engine.job import Job, Tables
from tests.service.engine.fakes import NOWHERE

SHAPES = [(1, 8, 1, 16), (1, 32, 4, 16), (1, 64, 4, 16), (1, 128, 4, 16), (2, 64, 8, 64), (1, 256, 2, 32), (4, 9, 4, 8)]
"""Batch, tokens, heads, head_dim."""
RATES = st.builds(
    Rates,
    run=st.floats(5e-6, 1e-4),
    input=st.floats(1e-10, 1e-8),
    cell=st.floats(1e-10, 1e-8),
    product=st.floats(1e-12, 1e-10),
)


def sized(batch: int, tokens: int, heads: int, head_dim: int, outputs: tuple[str, ...] = ("weights",)) -> Job:
    x = np.zeros((batch, tokens, heads, head_dim), np.float32)
    return Job(NOWHERE, Tables("", {}), outputs, x, x, None, batch * heads * tokens * tokens * len(outputs))


@given(RATES)
def test_rates_are_found_again_from_runs_that_follow_them(true: Rates) -> None:
    known, jobs = Costs(true), [sized(*shape) for shape in SHAPES]
    found = Costs(Rates.fit(jobs, [known.seconds(job) for job in jobs]))
    for job in [*jobs, sized(1, 512, 4, 16), sized(8, 32, 4, 16)]:
        assert found.seconds(job) == pytest.approx(known.seconds(job), rel=1e-3)


@given(RATES, st.lists(st.floats(0.5, 2.0), min_size=len(SHAPES), max_size=len(SHAPES)))
def test_no_rate_is_negative_however_noisy_the_runs(true: Rates, noise: list[float]) -> None:
    known, jobs = Costs(true), [sized(*shape) for shape in SHAPES]
    found = Rates.fit(jobs, [known.seconds(job) * one for job, one in zip(jobs, noise, strict=True)])
    assert min(found.run, found.input, found.cell, found.product) >= 0


def test_a_graph_is_judged_by_its_own_runs() -> None:
    costs, job = Costs(), sized(1, 32, 4, 16)
    before = costs.seconds(job)
    costs.record(job, job.cells, 1.0)  # the session was built
    assert costs.seconds(job) == before
    costs.record(job, job.cells, 3 * before)
    assert costs.seconds(job) == pytest.approx(3 * before)
    assert costs.seconds(sized(1, 32, 4, 16, ("weights", "scores"))) < 2 * before, "other outputs are another graph"


def test_a_run_that_lost_its_core_counts_for_little() -> None:
    costs, job = Costs(), sized(1, 32, 4, 16)
    seconds = costs.seconds(job)
    for _ in range(50):
        costs.record(job, job.cells, seconds)
    costs.record(job, job.cells, 1000 * seconds)
    assert costs.seconds(job) < 1.3 * seconds


def test_a_batch_costs_its_run_once() -> None:
    costs, job = Costs(Rates(run=1.0, input=0, cell=0, product=0)), sized(1, 32, 4, 16)
    for _ in range(3):
        costs.record(job, 10 * job.cells, 1.0)
    assert costs.seconds(job) == pytest.approx(1.0)
