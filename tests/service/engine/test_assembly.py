from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.assembly import assemble, cut
from service.engine.job import Job, Tables
from tests.service.engine.fakes import job


def test_a_single_job_is_not_copied() -> None:
    visible = np.ones((1, 1, 2, 2), bool)
    tables = Tables("t", {"table.scale": np.array(1.0)})
    one = job(visible=visible, tables=tables)
    feeds = assemble([one])
    assert feeds["queries"] is one.queries
    assert feeds["keys"] is one.keys
    assert feeds["visible"] is visible
    assert feeds["table.scale"] is tables.arrays["table.scale"]


@given(st.lists(st.integers(1, 4), min_size=2, max_size=6), st.booleans())
def test_cutting_undoes_assembling(batches: list[int], crossed: bool) -> None:
    jobs = [job(float(i), batch=batch) for i, batch in enumerate(batches)]
    if crossed:
        jobs = [replace(one, keys=one.queries + 100) for one in jobs]
    feeds = assemble(jobs)
    assert (feeds["keys"] is feeds["queries"]) is not crossed
    for name in ("queries", "keys"):
        parts = cut({"x": feeds[name]}, jobs)
        for one, part in zip(jobs, parts, strict=True):
            np.testing.assert_array_equal(part["x"], getattr(one, name))
            assert np.shares_memory(part["x"], feeds[name])


@given(st.data())
def test_each_job_keeps_its_mask_among_others(data: st.DataObject) -> None:
    heads, size = 3, 2

    def masked() -> Job:
        batch = data.draw(st.integers(1, 3))
        shape = (data.draw(st.sampled_from([1, batch])), data.draw(st.sampled_from([1, heads])), size, size)
        bits = data.draw(st.integers(0, 2 ** int(np.prod(shape)) - 1))
        mask = np.array([bits >> i & 1 for i in range(int(np.prod(shape)))], bool).reshape(shape)
        return job(batch=batch, visible=mask)

    jobs = [masked() for _ in range(data.draw(st.integers(2, 4)))]
    rows = sum(len(one.queries) for one in jobs)
    together = np.broadcast_to(assemble(jobs)["visible"], (rows, heads, size, size))
    for one, part in zip(jobs, cut({"visible": together}, jobs), strict=True):
        assert one.visible is not None
        np.testing.assert_array_equal(part["visible"], np.broadcast_to(one.visible, part["visible"].shape))


def test_a_mask_that_all_jobs_share_is_not_copied() -> None:
    causal = np.tri(2, dtype=bool)[None, None]
    jobs = [job(visible=causal), job(batch=3, visible=causal)]
    assert assemble(jobs)["visible"] is causal


def test_a_mask_for_each_of_a_batch_is_repeated_even_where_jobs_share_it() -> None:
    each = np.array([[[[True, False], [True, True]]], [[[False, False], [True, False]]]])
    jobs = [job(batch=2, visible=each), job(batch=2, visible=each)]
    np.testing.assert_array_equal(assemble(jobs)["visible"], np.concatenate([each, each]))


def test_outputs_without_a_row_for_each_input_are_not_handed_out() -> None:
    with pytest.raises(ValueError, match="'scores' has 1 rows, but the batch had 2"):
        cut({"scores": np.zeros((1, 1, 2, 2))}, [job(), job()])
