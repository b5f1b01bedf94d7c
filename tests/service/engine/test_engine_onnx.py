"""The engine with onnxruntime behind it: what is computed together is what would have been computed alone."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.engine.assembly import assemble
from service.engine.engine import Engine
from service.engine.job import Graph, Job
from service.engine.policy import CpuPolicy
from service.engine.session import Sessions
from service.errors import ModelFailed, NotReady
from tests.service.engine.exports import exported, exported_job
from tests.service.engine.fakes import (
    OUTPUTS,
    PATIENCE,
    assert_expected,
    bias_tables,
    write_scores_graph,
)


@pytest.fixture(scope="module")
def sessions() -> Sessions:
    return Sessions("cpu")


def random_job(graph: Graph, dice: random.Random) -> Job:
    """Of few lengths, so that many can share a run; of several sets of outputs; with masks of every shape, and none."""
    generator = np.random.default_rng(dice.randrange(2**32))
    batch, heads, queries, keys = dice.choice([1, 1, 2]), 2, dice.choice([3, 4]), dice.choice([3, 4])
    q = generator.standard_normal((batch, queries, heads, 4), dtype=np.float32)
    k = (
        q
        if queries == keys and dice.random() < 0.5
        else generator.standard_normal((batch, keys, heads, 4), dtype=np.float32)
    )
    visible = None
    if dice.random() < 0.5:
        visible = generator.random((dice.choice([1, batch]), dice.choice([1, heads]), queries, keys)) < 0.7
    outputs = dice.choice([("scores", "weights"), ("weights",), OUTPUTS])
    tables = bias_tables(heads, queries, keys, seed=dice.randrange(2))
    return Job(graph, tables, outputs, q, k, visible, batch * heads * queries * keys * len(outputs))


@pytest.mark.parametrize("seed", range(3))
def test_a_random_mix_in_flight_together_gives_each_its_own(sessions: Sessions, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    graphs = [write_scores_graph(tmp_path, f"identity.{name}") for name in "ab"]
    jobs = [random_job(dice.choice(graphs), dice) for _ in range(300)]

    async def main() -> None:
        engine = Engine(sessions, workers=2)
        await engine.start()
        together = await asyncio.gather(*(engine.run([one]) for one in jobs))
        assert max(result.batch_jobs for (result,) in together) > 1
        assert_expected(jobs, [result.outputs for (result,) in together])
        for one, (result,) in zip(jobs, together, strict=True):
            alone = sessions.run(one.graph, one.outputs, one.visible is not None, assemble([one]))
            for name in one.outputs:
                assert result.outputs[name].shape == alone[name].shape
                np.testing.assert_allclose(result.outputs[name], alone[name], rtol=0, atol=1e-6)
        assert await engine.stop(PATIENCE)

    asyncio.run(main())


@pytest.mark.skipif(not exported(), reason="nothing is exported")
def test_every_exported_encoding_is_the_same_among_others_as_alone(sessions: Sessions) -> None:
    dice = random.Random(0)
    jobs = []
    for i in range(200):
        one = exported_job(sessions, dice.choice(exported()), ("scores", "weights"), dice.choice([2, 5]), i)
        tokens = one.queries.shape[1]
        if dice.random() < 0.3:
            one = replace(one, visible=np.tri(tokens, dtype=bool)[None, None])
        jobs.append(one)

    async def main() -> None:
        engine = Engine(sessions, workers=2)
        await engine.start()
        together = await asyncio.gather(*(engine.run([one]) for one in jobs))
        assert max(result.batch_jobs for (result,) in together) > 1
        for one, (result,) in zip(jobs, together, strict=True):
            alone = sessions.run(one.graph, one.outputs, one.visible is not None, assemble([one]))
            for name in one.outputs:
                np.testing.assert_allclose(result.outputs[name], alone[name], rtol=0, atol=1e-6)
        assert await engine.stop(PATIENCE)

    asyncio.run(main())


@pytest.mark.parametrize("encoding", exported())
def test_the_event_loop_and_a_thread_compute_the_same_to_the_last_bit(sessions: Sessions, encoding: str) -> None:
    one = exported_job(sessions, encoding, ("scores", "weights", "output"), 9, 0)
    used: set[int] = set()

    class Watched(Sessions):
        def run(self, *arguments: Any, **more: Any) -> dict[str, np.ndarray]:
            used.add(threading.get_ident())
            return super().run(*arguments, **more)

    async def main(inline_seconds: float) -> Mapping[str, np.ndarray]:
        watched = Watched("cpu")
        watched.session(one.graph, one.outputs, False, (), True)
        engine = Engine(watched, workers=1, policy=CpuPolicy(inline_seconds=inline_seconds))
        await engine.start()
        (result,) = await engine.run([one])
        assert await engine.stop(PATIENCE)
        return result.outputs

    here = asyncio.run(main(1.0))
    assert used == {threading.get_ident()}
    there = asyncio.run(main(0.0))
    assert len(used) == 2
    for name, array in here.items():
        np.testing.assert_array_equal(array, there[name])


def test_a_job_that_onnxruntime_rejects_fails_alone(sessions: Sessions, tmp_path: Path) -> None:
    graph = write_scores_graph(tmp_path)
    x = np.ones((1, 3, 2, 4), np.float32)
    good = Job(graph, bias_tables(2, 3, 3), ("scores",), x, x, None, 18)
    bad = replace(good, queries=x.astype(np.float64))

    async def main() -> None:
        engine = Engine(sessions, workers=1)
        await engine.start()
        results = await asyncio.gather(*(engine.run([one]) for one in [good, bad, good, good]), return_exceptions=True)
        assert isinstance(results[1], ModelFailed)
        assert "double" in results[1].detail
        for i in (0, 2, 3):
            (result,) = results[i]  # type: ignore[misc]
            assert_expected([good], [result.outputs])
        assert await engine.stop(PATIENCE)

    asyncio.run(main())


def test_a_warm_up_of_a_graph_that_is_not_there_aborts_the_start(sessions: Sessions, tmp_path: Path) -> None:
    graph = Graph("identity.gone", tmp_path / "gone.onnx", "1")
    x = np.ones((1, 3, 2, 4), np.float32)

    async def main() -> None:
        engine = Engine(sessions, workers=1)
        await engine.start()
        with pytest.raises(NotReady, match=r"warm-up of identity\.gone failed.*no longer there"):
            await engine.warm_up([Job(graph, bias_tables(2, 3, 3), ("scores",), x, x, None, 18)])
        assert not engine.ready
        assert await engine.stop(PATIENCE)

    asyncio.run(main())
