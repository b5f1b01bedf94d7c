"""Requests that are computed in blocks have the answers of those that are not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.catalogue import Catalogue
from service.deadline import Deadline
from service.engine.batches import Limits as QueueLimits
from service.engine.engine import Engine
from service.engine.job import Job, JobResult
from service.engine.session import Sessions
from service.errors import DeadlineExceeded, InvalidInput, ModelFailed, Overloaded
from service.large import Bounds
from service.records import MATRICES, AttentionInput, AttentionOptions, EncodingResult, ScoringResult, Timings
from service.scoring import Limits, Scoring
from service.selection import Selection
from service.tables import TableCache

CATALOGUE = Catalogue.read([Path(__file__).parents[2] / "exported"])
IDENTITY = CATALOGUE.model("identity")
ENCODINGS = sorted(IDENTITY.encodings)
CAUSAL_ONLY = {encoding.id for encoding in CATALOGUE.encodings if encoding.causal == "required"}
MOST = 1 << 27


class Both:
    """The same scoring twice: in one piece, and in blocks of `cells`; the second engine refuses larger jobs."""

    def __init__(self, runner: asyncio.Runner, cells: int = 300) -> None:
        sessions = Sessions("cpu")
        self.runner = runner
        self.engines = Engine(sessions, workers=1), Engine(sessions, workers=1)
        for engine in self.engines:
            runner.run(engine.start())
        self.watched = Watched(self.engines[1], cells)
        self.whole = Scoring(
            CATALOGUE, self.engines[0], TableCache(sessions), Limits(cells=MOST), large=Bounds(MOST, MOST, block=MOST)
        )
        self.blocked = Scoring(
            CATALOGUE, self.watched, TableCache(sessions), Limits(cells=MOST), large=Bounds(MOST, MOST, block=cells)
        )

    def __call__(self, input: AttentionInput, **options: Any) -> tuple[ScoringResult, ScoringResult]:
        asked = AttentionOptions(**options)
        self.watched.jobs = 0
        one, other = (self.runner.run(scoring.score(input, asked, Timings())) for scoring in (self.whole, self.blocked))
        return one, other


class Watched:
    """An engine that takes jobs of one size, or of one row each, and no larger ones."""

    def __init__(self, engine: Engine, cells: int) -> None:
        self._engine = engine
        self._cells = cells
        self.jobs = 0

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        for job in jobs:
            assert job.cells <= self._cells or job.queries.shape[:2] == (1, 1)
        self.jobs += len(jobs)
        return await self._engine.run(jobs, deadline)


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    with asyncio.Runner() as runner:
        both = Both(runner)
        yield both
        for engine in both.engines:
            runner.run(engine.stop())


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def arrays(result: EncodingResult) -> dict[str, np.ndarray]:
    ranked = result.top_k
    found: dict[str, Any] = {"weights": result.weights, "scores": result.scores, **(result.terms or {})}
    if ranked is not None:
        found = {"keys": ranked.indices, "weights": ranked.weights, "scores": ranked.scores, **(ranked.terms or {})}
    found["output"] = result.output
    return {name: value for name, value in found.items() if value is not None}


def assert_same(one: ScoringResult, other: ScoringResult) -> None:
    assert [result.encoding for result in one.results] == [result.encoding for result in other.results]
    assert one.skipped == other.skipped
    for first, second in zip(one.results, other.results, strict=True):
        expected, found = arrays(first), arrays(second)
        assert set(expected) == set(found)
        for name, value in expected.items():
            assert found[name].dtype == value.dtype
            # Integer positions make scores of thousands, whose last bit is worth more.
            error = 1e-3 if value.dtype == np.float16 else 1e-4 if first.encoding == "integer" else 1e-6
            np.testing.assert_allclose(found[name], value, rtol=error, atol=error, err_msg=f"{first.encoding} {name}")
        assert first.nonfinite_cells == second.nonfinite_cells


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("causal", [True, False])
def test_every_encoding_is_the_same_in_blocks(both: Both, encoding: str, causal: bool) -> None:
    if not causal and encoding in CAUSAL_ONLY:
        pytest.skip("causal only")
    positions = np.random.default_rng(3).permutation(60)[:17].astype(float)
    input = AttentionInput(embeddings=array(17, 8), positions=positions)
    assert_same(*both(input, encoding=encoding, heads=2, causal=causal, returns=MATRICES))
    assert both.watched.jobs > 5


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name not in CAUSAL_ONLY])
def test_the_length_that_an_encoding_looks_at_is_that_of_the_whole(both: Both, encoding: str) -> None:
    """The largest position is that of one query."""
    input = AttentionInput(
        queries=array(6, 8), keys=array(9, 8, seed=1), query_positions=np.array([5.0, 1, 6000, 3, 0, 2])
    )
    assert_same(*both(input, encoding=encoding, heads=2, returns=MATRICES))


@st.composite
def requests(draw: st.DrawFn) -> tuple[AttentionInput, dict[str, Any]]:
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch = draw(st.sampled_from([None, 1, 3]))
    lead = () if batch is None else (batch,)
    heads, head_dim = draw(st.sampled_from([(1, 2), (2, 4), (4, 2)]))
    queries, keys = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    parts: dict[str, Any] = {}
    options: dict[str, Any] = {"heads": heads}
    if draw(st.booleans()):
        queries = keys
        parts["embeddings"] = random.standard_normal((*lead, keys, heads * head_dim), dtype=np.float32)
    else:
        key_heads = draw(st.sampled_from([None, 1]))
        options["key_heads"] = key_heads
        parts["queries"] = random.standard_normal((*lead, queries, heads * head_dim), dtype=np.float32)
        parts["keys"] = random.standard_normal((*lead, keys, (key_heads or heads) * head_dim), dtype=np.float32)
    shapes = {
        "keys": (keys,),
        "pairs": (queries, keys),
        "one": (1, queries, keys),
        "row": (1, 1, keys),
        "batch": (batch or 1, queries, keys),
        "heads": (batch or 1, heads, queries, keys),
        "head": (1, heads, 1, keys),
    }
    form = draw(st.sampled_from(["none", *shapes]))
    if form != "none":
        mask = random.random(shapes[form]) < draw(st.sampled_from([0.6, 1.0]))
        parts["mask"] = mask if draw(st.booleans()) else mask.astype(np.float32)
    if draw(st.booleans()):
        options["rows"] = Selection.of("rows", draw(st.sampled_from([["-1"], ["0:5"], ["::2"], ["-1", "0"]])))
    if draw(st.booleans()):
        options["head"] = Selection.of("head", draw(st.sampled_from([["0"], ["-1"]])))
    if draw(st.booleans()):
        options["top_k"] = draw(st.integers(1, keys))
    options["causal"], options["half"] = draw(st.booleans()), draw(st.booleans())
    names = ENCODINGS if options["causal"] else [name for name in ENCODINGS if name not in CAUSAL_ONLY]
    options["encoding"] = draw(st.sampled_from(names))
    others = [name for name in names if name != options["encoding"]]
    options["compare"] = tuple(draw(st.lists(st.sampled_from(others), max_size=2, unique=True)))
    options["returns"] = tuple(draw(st.lists(st.sampled_from(MATRICES), min_size=1, unique=True)))
    return AttentionInput(**parts), options


@settings(max_examples=150, deadline=None)
@given(requests())
def test_every_request_is_the_same_in_blocks(both: Both, request_: tuple[AttentionInput, dict[str, Any]]) -> None:
    input, options = request_
    assert_same(*both(input, **options))


def test_a_batch_of_short_inputs_is_cut_between_them(both: Both) -> None:
    input = AttentionInput(embeddings=array(40, 5, 8))
    assert_same(*both(input, heads=2, compare=("t5",), returns=("weights",)))
    assert both.watched.jobs == 2 * 7, "6 of 50 cells fit into 300"


def test_the_kernel_is_the_same_so_the_numbers_are_too(both: Both) -> None:
    """Row by row and all at once, to the last bit, where blocks are as wide as the whole."""
    one, other = both(AttentionInput(embeddings=array(9, 5, 8)), heads=2, encoding="none", returns=("scores",))
    np.testing.assert_array_equal(one.results[0].scores, other.results[0].scores)


def test_numbers_that_are_not_finite_are_counted_over_all_blocks(both: Both) -> None:
    x = np.full((20, 4), 1e30, np.float32)
    one, other = both(AttentionInput(embeddings=x), encoding="none", returns=("scores",))
    assert one.results[0].nonfinite_cells == other.results[0].nonfinite_cells == 400


def test_a_mask_that_does_not_fit_is_refused(both: Both) -> None:
    with pytest.raises(InvalidInput, match="the mask has shape"):
        both.runner.run(
            both.blocked.score(
                AttentionInput(embeddings=array(20, 8), mask=np.ones((3, 4))), AttentionOptions(), Timings()
            )
        )
    assert both.blocked.large.room.free == MOST


def test_timings_divide_the_time_that_passed(both: Both) -> None:
    async def main() -> tuple[float, Timings]:
        timings, loop = Timings(), asyncio.get_running_loop()
        began = loop.time()
        await both.blocked.score(AttentionInput(embeddings=array(100, 8)), AttentionOptions(heads=2), timings)
        return loop.time() - began, timings

    passed, timings = both.runner.run(main())
    assert min(timings.stages) >= 0
    assert sum(timings.stages) == pytest.approx(passed, rel=0.25)


def test_room_is_given_back_when_the_answer_is_gone(both: Both) -> None:
    async def main() -> None:
        room = both.blocked.large.room
        result = await both.blocked.score(AttentionInput(embeddings=array(40, 8)), AttentionOptions(), Timings())
        await asyncio.sleep(0)
        assert room.free == MOST - 2 * 40 * 40
        del result
        await asyncio.sleep(0)
        assert room.free == MOST

    both.runner.run(main())


class Failing:
    """Answers so many jobs, then fails; or never answers."""

    def __init__(self, engine: Engine, answers: int, *, hangs: bool = False) -> None:
        self._engine = engine
        self._left = answers
        self._hangs = hangs
        self.waiting = 0

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        self._left -= 1
        if self._left >= 0:
            return await self._engine.run(jobs, deadline)
        if not self._hangs:
            raise ModelFailed("no more")
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1
        raise AssertionError


def test_a_block_that_fails_ends_the_request_and_leaves_nothing_behind(both: Both) -> None:
    async def main() -> None:
        engine = Failing(both.engines[0], 3)
        scoring = Scoring(CATALOGUE, engine, both.whole.tables, Limits(cells=MOST), large=Bounds(MOST, MOST, block=300))
        with pytest.raises(ModelFailed, match="no more"):
            await scoring.score(AttentionInput(embeddings=array(60, 8)), AttentionOptions(), Timings())
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(0)
        assert scoring.large.room.free == MOST

    both.runner.run(main())


def test_a_client_that_leaves_ends_its_blocks(both: Both) -> None:
    async def main() -> None:
        engine = Failing(both.engines[0], 3, hangs=True)
        scoring = Scoring(CATALOGUE, engine, both.whole.tables, Limits(cells=MOST), large=Bounds(MOST, MOST, block=300))
        asked = scoring.score(AttentionInput(embeddings=array(60, 8)), AttentionOptions(), Timings())
        task = asyncio.create_task(asked)
        while engine.waiting < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.waiting == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(0)
        assert scoring.large.room.free == MOST

    both.runner.run(main())


def test_a_deadline_ends_a_request_between_its_blocks(both: Both) -> None:
    async def main() -> None:
        asked = both.blocked.score(AttentionInput(embeddings=array(60, 8)), AttentionOptions(), Timings(), deadline=0.0)
        with pytest.raises(DeadlineExceeded):
            await asked
        await asyncio.sleep(0)
        assert both.blocked.large.room.free == MOST

    both.runner.run(main())


class Slow:
    """Answers so many jobs, and takes the others when their deadline has passed."""

    def __init__(self, engine: Engine, answers: int) -> None:
        self._engine = engine
        self._left = answers

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        self._left -= 1
        while self._left < 0 and deadline is not None and time.monotonic() <= deadline:
            await asyncio.sleep(0.01)
        return await self._engine.run(jobs, deadline)


@pytest.mark.parametrize(("compare", "blocks"), [((), 30), (("alibi",), 60)])
def test_past_its_deadline_a_request_is_told_its_limit_and_how_far_it_came(
    both: Both, compare: tuple[str, ...], blocks: int
) -> None:
    async def main() -> None:
        scoring = Scoring(
            CATALOGUE, Slow(both.engines[0], 3), both.whole.tables, Limits(cells=MOST), large=Bounds(MOST, MOST, 300)
        )
        options = AttentionOptions(returns=("scores", "weights"), compare=compare)
        # Two rows of 60 keys are 240 cells of scores and weights: 30 blocks for each encoding.
        deadline = Deadline.after(0.5)
        with pytest.raises(DeadlineExceeded) as caught:
            await scoring.score(AttentionInput(embeddings=array(60, 8)), options, Timings(), deadline)
        expected = "its deadline, 0.5 s after it came (ATTENTION_DEADLINE_SECONDS): "
        assert caught.value.detail == f"not answered by {expected}3 of {blocks} blocks of rows were computed"

    both.runner.run(main())


def test_blocks_let_others_pass() -> None:
    """A small request that comes while a large one is under way does not wait for its end."""
    with asyncio.Runner() as runner:
        both = Both(runner, cells=5000)
        done: list[str] = []

        async def ask(name: str, tokens: int, scoring: Scoring) -> None:
            await scoring.score(AttentionInput(embeddings=array(tokens, 8)), AttentionOptions(), Timings())
            done.append(name)

        async def main() -> None:
            large = asyncio.create_task(ask("large", 700, both.blocked))
            await asyncio.sleep(0.02)
            await ask("small", 5, both.blocked)
            await large

        runner.run(main())
        assert done == ["small", "large"]
        for engine in both.engines:
            runner.run(engine.stop())


def test_the_queue_need_not_hold_a_whole_large_request() -> None:
    with asyncio.Runner() as runner:
        sessions = Sessions("cpu")
        engine = Engine(sessions, workers=1, limits=QueueLimits(queued_jobs=4, queued_cells=4000, job_cells=2000))
        runner.run(engine.start())
        scoring = Scoring(
            CATALOGUE, engine, TableCache(sessions), Limits(cells=MOST), large=Bounds(MOST, MOST, block=1000)
        )
        answer = scoring.score(AttentionInput(embeddings=array(200, 8)), AttentionOptions(), Timings())
        (result,) = runner.run(answer).results
        assert result.weights is not None
        np.testing.assert_allclose(result.weights.sum(-1), 1, atol=1e-5)
        runner.run(engine.stop())


def test_large_requests_take_turns_and_those_that_cannot_wait_are_refused() -> None:
    """Side by side, all of them would be late together."""
    with asyncio.Runner() as runner:
        sessions = Sessions("cpu")
        engine = Engine(sessions, workers=1)
        runner.run(engine.start())
        cells = 2 * 100 * 100
        bounds = Bounds(MOST, cells, block=1000, at_once=1)
        scoring = Scoring(CATALOGUE, engine, TableCache(sessions), Limits(cells=MOST), large=bounds)
        order: list[int] = []

        async def ask(number: int, deadline: float | None = None) -> None:
            await scoring.score(AttentionInput(embeddings=array(100, 8)), AttentionOptions(), Timings(), deadline)
            order.append(number)

        async def main() -> None:
            tasks = [asyncio.create_task(ask(number)) for number in range(2)]
            await asyncio.sleep(0)
            assert scoring.large.waiting()["identity.rope"][0] == 1
            with pytest.raises(Overloaded, match="large requests") as refused:
                await ask(2)
            assert refused.value.retry_after >= 1
            await asyncio.gather(*tasks)
            assert order == [0, 1]
            assert scoring.large.waiting() == {}

            tasks = [asyncio.create_task(ask(3)), asyncio.create_task(ask(4, time.monotonic()))]
            await asyncio.sleep(0)
            with pytest.raises(DeadlineExceeded, match="kept this one waiting"):
                await tasks[1]
            await tasks[0]
            assert scoring.large.waiting() == {}
            await asyncio.sleep(0)
            assert scoring.large.room.free == MOST

        runner.run(main())
        runner.run(engine.stop())


class Full:
    """An engine whose queue is full for everything but the first job, some times."""

    def __init__(self, engine: Engine, times: int) -> None:
        self._engine = engine
        self._times = times
        self.asked = 0

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        self.asked += 1
        if self.asked > 1 and self._times:
            self._times -= 1
            raise Overloaded("full", retry_after=0.001)
        return await self._engine.run(jobs, deadline)


def test_a_request_that_was_begun_waits_where_the_queue_is_full(both: Both) -> None:
    async def main() -> None:
        engine = Full(both.engines[0], 5)
        scoring = Scoring(CATALOGUE, engine, both.whole.tables, Limits(cells=MOST), large=Bounds(MOST, MOST, block=300))
        asked = AttentionOptions(compare=("alibi",))
        found = await scoring.score(AttentionInput(embeddings=array(60, 8)), asked, Timings())
        expected = await both.whole.score(AttentionInput(embeddings=array(60, 8)), asked, Timings())
        assert_same(expected, found)
        assert engine.asked > 10

        refusing = Full(both.engines[0], 10**6)
        scoring = Scoring(
            CATALOGUE, refusing, both.whole.tables, Limits(cells=MOST), large=Bounds(MOST, MOST, block=300)
        )
        refusing.asked = 1
        with pytest.raises(Overloaded):
            await scoring.score(AttentionInput(embeddings=array(60, 8)), AttentionOptions(), Timings())
        refusing.asked = 0
        deadline = time.monotonic() + 0.1
        with pytest.raises(Overloaded):  # the last word where there is no more time
            await scoring.score(AttentionInput(embeddings=array(60, 8)), AttentionOptions(), Timings(), deadline)
        await asyncio.sleep(0)
        assert scoring.large.room.free == MOST

    both.runner.run(main())
