"""What a GPU pads, computed on the CPU: `GpuPolicy`, bound memory and the numbers of CUDA graphs are forced upon it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.engine.assembly import assemble
from service.engine.gpu_policy import GpuPolicy
from service.engine.job import Job, JobResult
from service.engine.session import Sessions
from service.padding import continued
from service.positions import Positions
from service.records import MATRICES, AttentionInput, AttentionOptions, EncodingResult, ScoringResult, Timings
from service.scoring import Limits, Scoring
from service.selection import Selection
from service.tables import TableCache
from service.wire import body, media
from tests.service.engine.padded import (
    CATALOGUE,
    CAUSAL_ONLY,
    ENCODINGS,
    LEFT_ALONE,
    TOLERANCE,
    Request,
    Served,
    array,
    serving,
)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as both:
        yield both


class Recording:
    """An engine that keeps what it was asked, and computes nothing."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        self.jobs += jobs
        shapes = [(len(job.queries), 1, job.queries.shape[1], job.keys.shape[1]) for job in jobs]
        return [
            JobResult({name: np.zeros(shape, np.float32) for name in job.outputs})
            for job, shape in zip(jobs, shapes, strict=True)
        ]


def planned(
    input: AttentionInput, *, limits: Limits | None = None, policy: GpuPolicy | None = None, **options: Any
) -> list[Job]:
    """The jobs that a request becomes."""
    engine = Recording()
    scoring = Scoring(CATALOGUE, engine, TableCache(Sessions("cpu")), limits, padding=policy or GpuPolicy())
    asyncio.run(scoring.score(input, AttentionOptions(**options), Timings()))
    return engine.jobs


def arrays(result: EncodingResult) -> dict[str, np.ndarray]:
    found = {"weights": result.weights, "scores": result.scores, "output": result.output, **(result.terms or {})}
    return {name: value for name, value in found.items() if value is not None}


def assert_equal(found: ScoringResult, expected: ScoringResult) -> None:
    assert [one.encoding for one in found.results] == [one.encoding for one in expected.results]
    for one, other in zip(found.results, expected.results, strict=True):
        assert one.parameters == other.parameters
        assert arrays(one).keys() == arrays(other).keys()
        for name, value in arrays(other).items():
            assert arrays(one)[name].shape == value.shape, (one.encoding, name)
            scale = 1.0 if name == "weights" else max(1.0, float(np.abs(value).max()))
            worst = float(np.abs(arrays(one)[name] - value).max())
            assert worst <= TOLERANCE * scale, (one.encoding, name, worst, scale)


# Equal to alone


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_alone_and_padded_among_eight_are_equal(served: Served, encoding: str, causal: bool) -> None:
    if encoding in CAUSAL_ONLY and not causal:
        pytest.skip("causal only")
    requests = [
        (
            AttentionInput(embeddings=array(tokens, 16, seed=tokens)),
            AttentionOptions(encoding=encoding, heads=2, causal=causal, returns=MATRICES),
        )
        for tokens in (33, 34, 37, 40, 41, 45, 47, 48)
    ]
    answers = served.together(requests)
    for answer, alone in zip(answers, served.one_by_one(requests), strict=True):
        assert_equal(answer, alone)
    # One that fills its bucket needs a mask only if the others have one as well.
    sharing = {answer.timings.batch_jobs for answer in answers}
    assert sharing == ({1} if encoding in LEFT_ALONE else {8} if causal else {7, 1})


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Any request of up to 70 tokens: with a batch, a mask, queries or a start of its own, or for some rows only."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    heads = draw(st.sampled_from([1, 2]))
    batch = draw(st.sampled_from([None, None, None, 1, 2]))
    lead = () if batch is None else (batch,)
    causal = draw(st.booleans())
    names = ENCODINGS if causal else [name for name in ENCODINGS if name not in CAUSAL_ONLY]
    length = st.integers(1, 70)
    keys = queries = draw(length)
    parts: dict[str, Any] = {}
    if draw(st.integers(0, 3)):
        parts["embeddings"] = random.standard_normal((*lead, keys, heads * 4), dtype=np.float32)
        if draw(st.integers(0, 3)) == 0:
            parts["positions"] = draw(st.sampled_from([0.0, 3.0, 100.0])) + np.arange(keys)
    else:
        queries = draw(length)
        parts["queries"] = random.standard_normal((*lead, queries, heads * 4), dtype=np.float32)
        parts["keys"] = random.standard_normal((*lead, keys, heads * 4), dtype=np.float32)
        if draw(st.booleans()):
            parts["query_positions"] = np.sort(random.integers(0, 90, queries)).astype(float)
    match draw(st.sampled_from(["none", "none", "keys", "pairs", "heads"])):
        case "keys":
            parts["mask"] = random.random(keys) < 0.7
        case "pairs":
            parts["mask"] = random.random((1, queries, keys)) < 0.7
        case "heads":
            parts["mask"] = random.random((batch or 1, heads, queries, keys)) < 0.7
    returns = draw(st.sampled_from([("weights", "scores"), ("weights",), ("output",), MATRICES]))
    rows = draw(st.sampled_from([None, None, None, ("-1",), ("0:5",), ("::3",)]))
    options = AttentionOptions(
        encoding=draw(st.sampled_from(names)),
        heads=heads,
        causal=causal,
        returns=returns,
        rows=None if rows is None else Selection.of("rows", rows),
    )
    return AttentionInput(**parts), options


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(requests(), min_size=64, max_size=64))
def test_sixty_four_in_flight_are_each_equal_to_alone(served: Served, mix: list[Request]) -> None:
    for answer, alone in zip(served.together(mix), served.one_by_one(mix), strict=True):
        assert_equal(answer, alone)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted({"rope", "t5", "learned", "fox", "cope", "none"})),
    st.lists(st.integers(1, 70), min_size=64, max_size=64),
    st.booleans(),
)
def test_lengths_of_one_encoding_share_runs_and_are_each_equal_to_alone(
    served: Served, encoding: str, lengths: list[int], terms: bool
) -> None:
    options = AttentionOptions(encoding=encoding, heads=2, causal=True, returns=MATRICES if terms else ("weights",))
    mix = [(AttentionInput(embeddings=array(length, 8, seed=i)), options) for i, length in enumerate(lengths)]
    answers = served.together(mix)
    for answer, alone in zip(answers, served.one_by_one(mix), strict=True):
        assert_equal(answer, alone)
    assert sum(1 / answer.timings.batch_jobs for answer in answers) <= 7 + 1e-9  # one run for each bucket


