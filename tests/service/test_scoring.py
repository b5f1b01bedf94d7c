from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, reject, settings
from hypothesis import strategies as st

from service.catalogue import Catalogue, Model
from service.engine.engine import Engine
from service.engine.gpu_policy import GpuPolicy
from service.engine.job import Job, JobResult
from service.engine.session import Sessions
from service.errors import DeadlineExceeded, InvalidInput, NotReady, ParameterOutOfRange, PayloadTooLarge, UnknownName
from service.records import MATRICES, AttentionInput, AttentionOptions, EncodingResult, ScoringResult, Timings
from service.scoring import Limits, Scoring
from service.selection import Selection
from service.tables import TableCache
from tests.service import tiny

CATALOGUE = Catalogue.read([Path(__file__).parents[2] / "exported"])
IDENTITY = CATALOGUE.model("identity")
ENCODINGS = sorted(IDENTITY.encodings)
CAUSAL_ONLY = {encoding.id for encoding in CATALOGUE.encodings if encoding.causal == "required"}


@dataclass
class Served:
    """Scoring over a real engine, on an event loop that lasts as long as the tests do."""

    scoring: Scoring
    runner: asyncio.Runner

    def score(self, input: AttentionInput, timings: Timings | None = None, **options: Any) -> ScoringResult:
        return self.runner.run(self.scoring.score(input, AttentionOptions(**options), timings or Timings()))

    def together(self, requests: Sequence[tuple[AttentionInput, AttentionOptions]]) -> list[ScoringResult]:
        async def main() -> list[ScoringResult]:
            return await asyncio.gather(*(self.scoring.score(*request, Timings()) for request in requests))

        return self.runner.run(main())


@pytest.fixture(scope="module")
def sessions() -> Sessions:
    return Sessions("cpu")


@pytest.fixture(scope="module")
def served(sessions: Sessions) -> Iterator[Served]:
    with asyncio.Runner() as runner:
        engine = Engine(sessions, workers=2)
        runner.run(engine.start())
        yield Served(Scoring(CATALOGUE, engine, TableCache(sessions)), runner)
        runner.run(engine.stop())


class Recording:
    """An engine that keeps what it was asked and answers with nothing."""

    def __init__(self, **result: Any) -> None:
        self.calls: list[Sequence[Job]] = []
        self.deadline: float | None = None
        self.result = result

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        self.calls.append(jobs)
        self.deadline = deadline
        return [
            JobResult(
                {
                    name: np.zeros((len(job.queries), 1, job.queries.shape[1], job.keys.shape[1]), np.float32)
                    for name in job.outputs
                },
                **self.result,
            )
            for job in jobs
        ]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def recorded(sessions: Sessions, runner: asyncio.Runner) -> tuple[Recording, Served]:
    engine = Recording()
    return engine, Served(Scoring(CATALOGUE, engine, TableCache(sessions)), runner)


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def arrays(result: EncodingResult) -> dict[str, np.ndarray]:
    found = {"weights": result.weights, "scores": result.scores, "output": result.output, **(result.terms or {})}
    return {name: value for name, value in found.items() if value is not None}


def selected(rows: str | None, head: str | None = None) -> dict[str, Any]:
    """The options that pick these."""
    return {
        "rows": None if rows is None else Selection.of("rows", rows.split(",")),
        "head": None if head is None else Selection.of("head", head.split(",")),
    }


