from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.assembly import assemble, cut
from service.engine.batches import Batches, Entry, Limits
from service.engine.gpu_policy import GpuPolicy
from service.engine.job import Job, Own, Tables
from tests.service.engine.fakes import NOWHERE

POLICY = GpuPolicy()
BOTH = ("weights", "scores")


def padded(queries: int, keys: int | None = None, **changes: object) -> Job:
    """One row, 2 heads of 3, as `GpuPolicy` has it computed."""
    keys = queries if keys is None else keys
    generator = np.random.default_rng(queries * 1000 + keys)
    q = generator.standard_normal((1, queries, 2, 3), dtype=np.float32)
    k = q if queries == keys else generator.standard_normal((1, keys, 2, 3), dtype=np.float32)
    lengths = POLICY.padded(1, 2, queries, keys, BOTH)
    assert lengths is not None
    cells = 2 * lengths[0] * lengths[1] * len(BOTH)
    job = Job(NOWHERE, Tables("", {}), BOTH, q, k, None, cells, padded=None if lengths == (queries, keys) else lengths)
    return replace(job, **changes)  # type: ignore[arg-type]


def first_run(policy: GpuPolicy, jobs: list[Job]) -> list[Job]:
    batches: Batches[Entry] = Batches(policy, Limits())
    batches.put([Entry(one, 0.0) for one in jobs])
    batch = batches.next_batch(0.0)
    assert batch is not None
    return [entry.job for entry in batch.entries]


def test_lengths_of_one_bucket_share_a_run_and_those_of_another_do_not() -> None:
    jobs = [padded(length) for length in (33, 40, 47, 49, 34)]
    assert first_run(POLICY, jobs) == [jobs[0], jobs[1], jobs[2], jobs[4]]


def test_a_request_that_fills_its_bucket_runs_without_a_mask_and_so_not_with_padded_ones() -> None:
    assert not padded(48).masked
    assert padded(47).masked
    exact = padded(48)
    assert first_run(POLICY, [exact, padded(47), exact]) == [exact, exact]


def test_a_masked_request_that_fills_its_bucket_shares_the_run_of_padded_ones() -> None:
    full = padded(48, visible=np.ones((1, 1, 48, 48), bool))
    assert len(first_run(POLICY, [full, padded(47), padded(48)])) == 2


def test_queries_and_keys_have_a_bucket_each() -> None:
    assert padded(3, 100).padded == (16, 128)
    assert padded(16, 100).padded == (16, 128)
    assert len(first_run(POLICY, [padded(3, 100), padded(9, 120), padded(9, 90)])) == 2


def test_nothing_needs_a_mask_where_only_queries_are_padded() -> None:
    assert not padded(3, 16).masked


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 16), st.integers(1, 1024), st.integers(1, 1024))
def test_what_is_padded_fits_into_a_run_twice(rows: int, heads: int, queries: int, keys: int) -> None:
    lengths = POLICY.padded(rows, heads, queries, keys, BOTH)
    if lengths is None:
        return
    scores = rows * heads * lengths[0] * lengths[1]
    assert 2 * scores <= POLICY.run_scores
    assert 2 * scores * 4 * len(BOTH) <= POLICY.run_bytes


@pytest.mark.parametrize(("queries", "keys"), [(1025, 10), (10, 1025), (100_000, 100_000)])
def test_what_is_longer_than_the_ladder_stays_as_it_is(queries: int, keys: int) -> None:
    assert POLICY.padded(1, 1, queries, keys, BOTH) is None


def test_what_fills_a_run_alone_stays_as_it_is() -> None:
    assert POLICY.padded(1, 4, 1000, 1000, BOTH) == (1024, 1024)
    assert POLICY.padded(1, 8, 1000, 1000, BOTH) is None


def test_float16_answers_are_half_as_large() -> None:
    assert POLICY.padded(1, 8, 1000, 1000, ("half.weights", "half.scores")) == (1024, 1024)
    assert POLICY.padded(1, 16, 1000, 1000, ("half.weights", "half.scores")) is None


def test_a_run_is_bounded_by_the_bytes_that_are_copied_back_padding_included() -> None:
    policy = GpuPolicy(run_bytes=10 * padded(40).cells * 4)
    assert len(first_run(policy, [padded(40)] * 64)) == 10
    assert len(first_run(policy, [padded(48)] * 64)) == 10