@pytest.mark.parametrize("kind", [media.JSON, *media.BINARY])
def test_what_was_cut_out_of_padding_is_written_like_any_other_answer(served: Served, kind: str) -> None:
    request = (AttentionInput(embeddings=array(37, 8)), AttentionOptions(encoding="rope", heads=2))
    written = b"".join(bytes(part) for part in body.encode(kind, served.together([request])[0]))
    if kind == media.JSON:
        weights = np.array(json.loads(written)["results"][0]["weights"])
    elif kind == media.NPZ:
        weights = np.load(io.BytesIO(written))["rope/weights"]
    else:
        weights = safetensors.numpy.load(written)["rope/weights"]
    expected = served.one_by_one([request])[0].results[0].weights
    assert expected is not None
    np.testing.assert_allclose(weights, expected, atol=TOLERANCE)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_padded_keys_weigh_exactly_nothing(encoding: str) -> None:
    sessions = Sessions("cpu")
    (job,) = planned(
        AttentionInput(embeddings=array(37, 16)), encoding=encoding, heads=2, causal=encoding in CAUSAL_ONLY
    )
    if encoding in LEFT_ALONE:
        assert job.padded is None
        return
    raw = sessions.run(job.graph, ("weights", "scores"), job.masked, assemble([job]), job.switches)
    assert raw["weights"].shape == (1, 2, 48, 48)
    assert not raw["weights"][..., :37, 37:].any()
    np.testing.assert_allclose(raw["weights"][..., :37, :37].sum(-1), 1, atol=1e-6)
    assert np.isfinite(raw["scores"]).all()


# What is padded, and what is left alone


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name not in LEFT_ALONE])
def test_all_of_one_bucket_have_the_tables_of_its_length(encoding: str) -> None:
    causal = encoding in CAUSAL_ONLY
    jobs = [
        planned(AttentionInput(embeddings=array(tokens, 16)), encoding=encoding, heads=2, causal=causal)[0]
        for tokens in (33, 41, 48)
    ]
    assert [job.padded for job in jobs] == [(48, 48), (48, 48), None]
    assert len({job.tables.key for job in jobs}) == 1
    assert {job.cells for job in jobs} == {2 * 48 * 48 * 2}
    for name, table in jobs[0].tables.arrays.items():
        np.testing.assert_array_equal(table, jobs[2].tables.arrays[name])


def test_tables_are_computed_once_for_a_bucket(served: Served) -> None:
    cache = TableCache(Sessions("cpu"))
    scoring = Scoring(CATALOGUE, Recording(), cache, padding=GpuPolicy())
    for tokens in range(33, 49):
        options = AttentionOptions(encoding="t5", heads=2)
        served.runner.run(scoring.score(AttentionInput(embeddings=array(tokens, 8)), options, Timings()))
    assert len(cache.cache) == 1


@pytest.mark.parametrize("encoding", sorted(LEFT_ALONE))
def test_an_encoding_that_depends_on_the_length_is_left_alone(encoding: str) -> None:
    (job,) = planned(AttentionInput(embeddings=array(37, 16)), encoding=encoding, heads=2)
    assert job.padded is None
    assert job.cells == 2 * 37 * 37 * 2


def test_only_what_can_be_padded_of_a_comparison_is() -> None:
    jobs = planned(AttentionInput(embeddings=array(37, 16)), encoding="rope", compare=("rope-dynamic", "t5"), heads=2)
    assert [job.padded for job in jobs] == [(48, 48), None, (48, 48)]