def softmax_of_visible(scores: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Row by row in float64, over visible keys only."""
    weights = np.zeros(scores.shape)
    for index in np.ndindex(scores.shape[:-1]):
        seen = visible[index]
        if seen.any():
            row = np.exp(scores[index][seen].astype(np.float64) - scores[index][seen].max())
            weights[index][seen] = row / row.sum()
    return weights


# Values


@st.composite
def requests(draw: st.DrawFn) -> tuple[AttentionInput, dict[str, Any], np.ndarray]:
    """A request, its options, and who may see whom: bool [batch, heads, queries, keys]."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch = draw(st.none() | st.integers(1, 3))
    heads, head_dim = draw(st.integers(1, 4)), 2 * draw(st.integers(1, 4))
    queries = keys = draw(st.integers(1, 9))
    lead = () if batch is None else (batch,)
    parts: dict[str, Any] = {}
    if draw(st.booleans()):
        queries = draw(st.integers(1, 9))
        parts["queries"] = random.standard_normal((*lead, queries, heads * head_dim), dtype=np.float32)
        parts["keys"] = random.standard_normal((*lead, keys, heads * head_dim), dtype=np.float32)
    else:
        parts["embeddings"] = random.standard_normal((*lead, keys, heads * head_dim), dtype=np.float32)
    query_positions, key_positions = np.arange(queries, dtype=float), np.arange(keys, dtype=float)
    if draw(st.booleans()):
        parts["query_positions"] = query_positions = random.integers(0, 50, queries).astype(float)
        parts["key_positions"] = key_positions = random.integers(0, 50, keys).astype(float)
    causal = draw(st.booleans())
    visible = np.ones((batch or 1, heads, queries, keys), bool)
    if causal:
        for m in range(queries):
            for n in range(keys):
                visible[:, :, m, n] = key_positions[n] <= query_positions[m]
    form = draw(st.sampled_from(["none", "keys", "pairs", "batch", "heads"]))
    shapes = {
        "keys": (keys,),
        "pairs": (1, queries, keys),
        "batch": (batch or 1, queries, keys),
        "heads": visible.shape,
    }
    if form != "none":
        mask = random.random(shapes[form]) < 0.6
        visible &= mask[:, None] if mask.ndim == 3 else mask
        parts["mask"] = mask if draw(st.booleans()) else mask.astype(np.float32)
    names = ENCODINGS if causal else [name for name in ENCODINGS if name not in CAUSAL_ONLY]
    options = {"encoding": draw(st.sampled_from(names)), "heads": heads, "causal": causal, "returns": MATRICES}
    return AttentionInput(**parts), options, visible


@settings(max_examples=120, deadline=None)
@given(requests())
def test_weights_are_the_softmax_of_the_visible_scores_and_terms_sum_to_the_scores(
    served: Served, request_: tuple[AttentionInput, dict[str, Any], np.ndarray]
) -> None:
    input, options, visible = request_
    answer = served.score(input, **options)
    (result,) = answer.results
    assert result.weights is not None
    assert result.scores is not None
    assert result.terms is not None
    batched = answer.batch is not None
    weights = result.weights if batched else result.weights[None]
    scores = result.scores if batched else result.scores[None]
    assert weights.shape == scores.shape == visible.shape
    assert weights.dtype == np.float32
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(weights, softmax_of_visible(scores, visible), atol=2e-6)
    assert (weights[~visible] == 0).all()
    assert result.nonfinite_cells == 0
    total = sum(np.broadcast_to(term, result.scores.shape).astype(np.float64) for term in result.terms.values())
    np.testing.assert_allclose(total, result.scores, atol=1e-5 * max(1.0, np.abs(result.scores).max()))
    assert list(result.terms) == [term.name for term in IDENTITY.encoding(options["encoding"]).terms]
    assert result.output is not None
    assert result.output.shape[-3:] == (answer.queries, answer.heads, answer.head_dim)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_row_that_sees_nothing_weighs_nothing(served: Served, encoding: str) -> None:
    mask = np.ones((4, 4), bool)
    mask[2] = False
    (result,) = served.score(
        AttentionInput(embeddings=array(4, 8), mask=mask),
        encoding=encoding,
        causal=encoding in CAUSAL_ONLY,
        returns=("weights", "output"),
    ).results
    assert result.weights is not None
    assert result.output is not None
    assert (result.weights[0, 2] == 0).all()
    np.testing.assert_allclose(result.weights[0].sum(-1), [1, 1, 0, 1], atol=1e-6)
    assert result.nonfinite_cells == 0


def test_plain_scores_are_q_k_over_the_root_of_head_dim(served: Served) -> None:
    x = array(2, 5, 12)
    (result,) = served.score(AttentionInput(embeddings=x), encoding="none", heads=3).results
    assert result.scores is not None
    q = x.astype(np.float64).reshape(2, 5, 3, 4)
    np.testing.assert_allclose(result.scores, np.einsum("bmhd,bnhd->bhmn", q, q) / 2, atol=1e-5)


def test_alibi_of_eight_heads_has_the_published_slopes(served: Served) -> None:
    (result,) = served.score(
        AttentionInput(embeddings=np.zeros((3, 8), np.float32)), encoding="alibi", heads=8, causal=True
    ).results
    assert result.scores is not None
    np.testing.assert_allclose(-result.scores[:, 1, 0], [0.5**h for h in range(1, 9)], rtol=1e-6)


def test_parameters_reach_the_scores(served: Served) -> None:
    """A T5 bias that is its own bucket number shows the buckets: -16 -> 10 and +8 -> 24 of 32, distance 128."""
    bias = np.repeat(np.arange(32, dtype=np.float32)[:, None], 2, axis=1)
    input = AttentionInput(embeddings=np.zeros((17, 4), np.float32), parameters={"t5.bias": bias})
    (result,) = served.score(input, encoding="t5", heads=2).results
    assert result.scores is not None
    assert result.scores[0, 16, 0] == 10
    assert result.scores[1, 0, 8] == 24
    assert result.parameters["bias"] == {"shape": [32, 2], "source": "request"}
    (coarse,) = served.score(input, encoding="t5", heads=2, scalars={"t5.max_distance": "16"}).results
    assert coarse.scores is not None
    assert coarse.scores[0, 16, 0] == 15


def test_a_list_has_one_entry_for_each_pair_or_one_for_all(served: Served) -> None:
    x = AttentionInput(embeddings=array(5, 8))

    def scores(factors: str) -> np.ndarray:
        scalars = {"rope-longrope.short_factor": factors}
        found = served.score(x, encoding="rope-longrope", heads=1, scalars=scalars).results[0].scores
        assert found is not None
        return found

    np.testing.assert_array_equal(scores("2"), scores("2,2,2,2"))
    assert np.abs(scores("2,2,2,2") - scores("2,2,2,3")).max() > 1e-6
    with pytest.raises(InvalidInput) as caught:
        scores("1,2,3")
    assert caught.value.detail.startswith("rope-longrope.short_factor has 3 entries; allowed: 4, one for each")
    assert caught.value.pointer == "query:rope-longrope.short_factor"
    assert caught.value.extra == {"allowed": [1, 4]}


def test_a_request_without_a_batch_has_answers_without_one(served: Served) -> None:
    alone = served.score(AttentionInput(embeddings=array(5, 8)), heads=2, returns=MATRICES)
    batch = served.score(AttentionInput(embeddings=array(5, 8)[None]), heads=2, returns=MATRICES)
    assert (alone.batch, batch.batch) == (None, 1)
    for name, value in arrays(alone.results[0]).items():
        np.testing.assert_array_equal(value, arrays(batch.results[0])[name][0])
    assert (alone.model, alone.heads, alone.queries, alone.keys, alone.head_dim) == ("identity", 2, 5, 5, 4)


def test_chosen_rows_as_queries_equal_the_rows_of_the_whole(served: Served) -> None:
    x = array(9, 8)
    whole = served.score(AttentionInput(embeddings=x), encoding="rope", causal=True).results[0]
    rows = np.array([8, 3])
    some = served.score(
        AttentionInput(queries=x[rows], keys=x, query_positions=rows.astype(float)), encoding="rope", causal=True
    ).results[0]
    assert whole.weights is not None
    assert some.weights is not None
    np.testing.assert_allclose(some.weights, whole.weights[:, rows], atol=1e-6)


def test_arrays_in_fortran_order_are_read_as_what_they_are(served: Served) -> None:
    x = array(5, 8)
    one = served.score(AttentionInput(embeddings=x), heads=2).results[0]
    two = served.score(AttentionInput(embeddings=np.asfortranarray(x)), heads=2).results[0]
    np.testing.assert_array_equal(one.scores, two.scores)


def test_values_that_overflow_are_counted(served: Served) -> None:
    x = np.full((3, 4), 1e30, np.float32)
    (result,) = served.score(AttentionInput(embeddings=x), encoding="none", returns=("scores",)).results
    assert result.nonfinite_cells == 9


def test_what_is_counted_as_not_finite_are_the_numbers_of_the_answer_whatever_else_was_computed(served: Served) -> None:
    x = np.full((3, 4), 1e30, np.float32)
    counts = {
        returns: served.score(AttentionInput(embeddings=x), encoding="none", returns=returns).results[0].nonfinite_cells
        for returns in (("scores",), ("weights",), ("scores", "summary"), ("weights", "summary"), ("summary",))
    }
    assert counts["scores", "summary"] == counts["scores",] == 9
    assert counts["weights", "summary"] == counts["weights",] == counts["summary",]


def test_64_requests_in_flight_equal_the_same_requests_alone(served: Served) -> None:
    random = np.random.default_rng(5)
    made = []
    for i in range(64):
        heads = int(random.choice([1, 2, 4]))
        shape = (
            *(() if i % 3 else (int(random.integers(1, 4)),)),
            int(random.choice([1, 3, 8, 8, 8, 17, 40])),
            4 * heads,
        )
        names = random.choice(ENCODINGS, size=3, replace=False)
        returns = [name for name in MATRICES if random.random() < 0.5] or ["weights"]
        mask = random.random(shape[-2]) < 0.8 if i % 4 == 0 else None
        made.append(
            (
                AttentionInput(embeddings=random.standard_normal(shape, dtype=np.float32), mask=mask),
                AttentionOptions(
                    encoding=names[0],
                    compare=tuple(names[1 : 1 + i % 3]),
                    heads=heads,
                    causal=True,
                    returns=tuple(returns),
                ),
            )
        )
    together = served.together(made)
    alone = [served.together([request])[0] for request in made]
    for (_, options), one, other in zip(made, together, alone, strict=True):
        assert [result.encoding for result in one.results] == [options.encoding, *options.compare]
        for result, expected in zip(one.results, other.results, strict=True):
            assert set(arrays(result)) == set(arrays(expected))
            assert (result.weights is not None) == ("weights" in (options.returns or ()))
            assert (result.scores is not None) == ("scores" in (options.returns or ()))
            assert (result.output is not None) == ("output" in (options.returns or ()))
            assert (result.terms is not None) == ("terms" in (options.returns or ()))
            for name, value in arrays(result).items():
                np.testing.assert_allclose(value, arrays(expected)[name], rtol=1e-6, atol=1e-6)


@st.composite
def anything(draw: st.DrawFn) -> tuple[AttentionInput, dict[str, Any]]:
    """Arrays that are finite, as `wire` guarantees; here and there an axis too long, too short or too many."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch, queries, keys, width = draw(
        st.tuples(st.sampled_from([(), (2,)]), *[st.integers(1, 5)] * 2, st.sampled_from([4, 8]))
    )
    wrong = st.sampled_from([False] * 15 + [True])

    def some(*shape: int) -> np.ndarray:
        sizes = [draw(st.integers(0, 9)) if draw(wrong) else size for size in shape]
        if draw(wrong):
            sizes = draw(st.sampled_from([sizes[1:], [1, *sizes]]))
        return random.integers(-1, 4, sizes).astype(np.float32)

    parts: dict[str, Any] = {}
    if draw(st.booleans()):
        queries = keys
        parts["embeddings"] = some(*batch, keys, width)
        if draw(st.booleans()):
            parts["positions"] = some(keys).astype(np.float64)
    else:
        parts |= {"queries": some(*batch, queries, width), "keys": some(*batch, keys, width)}
        if draw(st.booleans()):
            parts["key_positions"] = some(keys).astype(np.float64)
    masks = [(keys,), (queries, keys), (*batch, keys), (*batch, queries, keys), (*(batch or (1,)), 2, queries, keys)]
    if draw(st.booleans()):
        parts["mask"] = some(*draw(st.sampled_from(masks))) > 0
    encodings = [IDENTITY.encoding(name) for name in draw(st.lists(st.sampled_from(ENCODINGS), min_size=1, max_size=3))]
    sizes = {"heads": 2, "head_dim": width // 2, "width": width, "positions": 9}
    scalars, arrays = {}, {}
    for encoding in encodings:
        for parameter in encoding.parameters:
            name = f"{encoding.id}.{parameter.name}"
            if draw(st.integers(0, 3)):
                continue
            if parameter.kind != "array" or draw(wrong):
                scalars[name] = draw(st.sampled_from(["1", "2", "8", "2,3", "half", "true", "1e9", "-1"]))
            else:
                arrays[name] = some(*(sizes.get(str(axis), draw(st.integers(1, 9))) for axis in parameter.shape))
    options = {
        "encoding": encodings[0].id,
        "compare": (*(encoding.id for encoding in encodings[1:]), *draw(st.sampled_from([(), ("all",)]))),
        "heads": draw(st.sampled_from([1, 2, 2, 2, 2, 4, 3])),
        "causal": draw(st.sampled_from([None, True, False])),
        "returns": tuple(draw(st.lists(st.sampled_from(MATRICES), min_size=1))),
        "scalars": scalars,
    }
    return AttentionInput(**parts, parameters=arrays), options


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(anything())
def test_whatever_comes_is_answered_or_refused_and_never_fails_in_the_model(
    served: Served, request_: tuple[AttentionInput, dict[str, Any]]
) -> None:
    input, options = request_
    try:
        assert served.score(input, **options).results
    except (InvalidInput, PayloadTooLarge) as error:
        event(f"refused: {error.pointer}")
    else:
        event("answered")


# What the engine is asked


def test_everything_of_a_request_goes_to_the_engine_at_once(recorded: tuple[Recording, Served]) -> None:
    engine, served = recorded
    served.score(
        AttentionInput(embeddings=array(4, 8)), encoding="alibi", compare=("rope", "t5"), returns=("scores", "terms")
    )
    (jobs,) = engine.calls
    assert [job.graph.name for job in jobs] == ["identity.alibi", "identity.rope", "identity.t5"]
    assert jobs[0].outputs == ("scores", "term.content", "term.bias")
    assert [job.cells for job in jobs] == [16 * len(job.outputs) for job in jobs]
    assert all(job.queries is jobs[0].queries and job.keys is job.queries for job in jobs)


def test_only_the_outputs_asked_for_are_computed(recorded: tuple[Recording, Served]) -> None:
    engine, served = recorded
    for returns, outputs in (
        (("weights",), ("weights",)),
        (("output",), ("output",)),
        (("scores", "weights"), ("weights", "scores")),
    ):
        served.score(AttentionInput(embeddings=array(4, 8)), returns=returns)
        assert engine.calls[-1][0].outputs == outputs


def test_what_is_written_in_float16_is_computed_so_but_ranked_in_full(recorded: tuple[Recording, Served]) -> None:
    engine, served = recorded
    served.score(AttentionInput(embeddings=array(4, 8)), returns=MATRICES, encoding="alibi", half=True)
    names = ("weights", "scores", "output", "term.content", "term.bias")
    assert engine.calls[-1][0].outputs == tuple(f"half.{name}" for name in names)
    served.score(AttentionInput(embeddings=array(4, 8)), top_k=2, returns=("scores",), half=True)
    assert engine.calls[-1][0].outputs == ("weights", "scores")


@pytest.mark.parametrize("encoding", ["rope", "alibi", "t5", "none"])
def test_float16_is_that_of_the_float32_answer(served: Served, encoding: str) -> None:
    """To the last bit, also of what is too small for float16's full precision, and what is too large."""
    for scale in (1.0, 30.0, 600.0):
        input = AttentionInput(embeddings=scale * array(300, 8))
        options = {"encoding": encoding, "heads": 2, "causal": True, "returns": MATRICES, **selected("100:", "1")}
        (whole,) = served.score(input, **options).results
        (half,) = served.score(input, **options, half=True).results
        assert {array.dtype for array in arrays(half).values()} == {np.dtype(np.float16)}
        assert set(arrays(half)) == set(arrays(whole))
        for name, found in arrays(half).items():
            with np.errstate(over="ignore"):
                np.testing.assert_array_equal(found, arrays(whole)[name].astype(np.float16), err_msg=name)
        assert half.nonfinite_cells == sum(np.isinf(found).sum() for found in arrays(half).values())
        assert half.nonfinite_cells >= whole.nonfinite_cells == 0
    assert half.nonfinite_cells > 0


def test_where_nothing_is_masked_no_mask_is_sent(recorded: tuple[Recording, Served]) -> None:
    engine, served = recorded
    last = AttentionInput(queries=array(1, 8), keys=array(4, 8), query_positions=np.array([3.0]))
    served.score(last, causal=True)
    served.score(AttentionInput(embeddings=array(4, 8), mask=np.ones((4, 4))))
    served.score(AttentionInput(embeddings=array(4, 8)))
    assert [call[0].visible for call in engine.calls] == [None, None, None]
    served.score(AttentionInput(embeddings=array(4, 8)), causal=True)
    visible = engine.calls[-1][0].visible
    assert visible is not None
    np.testing.assert_array_equal(visible, np.tril(np.ones((4, 4), bool))[None, None])


def test_a_mask_of_any_form_reaches_the_engine_with_its_rows_and_keys(recorded: tuple[Recording, Served]) -> None:
    engine, served = recorded
    served.score(
        AttentionInput(embeddings=array(2, 4, 8), mask=np.array([[1, 1, 1, 0], [1, 0, 0, 0]])), compare=("all",)
    )
    assert all(job.visible is engine.calls[0][0].visible for job in engine.calls[0])
    visible = engine.calls[0][0].visible
    assert visible is not None
    assert visible.shape == (2, 1, 4, 4)


def test_equal_requests_share_their_tables_key(recorded: tuple[Recording, Served]) -> None:
    engine, served = recorded
    served.score(AttentionInput(embeddings=array(4, 8)), encoding="rope", causal=True)
    served.score(AttentionInput(embeddings=array(4, 8, seed=1), positions=np.arange(4.0)), encoding="rope", causal=True)
    served.score(AttentionInput(embeddings=array(4, 8)), encoding="rope", causal=True, scalars={"rope.theta": "5"})
    keys = [call[0].key for call in engine.calls]
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]