def test_a_run_is_bounded_by_its_scores_whatever_is_returned_of_them() -> None:
    one = replace(padded(40), outputs=("weights",), cells=padded(40).cells // 2)
    assert len(first_run(GpuPolicy(run_scores=5 * one.cells), [one] * 64)) == 5


def test_a_run_has_at_most_64_jobs() -> None:
    assert len(first_run(POLICY, [padded(3)] * 100)) == 64


def test_numbers_of_rows_are_nothing_beside_matrices() -> None:
    summary = tuple(f"summary.{name}" for name in ("entropy", "row_sum", "distance", "max_weight"))
    assert POLICY.padded(1, 4, 1000, 1000, (*BOTH, *summary)) == (1024, 1024)
    assert POLICY.padded(1, 8, 1000, 1000, (*BOTH, *summary)) is None
    assert POLICY.padded(1, 8, 1000, 1000, summary) == (1024, 1024)  # which are copied back alone
    assert POLICY.share(padded(40, outputs=(*BOTH, *summary))) == POLICY.share(padded(40))
    alone = replace(padded(40), outputs=summary, cells=padded(40).cells // 2)
    assert POLICY.share(alone).cells == POLICY.run_scores


def matrix(queries: int, keys: int, heads: int = 2) -> Job:
    """One that brings a matrix, and the rows of it that are real."""
    numbers = np.random.default_rng(queries).standard_normal((1, heads, queries, keys), dtype=np.float32)
    own = {
        "weights": Own(numbers, ("batch", "heads", "queries", "keys")),
        "profiled": Own(np.ones((1, queries), bool), ("batch", "queries")),
    }
    lengths = POLICY.padded(1, heads, queries, keys, ("weights",))
    assert lengths is not None
    cells = heads * lengths[0] * lengths[1]
    return Job.of_items(NOWHERE, Tables("", {}), own, ("tv",), (1, queries, keys), cells, padded=lengths)


def test_matrices_that_are_given_are_bounded_by_their_bytes() -> None:
    assert POLICY.share(matrix(40, 40)).cells == POLICY.run_bytes // 4
    several = replace(matrix(40, 40), own={f"weights_{i}": (matrix(40, 40).own or {})["weights"] for i in range(4)})
    assert POLICY.share(several).cells == POLICY.run_bytes // 16


def test_matrices_of_one_bucket_share_a_run_and_those_of_other_heads_do_not() -> None:
    jobs = [matrix(33, 40), matrix(48, 47), matrix(33, 40, heads=3), matrix(49, 40)]
    assert first_run(POLICY, jobs) == jobs[:2]


# Assembly


def test_what_is_each_jobs_own_is_filled_up_with_zeros() -> None:
    jobs = [matrix(33, 40), matrix(48, 47)]
    feeds = assemble(jobs)
    assert set(feeds) == {"weights", "profiled", "visible"}
    assert feeds["weights"].shape == (2, 2, 48, 48)
    for row, job in enumerate(jobs):
        queries, keys = job.queries.shape[1], job.keys.shape[1]
        numbers = (job.own or {})["weights"].array
        np.testing.assert_array_equal(feeds["weights"][row, :, :queries, :keys], numbers[0])
        assert np.count_nonzero(feeds["weights"][row]) == np.count_nonzero(numbers)
        np.testing.assert_array_equal(feeds["profiled"][row], np.arange(48) < queries)
        np.testing.assert_array_equal(feeds["visible"][row, 0, 0], np.arange(48) < keys)


def test_what_all_items_of_a_job_have_alike_is_repeated_for_them() -> None:
    own = {"profiled": Own(np.array([[True, False, True]]), ("batch", "queries"))}
    jobs = [Job.of_items(NOWHERE, Tables("", {}), own, ("tv",), (items, 3, 3), 1) for items in (2, 1)]
    assert assemble(jobs)["profiled"].tolist() == [[True, False, True]] * 3


def test_sums_over_diagonals_are_cut_where_those_of_the_real_rows_are() -> None:
    one = matrix(5, 9)
    (queries, keys), real = one.lengths, (one.own or {})["weights"].array[0]
    assert (queries, keys) == (16, 16)

    def diagonals(of: np.ndarray) -> np.ndarray:
        rows, columns = of.shape[1:]
        return np.stack([[np.trace(head, c - rows) for c in range(rows + columns + 1)] for head in of])

    filled = np.zeros((2, queries, keys), np.float32)
    filled[:, :5, :9] = real
    (part,) = cut({"summary.diagonals": diagonals(filled)[None], "summary.row_sum": filled.sum(-1)[None]}, [one])
    np.testing.assert_allclose(part["summary.diagonals"][0], diagonals(real), rtol=1e-6)
    np.testing.assert_allclose(part["summary.row_sum"][0], real.sum(-1), rtol=1e-6)


def visible_in_full(feeds: dict[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(feeds["visible"], shape)


def test_padding_is_zeros_and_what_is_real_is_marked() -> None:
    jobs = [padded(5), padded(9), padded(1)]
    feeds = assemble(jobs)
    assert feeds["queries"].shape == (3, 16, 2, 3)
    assert feeds["keys"] is feeds["queries"]
    assert feeds["visible"].shape == (3, 1, 1, 16)
    for row, job in enumerate(jobs):
        tokens = job.queries.shape[1]
        np.testing.assert_array_equal(feeds["queries"][row, :tokens], job.queries[0])
        assert not feeds["queries"][row, tokens:].any()
        np.testing.assert_array_equal(feeds["visible"][row, 0, 0], np.arange(16) < tokens)


def test_queries_and_keys_of_different_lengths_are_padded_each_to_its_own() -> None:
    jobs = [padded(3, 40), padded(7, 33)]
    feeds = assemble(jobs)
    assert feeds["queries"].shape == (2, 16, 2, 3)
    assert feeds["keys"].shape == (2, 48, 2, 3)
    np.testing.assert_array_equal(feeds["keys"][1, :33], jobs[1].keys[0])
    np.testing.assert_array_equal(feeds["visible"].sum(-1).ravel(), [40, 33])


def test_masks_of_any_size_end_up_in_one() -> None:
    generator = np.random.default_rng(0)
    pairs, heads = generator.random((1, 1, 5, 5)) < 0.5, generator.random((1, 2, 9, 9)) < 0.5
    causal = np.tri(16, dtype=bool)[None, None]
    jobs = [padded(5, visible=pairs), padded(9, visible=heads), padded(7), padded(3, visible=causal)]
    visible = visible_in_full(assemble(jobs), (4, 2, 16, 16))
    np.testing.assert_array_equal(visible[0, :, :5, :5], np.repeat(pairs[0], 2, axis=0))
    assert not visible[0, :, :, 5:].any()
    np.testing.assert_array_equal(visible[1, :, :9, :9], heads[0])
    assert visible[2, :, :, :7].all()
    assert not visible[2, :, :, 7:].any()
    np.testing.assert_array_equal(visible[3, 1], causal[0, 0])


def test_a_mask_that_all_have_in_common_is_handed_through() -> None:
    causal = np.tri(16, dtype=bool)[None, None]
    assert assemble([padded(5, visible=causal), padded(16, visible=causal)])["visible"] is causal


def test_a_mask_of_its_own_size_is_not_taken_for_one_of_the_padded_size() -> None:
    mask = np.ones((1, 1, 5, 5), bool)
    visible = assemble([padded(5, visible=mask), padded(5, visible=mask)])["visible"]
    assert visible.shape == (2, 1, 16, 16)
    assert visible.sum() == 50


def test_arrays_are_made_where_the_device_reads_them() -> None:
    made = []

    def empty(shape: tuple[int, ...], dtype: object) -> np.ndarray:
        made.append(np.ones(shape, bool) if dtype is bool else np.full(shape, np.nan, np.float32))
        return made[-1]

    for jobs in ([padded(5), padded(9)], [padded(16), padded(16)]):
        feeds = assemble(jobs, empty)
        assert any(feeds["queries"] is one for one in made)
        assert np.isfinite(feeds["queries"]).all()
    masked = assemble([padded(5), padded(9)], empty)["visible"]
    assert masked is made[-1]
    assert masked.sum() == 5 + 9


def test_padding_is_cut_off_again() -> None:
    jobs = [padded(5, 3), padded(9, 16), padded(16, 16)]
    pairs = np.arange(3 * 2 * 16 * 16, dtype=np.float32).reshape(3, 2, 16, 16)
    rows = np.arange(3 * 16 * 2 * 3, dtype=np.float32).reshape(3, 16, 2, 3)
    parts = cut({"weights": pairs, "half.scores": pairs, "output": rows, "half.output": rows}, jobs)
    for row, (part, job) in enumerate(zip(parts, jobs, strict=True)):
        queries, keys = job.queries.shape[1], job.keys.shape[1]
        for name in ("weights", "half.scores"):
            np.testing.assert_array_equal(part[name], pairs[row : row + 1, :, :queries, :keys])
            assert part[name].base is not None
        for name in ("output", "half.output"):
            np.testing.assert_array_equal(part[name], rows[row : row + 1, :queries])


def test_padding_is_cut_off_of_a_job_that_ran_alone() -> None:
    (part,) = cut({"weights": np.zeros((1, 2, 16, 16))}, [padded(5)])
    assert part["weights"].shape == (1, 2, 5, 5)
