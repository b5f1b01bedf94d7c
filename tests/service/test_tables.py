from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.encoding import Encoding, Parameter
from service.engine.job import Tables
from service.errors import ModelFailed
from service.parameters import Given, Parameters, ResolvedParameters, Sizes
from service.positions import Positions
from service.tables import INLINE, Needs, TableCache
from tests.service import tiny


class Counting:
    """Sessions that compute one table of `size` numbers, and count."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.runs = 0
        self.threads: set[int] = set()
        self.feeds: Mapping[str, np.ndarray] = {}
        self.go = threading.Event()
        self.go.set()
        self.broken = False

    def positions(self, path: Path) -> Counting:
        return self

    def run(self, output_names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        self.runs += 1
        self.threads.add(threading.get_ident())
        self.feeds = feeds
        assert self.go.wait(10)
        if self.broken:
            raise RuntimeError("out of order")
        return [np.full(self.size, self.runs, np.float32) for _ in output_names]


SMALL = tiny.encoding("small", Parameter("theta", "number", default=1.0))
LARGE = tiny.encoding("large", tables={"bias": ("heads", "queries", "keys")}, reads=("query_positions", "heads_like"))


def parameters(encoding: Encoding, **scalars: str) -> ResolvedParameters:
    return Parameters().resolve(encoding, Given(scalars=scalars), Sizes(2, 4, 8))


def needs(
    encoding: Encoding,
    queries: int = 8,
    keys: int = 8,
    causal: bool = False,
    heads: int = 2,
    head_dim: int = 4,
    **scalars: str,
) -> Needs:
    first = Positions.first
    return Needs(encoding, parameters(encoding, **scalars), first(queries), first(keys), causal, heads, head_dim)


def large() -> Needs:
    return needs(LARGE, INLINE, 2)


def test_tables_are_computed_once_and_cannot_be_written_to() -> None:
    sessions = Counting()
    cache = TableCache(sessions)
    first = asyncio.run(cache.tables(needs(SMALL)))
    assert asyncio.run(cache.tables(needs(SMALL))) is first
    assert sessions.runs == 1
    with pytest.raises(ValueError, match="read-only"):
        first.arrays["table.scale"][0] = 0


def test_only_what_the_graph_has_as_inputs_is_fed() -> None:
    sessions = Counting()
    asyncio.run(TableCache(sessions).tables(needs(SMALL)))
    assert set(sessions.feeds) == {"query_positions", "key_positions", "parameter.theta"}
    asyncio.run(TableCache(sessions).tables(needs(LARGE)))
    assert sessions.feeds["heads_like"].shape == (2, 4)


def test_everything_that_the_graph_reads_is_in_the_key() -> None:
    reads = ("query_positions", "key_positions", "causal", "heads_like")
    encoding = tiny.encoding("all", Parameter("theta", "number", default=1.0), reads=reads)
    another = replace(encoding, positions_graph=replace(encoding.positions_graph, digest="other"))
    all_needs = [
        needs(encoding),
        needs(encoding, queries=7),
        needs(encoding, keys=7),
        needs(encoding, causal=True),
        needs(encoding, heads=3),
        needs(encoding, head_dim=6),
        needs(encoding, theta="2"),
        needs(another),
    ]
    assert len({one.key for one in all_needs}) == len(all_needs)
    moved = replace(needs(encoding), queries=Positions.of(np.arange(8) + 0.5))
    assert moved.key != needs(encoding).key


def test_what_the_graph_does_not_read_is_not() -> None:
    """So requests that differ only there share their tables and their batches."""
    assert needs(SMALL).key == needs(SMALL, causal=True, heads=3, head_dim=6).key
    assert needs(LARGE, keys=3).key == needs(LARGE, keys=5).key


def test_positions_that_are_sent_as_they_are_by_default_share_the_tables() -> None:
    sent = replace(needs(SMALL), queries=Positions.of(np.arange(8.0)), keys=Positions.of(np.arange(8.0)))
    assert sent.key == needs(SMALL).key


def test_large_tables_are_computed_off_the_event_loop_and_small_ones_on_it() -> None:
    sessions = Counting()
    asyncio.run(TableCache(sessions).tables(needs(SMALL)))
    assert sessions.threads == {threading.get_ident()}
    asyncio.run(TableCache(sessions).tables(large()))
    assert len(sessions.threads) == 2


def test_requests_at_the_same_time_compute_once() -> None:
    sessions = Counting()
    cache = TableCache(sessions)

    async def main() -> list[Tables]:
        return await asyncio.gather(*(cache.tables(large()) for _ in range(8)))

    results = asyncio.run(main())
    assert sessions.runs == 1
    assert all(result is results[0] for result in results)


def test_whoever_asked_first_may_leave() -> None:
    sessions = Counting()
    cache = TableCache(sessions)

    async def main() -> Tables:
        sessions.go.clear()
        first = asyncio.create_task(cache.tables(large()))
        second = asyncio.create_task(cache.tables(large()))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        sessions.go.set()
        tables = await second
        assert first.cancelled()
        return tables

    assert asyncio.run(main()).arrays["table.scale"][0] == 1
    assert sessions.runs == 1


@pytest.mark.parametrize("need", [needs(SMALL), large()], ids=["small", "large"])
def test_a_failure_is_named_and_not_kept(need: Needs) -> None:
    sessions = Counting()
    cache = TableCache(sessions)

    async def main() -> None:
        sessions.broken = True
        results = await asyncio.gather(*(cache.tables(need) for _ in range(3)), return_exceptions=True)
        for result in results:
            assert isinstance(result, ModelFailed)
            assert result.detail == f"the position tables of {need.encoding.name} could not be computed: out of order"
        sessions.broken = False
        assert (await cache.tables(need)).key == need.key

    asyncio.run(main())


def test_a_failure_that_nobody_waits_for_is_not_reported_by_the_loop() -> None:
    sessions = Counting()
    cache = TableCache(sessions)
    problems: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        sessions.broken = True
        sessions.go.clear()
        task = asyncio.create_task(cache.tables(large()))
        await asyncio.sleep(0)
        task.cancel()
        sessions.go.set()
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert problems == []


def test_memory_is_bounded_and_what_is_larger_is_used_but_not_kept() -> None:
    sessions = Counting(size=1000)  # 4,000 bytes and the entry itself
    cache = TableCache(sessions, capacity=11_000)
    for queries in (1, 2, 3):
        asyncio.run(cache.tables(needs(SMALL, queries=queries)))
        assert cache.cache.bytes <= 11_000
    assert cache.get(needs(SMALL, queries=1)) is None
    assert cache.get(needs(SMALL, queries=3)) is not None
    sessions.size = 10_000
    assert asyncio.run(cache.tables(needs(SMALL, queries=4))).arrays["table.scale"].size == 10_000
    assert cache.get(needs(SMALL, queries=4)) is None
    assert cache.get(needs(SMALL, queries=3)) is not None