def test_the_deadline_is_passed_on(recorded: tuple[Recording, Served]) -> None:
    engine, served = recorded
    input, options = AttentionInput(embeddings=array(4, 8)), AttentionOptions()
    served.runner.run(served.scoring.score(input, options, Timings(), deadline=12.5))
    assert engine.deadline == 12.5


def test_a_deadline_that_has_passed_is_an_error(served: Served) -> None:
    with pytest.raises(DeadlineExceeded):
        served.runner.run(
            served.scoring.score(AttentionInput(embeddings=array(4, 8)), AttentionOptions(), Timings(), deadline=0.0)
        )


def test_timings_divide_the_time_that_passed(served: Served) -> None:
    async def main() -> tuple[float, Timings]:
        timings, loop = Timings(decode=1.0), asyncio.get_running_loop()
        began = loop.time()
        options = AttentionOptions(compare=("all",), causal=True, heads=4)
        result = await served.scoring.score(AttentionInput(embeddings=array(64, 64)), options, timings)
        assert result.timings is timings
        return loop.time() - began, timings

    passed, timings = served.runner.run(main())
    assert timings.decode > 1.0
    stages = [getattr(timings, stage) for stage in Timings.STAGES]
    assert min(stages) >= 0
    assert sum(stages) - 1.0 == pytest.approx(passed, rel=0.25)
    assert timings.batch_jobs >= 1