def test_a_start_of_its_own_is_continued() -> None:
    positions = np.arange(100.0, 137.0)
    (job,) = planned(AttentionInput(embeddings=array(37, 16), positions=positions), encoding="rope", heads=2)
    (other,) = planned(
        AttentionInput(embeddings=array(48, 16), positions=np.arange(100.0, 148.0)), encoding="rope", heads=2
    )
    assert job.padded == (48, 48)
    assert job.tables.key == other.tables.key


@pytest.mark.parametrize("positions", [np.arange(37.0)[::-1], np.arange(0.0, 74.0, 2.0), np.zeros(37)])
def test_positions_that_are_not_consecutive_are_left_alone(positions: np.ndarray) -> None:
    (job,) = planned(AttentionInput(embeddings=array(37, 16), positions=positions), encoding="rope", heads=2)
    assert job.padded is None


def test_keys_are_not_padded_where_a_query_comes_after_the_last_of_them() -> None:
    late = AttentionInput(queries=array(20, 8), keys=array(10, 8))
    assert planned(late, encoding="fox", causal=True)[0].padded is None
    early = AttentionInput(queries=array(10, 8), keys=array(20, 8))
    assert planned(early, encoding="fox", causal=True)[0].padded == (16, 24)
    full = AttentionInput(queries=array(20, 8), keys=array(16, 8))
    assert planned(full, encoding="fox", causal=True)[0].padded == (24, 16)


def test_a_table_that_the_request_brought_has_no_rows_for_padding() -> None:
    table = array(37, 8)
    (job,) = planned(
        AttentionInput(embeddings=array(37, 8), parameters={"learned.table": table}), encoding="learned", heads=2
    )
    assert job.padded is None
    (job,) = planned(AttentionInput(embeddings=array(37, 8)), encoding="learned", heads=2)
    assert job.padded == (48, 48)


def test_padding_never_makes_a_request_exceed_the_limit() -> None:
    input, returns = AttentionInput(embeddings=array(37, 8)), ("weights",)
    enough, short = Limits(cells=48 * 48), Limits(cells=48 * 48 - 1)
    assert planned(input, limits=enough, encoding="rope", heads=1, returns=returns)[0].padded == (48, 48)
    assert planned(input, limits=short, encoding="rope", heads=1, returns=returns)[0].padded is None
    both: dict[str, Any] = {"encoding": "rope", "compare": ("t5",), "heads": 1, "returns": returns}
    assert [job.padded for job in planned(input, limits=Limits(cells=2 * 48 * 48 - 1), **both)] == [None, None]


def test_a_causal_mask_is_shared_by_all_of_a_bucket_and_a_mask_of_ones_own_is_not() -> None:
    engine = Recording()
    scoring = Scoring(CATALOGUE, engine, TableCache(Sessions("cpu")), padding=GpuPolicy())
    options = AttentionOptions(encoding="rope", causal=True)
    for tokens in (33, 40, 48):
        asyncio.run(scoring.score(AttentionInput(embeddings=array(tokens, 8)), options, Timings()))
    first = engine.jobs[0].visible
    assert first is not None
    assert first.shape == (1, 1, 48, 48)
    assert all(job.visible is first for job in engine.jobs)
    masked = AttentionInput(embeddings=array(40, 8), mask=np.arange(40) != 3)
    asyncio.run(scoring.score(masked, options, Timings()))
    visible = engine.jobs[-1].visible
    assert visible is not None
    assert visible.shape == (1, 1, 40, 40)


def test_position_tables_are_those_of_the_request_itself() -> None:
    scoring = Scoring(CATALOGUE, Recording(), TableCache(Sessions("cpu")), padding=GpuPolicy())
    options = AttentionOptions(encoding="t5", heads=2)
    tables = asyncio.run(scoring.position_tables(AttentionInput(embeddings=array(37, 8)), options))
    assert tables.tables["bias"].shape == (2, 37, 37)


def test_nothing_is_padded_on_the_cpu() -> None:
    engine = Recording()
    scoring = Scoring(CATALOGUE, engine, TableCache(Sessions("cpu")))
    asyncio.run(scoring.score(AttentionInput(embeddings=array(37, 8)), AttentionOptions(), Timings()))
    assert engine.jobs[0].padded is None
    assert engine.jobs[0].cells == 37 * 37 * 2


def test_the_warm_up_runs_what_is_served(served: Served) -> None:
    jobs = served.runner.run(served.padded.samples())
    assert {job.padded for job in jobs} == {(16, 16), None}


@pytest.mark.parametrize(
    ("values", "count", "continuation"),
    [
        ([0, 1, 2], 5, [0, 1, 2, 3, 4]),
        ([7, 8], 4, [7, 8, 9, 10]),
        ([-1.5, -0.5], 3, [-1.5, -0.5, 0.5]),
        ([4], 2, [4, 5]),
        ([0, 2], 3, None),
        ([3, 1], 2, [3, 1]),
    ],
)
def test_consecutive_positions_are_continued(values: list[float], count: int, continuation: list[float] | None) -> None:
    found = continued(Positions.of(np.array(values, dtype=np.float64)), count)
    assert (None if found is None else found.values.tolist()) == continuation


def test_positions_from_0_are_those_that_every_other_request_has() -> None:
    assert continued(Positions.first(5), 8) is Positions.first(8)