def test_compute_is_never_more_than_the_wait(sessions: Sessions) -> None:
    """Encodings computed side by side: their times sum to more than the clock has seen."""
    timings = Timings()
    scoring = Scoring(CATALOGUE, Recording(compute=5.0, batch_assembly=1.0, batch_jobs=7), TableCache(sessions))
    asyncio.run(scoring.score(AttentionInput(embeddings=array(4, 8)), AttentionOptions(compare=("none",)), timings))
    assert timings.compute < 2.0
    assert timings.batch_assembly == timings.queue == 0.0
    assert timings.batch_jobs == 7


def test_every_encoding_has_a_sample_that_the_engine_can_run(served: Served) -> None:
    jobs = served.runner.run(served.scoring.samples())
    assert sorted(job.graph.name for job in jobs) == sorted(encoding.name for encoding in CATALOGUE.encodings)
    results = served.runner.run(served.scoring.engine.run(jobs))
    assert all(np.isfinite(result.outputs["weights"]).all() for result in results)


# A part of the input


PARTS = ("-1", "0", "0:2", "::2", "::-1", "-2:", "1:,0", "0,-1")


@settings(max_examples=150, deadline=None)
@given(requests(), st.sampled_from(PARTS), st.sampled_from((None, *PARTS)))
def test_rows_and_heads_are_those_of_the_whole_answer(
    served: Served, request_: tuple[AttentionInput, dict[str, Any], np.ndarray], rows: str, head: str | None
) -> None:
    input, options, _ = request_
    whole = served.score(input, **options)
    try:
        picked = served.score(input, **options, **selected(rows, head))
    except InvalidInput:  # a slice of none
        reject()
    batched = whole.batch is not None
    which = list(range(whole.queries)) if picked.rows is None else list(picked.rows)
    heads = list(range(whole.heads)) if picked.head is None else list(picked.head)
    (expected,), (found,) = whole.results, picked.results
    assert (picked.queries, picked.heads, picked.keys) == (whole.queries, whole.heads, whole.keys)
    for name, array in arrays(expected).items():
        array = array if batched else array[None]
        cut = array[:, which][:, :, heads] if name == "output" else array[:, heads][:, :, which]
        np.testing.assert_allclose(
            arrays(found)[name],
            cut if batched else cut[0],
            atol=3e-6 * max(1.0, float(np.abs(array).max())),
            err_msg=f"{options['encoding']} {name}",
        )


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_row_is_scored_under_the_length_of_the_whole_input(served: Served, encoding: str) -> None:
    """The largest position is that of a query that is not returned: beyond 2048, where some encodings change."""
    x = array(3, 8)
    input = AttentionInput(
        queries=x, keys=x, query_positions=np.array([2.0, 3000.0, 7.0]), key_positions=np.array([0.0, 1.0, 5.0])
    )
    options: dict[str, Any] = {"encoding": encoding, "causal": encoding in CAUSAL_ONLY}
    if IDENTITY.encoding(encoding).parameter("original_length") is not None:
        options["scalars"] = {f"{encoding}.original_length": "1024"}
    (whole,) = served.score(input, **options).results
    (row,) = served.score(input, **options, **selected("-1,0")).results
    assert whole.scores is not None
    assert row.scores is not None
    np.testing.assert_allclose(row.scores, whole.scores[:, [2, 0]], atol=1e-5)


@settings(max_examples=100, deadline=None)
@given(requests(), st.integers(1, 9), st.sampled_from((None, *PARTS)), st.booleans())
def test_the_largest_keys_of_each_row_are_those_of_the_whole_answer(
    served: Served, request_: tuple[AttentionInput, dict[str, Any], np.ndarray], k: int, rows: str | None, few: bool
) -> None:
    input, options, visible = request_
    options["returns"] = ("output",) if few else MATRICES
    choice = selected(rows, None)
    try:
        whole = served.score(input, **options | {"returns": MATRICES}, **choice)
    except InvalidInput:  # a slice of none
        reject()
    k = min(k, whole.keys)
    picked = served.score(input, **options, **choice, top_k=k)
    batched = whole.batch is not None
    (expected,), (found,) = whole.results, picked.results
    top = found.top_k
    assert top is not None
    assert (found.weights, found.scores, found.terms) == (None, None, None)
    assert expected.weights is not None
    visible = visible if batched else visible[0]
    if picked.rows is not None:
        visible = visible[..., list(picked.rows), :]
    assert top.indices.shape == top.weights.shape == (*expected.weights.shape[:-1], k)
    assert (found.output is None) == ("output" not in options["returns"])
    assert (top.scores is None) == (top.terms is None) == few
    for place in np.ndindex(top.indices.shape[:-1]):
        keys, weights, row = top.indices[place], top.weights[place], expected.weights[place]
        count = min(k, int(visible[place].sum()))
        assert len(set(keys[:count])) == count
        assert visible[place][keys[:count]].all()
        assert (keys[count:] == -1).all()
        assert (weights[count:] == 0).all()
        np.testing.assert_allclose(weights[:count], np.sort(row[visible[place]])[::-1][:count], atol=2e-6)
        np.testing.assert_allclose(weights[:count], row[keys[:count]], atol=2e-6)
        ties = weights[:count][:-1] == weights[:count][1:]
        assert (keys[:count][:-1] < keys[:count][1:])[ties].all()
        for name, values in {} if few else {"scores": top.scores, **(top.terms or {})}.items():
            assert values is not None
            assert (values[place][count:] == 0).all()
            everything = arrays(expected)[name]
            np.testing.assert_allclose(
                values[place][:count],
                everything[place][keys[:count]],
                atol=3e-6 * max(1.0, float(np.abs(everything).max())),
            )


def test_equal_weights_are_told_by_their_keys_and_hidden_keys_are_left_out(served: Served) -> None:
    input = AttentionInput(embeddings=np.ones((5, 4), np.float32))
    (result,) = served.score(input, encoding="none", causal=True, top_k=3).results
    assert result.top_k is not None
    assert result.top_k.indices[0].tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    np.testing.assert_allclose(result.top_k.weights[0, 1], [0.5, 0.5, 0])


def test_only_the_rows_asked_for_are_computed(recorded: tuple[Recording, Served]) -> None:
    engine, served = recorded
    served.score(
        AttentionInput(embeddings=array(2, 64, 8), mask=np.ones((1, 64, 64)) - np.eye(64)[None]),
        encoding="t5",
        compare=("rope", "cope"),
        causal=True,
        **selected("-1", None),
    )
    for job in engine.calls[0]:
        assert job.queries.shape[:2] == (2, 1)
        assert job.keys.shape[:2] == (2, 64)
        assert job.cells == 2 * 64 * len(job.outputs)
        assert job.visible is not None
        assert job.visible.shape == (1, 1, 1, 64)
        encoding = IDENTITY.encoding(job.graph.name.removeprefix("identity."))
        for name, table in job.tables.arrays.items():
            axes = encoding.tables[name.removeprefix("table.")]
            assert all(size == 1 for axis, size in zip(axes, table.shape, strict=True) if axis == "queries")
    (first, *_) = engine.calls[0]
    np.testing.assert_array_equal(first.queries[:, 0], first.keys[:, 63])


def test_all_rows_in_their_order_are_the_whole_input(recorded: tuple[Recording, Served]) -> None:
    engine, served = recorded
    result = served.score(AttentionInput(embeddings=array(4, 8)), **selected("0:2,2,-1", ":"))
    assert (result.rows, result.head) == (None, None)
    (job,) = engine.calls[0]
    assert job.queries is job.keys


def test_rows_share_a_plan_but_not_with_other_rows(recorded: tuple[Recording, Served]) -> None:
    engine, served = recorded
    for rows in ("-1", "0", "-1"):
        served.score(AttentionInput(embeddings=array(4, 8)), **selected(rows))
    last, first, again = (call[0] for call in engine.calls)
    assert last.key == again.key != first.key
    np.testing.assert_array_equal(again.queries[0, 0], again.keys[0, 3])
    np.testing.assert_array_equal(first.queries[0, 0], first.keys[0, 0])


def test_only_what_is_returned_counts_as_not_finite(served: Served) -> None:
    x = np.ones((3, 4), np.float32)
    x[:, :2] = 1e30
    options: dict[str, Any] = {"encoding": "none", "heads": 2, "returns": ("scores",)}
    input = AttentionInput(embeddings=x)
    assert served.score(input, **options).results[0].nonfinite_cells == 9
    assert served.score(input, **options, **selected("0", "1")).results[0].nonfinite_cells == 0
    assert served.score(input, **options, **selected("0", "0")).results[0].nonfinite_cells == 3


@pytest.mark.parametrize(
    ("options", "detail", "pointer"),
    [
        ({"rows": "9"}, r"rows=9 is not there: there are 4 queries, 0 to 3 \(or -4 to -1\)", "query:rows"),
        ({"head": "2"}, r"head=2 is not there: there are 2 heads, 0 to 1 \(or -2 to -1\)", "query:head"),
        ({"top_k": 5}, "top_k=5 asks for more keys than the 4 there are; it may be 1 to 4", "query:top_k"),
    ],
)
def test_what_is_not_there_is_refused_naming_what_is(
    recorded: tuple[Recording, Served], options: dict[str, Any], detail: str, pointer: str
) -> None:
    engine, served = recorded
    choice = selected(options.get("rows"), options.get("head")) | {"top_k": options.get("top_k")}
    with pytest.raises(InvalidInput, match=detail) as caught:
        served.score(AttentionInput(embeddings=array(4, 8)), heads=2, **choice)
    assert caught.value.pointer == pointer
    assert engine.calls == []


def test_a_part_of_the_rows_is_within_a_limit_that_all_are_not(sessions: Sessions) -> None:
    scoring = Scoring(CATALOGUE, Recording(), TableCache(sessions), Limits(cells=100))
    input = AttentionInput(embeddings=array(20, 8))
    with pytest.raises(PayloadTooLarge, match=r"a part of the rows \(rows=0:64\)"):
        asyncio.run(scoring.score(input, AttentionOptions(), Timings()))
    asyncio.run(scoring.score(input, AttentionOptions(**selected("0:2")), Timings()))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rows_of_what_a_gpu_pads_are_those_of_what_it_does_not(
    served: Served, sessions: Sessions, encoding: str
) -> None:
    padded = Served(Scoring(CATALOGUE, served.scoring.engine, TableCache(sessions), padding=GpuPolicy()), served.runner)
    input = AttentionInput(embeddings=array(21, 8))
    options: dict[str, Any] = {"encoding": encoding, "heads": 2, "causal": True, "returns": MATRICES}
    for rows in ("-1", "3:9", "7,3"):
        (one,), (other,) = (each.score(input, **options, **selected(rows)).results for each in (padded, served))
        for name, value in arrays(one).items():
            np.testing.assert_allclose(value, arrays(other)[name], rtol=1e-5, atol=1e-5)


# Which encodings


def names(result: ScoringResult) -> list[str]:
    return [one.encoding for one in result.results]


def test_the_reference_is_the_default_unless_named(recorded: tuple[Recording, Served]) -> None:
    _, served = recorded
    input = AttentionInput(embeddings=array(4, 8))
    assert names(served.score(input)) == ["rope"]
    assert names(served.score(input, encoding="ALIBI")) == ["alibi"]
    assert names(served.score(input, compare=("t5", "rope", "alibi"))) == ["rope", "t5", "alibi"]
    assert names(served.score(input, encoding="t5", compare=("rope",))) == ["t5", "rope"]


def test_all_is_every_encoding_the_reference_first(recorded: tuple[Recording, Served]) -> None:
    _, served = recorded
    result = served.score(AttentionInput(embeddings=array(4, 8)), encoding="t5", compare=("all",), causal=True)
    assert names(result)[0] == "t5"
    assert sorted(names(result)) == ENCODINGS
    assert result.skipped == {}


def test_all_leaves_out_what_cannot_serve_the_request_and_says_why(recorded: tuple[Recording, Served]) -> None:
    _, served = recorded
    positions = np.array([0.5, 1.5, 2.5])
    result = served.score(AttentionInput(embeddings=array(3, 9), positions=positions), heads=3, compare=("All",))
    assert {"rope", "learned"} <= set(result.skipped)
    assert "rope needs an even head_dim, but width 9 / heads 3 = 3 is odd" in result.skipped["rope"]
    assert "learned takes whole positions only, but positions[0] is 0.5" in result.skipped["learned"]
    assert {"none", "alibi"} <= set(names(result))
    assert set(names(result)) | set(result.skipped) == set(ENCODINGS)


def test_all_leaves_out_positions_beyond_the_largest_table(recorded: tuple[Recording, Served]) -> None:
    _, served = recorded
    result = served.score(AttentionInput(embeddings=array(2, 8), positions=np.array([0.0, 1e6])), compare=("all",))
    assert "position 1000000 has no row in learned.table" in result.skipped["learned"]


def test_what_is_named_is_not_left_out_but_refused(recorded: tuple[Recording, Served]) -> None:
    _, served = recorded
    odd = AttentionInput(embeddings=array(3, 9))
    for options in ({"encoding": "rope"}, {"compare": ("rope", "all")}, {"encoding": "none", "compare": ("rope",)}, {}):
        with pytest.raises(InvalidInput, match="rope needs an even head_dim"):
            served.score(odd, **options)


def test_a_parameter_of_an_encoding_that_all_left_out_is_refused(recorded: tuple[Recording, Served]) -> None:
    _, served = recorded
    with pytest.raises(InvalidInput, match="rope, which cannot serve this request: rope needs an even head_dim"):
        served.score(AttentionInput(embeddings=array(3, 9)), compare=("all",), scalars={"rope.theta": "5"})


def test_a_table_that_came_and_is_too_short_is_refused_even_under_all(recorded: tuple[Recording, Served]) -> None:
    _, served = recorded
    input = AttentionInput(embeddings=array(4, 8), parameters={"learned.table": array(3, 8)})
    with pytest.raises(InvalidInput, match=r"position 3 has no row in learned\.table, which has 3 rows"):
        served.score(input, compare=("all",))


def test_where_no_encoding_is_able_the_reasons_are_given(sessions: Sessions) -> None:
    catalogue = Catalogue({"identity": Model("identity", {"one": tiny.encoding("one", even_head_dim=True)}, "one")})
    scoring = Scoring(catalogue, Recording(), TableCache(sessions))
    with pytest.raises(
        InvalidInput, match="no encoding of identity can serve this request: one: one needs an even head_dim"
    ):
        asyncio.run(
            scoring.score(AttentionInput(embeddings=array(3, 9)), AttentionOptions(compare=("all",)), Timings())
        )


class Stub:
    """Positions graphs for encodings that have no files."""

    def positions(self, path: Path) -> Stub:
        return self

    def run(self, output_names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [np.zeros((), np.float32) for _ in output_names]


def causal_only(runner: asyncio.Runner, default_causal: bool) -> Served:
    encodings = {
        "xpos": tiny.encoding("xpos", causal="required", default_causal=default_causal),
        "none": IDENTITY.encoding("none"),
        "rope": IDENTITY.encoding("rope"),
    }
    catalogue = Catalogue({"identity": Model("identity", encodings, "rope")})
    return Served(Scoring(catalogue, Recording(), TableCache(Stub())), runner)


def test_a_causal_encoding_alone_is_causal_by_itself_and_decides_for_a_comparison(runner: asyncio.Runner) -> None:
    input = AttentionInput(embeddings=array(3, 8))
    for default_causal in (True, False):
        served = causal_only(runner, default_causal)
        assert served.score(input, encoding="xpos").causal
        assert served.score(input, encoding="xpos", compare=("none",)).causal


def test_a_causal_encoding_in_a_comparison_that_is_not_is_refused(runner: asyncio.Runner) -> None:
    served = causal_only(runner, True)
    input = AttentionInput(embeddings=array(3, 8))
    for options in ({"encoding": "xpos", "causal": False}, {"encoding": "none", "compare": ("xpos",)}):
        with pytest.raises(InvalidInput, match="xpos is defined for causal attention only; add causal=true"):
            served.score(input, **options)
    assert not served.score(input).causal
    assert set(served.score(input, compare=("all",)).skipped) == {"xpos"}
    assert served.score(input, compare=("all",), causal=True).skipped == {}


# Errors


@pytest.mark.parametrize(
    ("error", "detail", "options"),
    [
        (UnknownName, "unknown encoding 'rop'; did you mean rope", {"encoding": "rop"}),
        (UnknownName, "unknown encoding 'alibbi'; did you mean alibi", {"compare": ("alibbi",)}),
        (UnknownName, "unknown model 'identiti'; did you mean identity", {"model": "identiti"}),
        (UnknownName, "unknown value of return 'weight'; did you mean weights", {"returns": ("weight",)}),
        (InvalidInput, "return names nothing; it may hold weights, scores, terms, output", {"returns": ()}),
        (InvalidInput, "width 8 cannot be split into 3 heads; heads may be 1, 2, 4, 8", {"heads": 3}),
        (ParameterOutOfRange, "rope.theta is 0.1; allowed: 1 to", {"scalars": {"rope.theta": "0.1"}}),
        (
            InvalidInput,
            "is a parameter of t5, which this request does not ask for",
            {"scalars": {"t5.max_distance": "9"}},
        ),
    ],
)
def test_wrong_options_are_refused_by_name(
    recorded: tuple[Recording, Served], error: type[Exception], detail: str, options: dict[str, Any]
) -> None:
    engine, served = recorded
    with pytest.raises(error) as caught:
        served.score(AttentionInput(embeddings=array(4, 8)), **options)
    assert type(caught.value) is error
    assert detail in str(caught.value)
    assert engine.calls == []


def test_a_mask_that_does_not_fit_is_refused(recorded: tuple[Recording, Served]) -> None:
    _, served = recorded
    with pytest.raises(InvalidInput, match=r"the mask has shape \[3, 4\]; allowed: \[keys\] = \[4\]"):
        served.score(AttentionInput(embeddings=array(4, 8), mask=np.ones((3, 4))))


@pytest.mark.parametrize(
    ("models", "named", "reason"),
    [
        ({"identity": IDENTITY}, None, "none of the models served here has a tokenizer"),
        ({"identity": IDENTITY}, "identity", "model 'identity' has no tokenizer, so it takes no text: send embeddings"),
        (CATALOGUE.models, "identity", "it takes no text: model=tiny takes text; or send embeddings"),
    ],
)
def test_text_is_refused_where_the_model_has_no_tokenizer(
    sessions: Sessions, models: Mapping[str, Model], named: str | None, reason: str
) -> None:
    scoring = Scoring(Catalogue(models), Recording(), TableCache(sessions))
    with pytest.raises(InvalidInput, match=reason) as caught:
        asyncio.run(scoring.score(AttentionInput(text="hello"), AttentionOptions(model=named), Timings()))
    assert caught.value.pointer == "/text"


def test_without_models_nothing_is_ready(sessions: Sessions) -> None:
    scoring = Scoring(Catalogue({}), Recording(), TableCache(sessions))
    for input in (AttentionInput(embeddings=array(4, 8)), AttentionInput(text="hello")):
        with pytest.raises(NotReady, match="no exported models"):
            asyncio.run(scoring.score(input, AttentionOptions(), Timings()))


def test_more_cells_than_the_limit_are_refused_naming_both_and_the_ways_out(sessions: Sessions) -> None:
    scoring = Scoring(CATALOGUE, Recording(), TableCache(sessions), Limits(cells=100))
    input = AttentionInput(embeddings=array(5, 8))
    asyncio.run(scoring.score(input, AttentionOptions(heads=2), Timings()))
    with pytest.raises(PayloadTooLarge) as caught:
        asyncio.run(scoring.score(input, AttentionOptions(heads=2, compare=("none",)), Timings()))
    assert (
        "asks for 200 cells (batch 1 x heads 2 x queries 5 x keys 5 x 4 outputs of 2 encodings)" in caught.value.detail
    )
    assert "the limit is 100: ask for fewer tokens" in caught.value.detail
    assert "fewer encodings at once" in caught.value.detail
    assert "return=weights" in caught.value.detail
    assert caught.value.extra == {"limit": 100}


def test_a_width_whose_default_projections_would_be_too_large_is_refused_for_those_that_need_them(
    sessions: Sessions,
) -> None:
    scoring = Scoring(CATALOGUE, Recording(), TableCache(sessions), Limits(parameters=1000))
    input = AttentionInput(embeddings=array(2, 64))
    with pytest.raises(PayloadTooLarge, match=r"would have .* numbers; the limit for a default is 1,000"):
        asyncio.run(scoring.score(input, AttentionOptions(encoding="deberta"), Timings()))
    result = asyncio.run(scoring.score(input, AttentionOptions(compare=("all",), causal=True), Timings()))
    assert "rope" in names(result)
    assert {"deberta", "tupe", "transformer-xl"} <= set(result.skipped)
