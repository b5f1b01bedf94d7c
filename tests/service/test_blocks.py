from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.blocks import Assembly, Block, Lease, Room, blocks, cut
from service.engine.job import Tables
from service.errors import DeadlineExceeded
from service.plan import Picked
from tests.service import tiny


@given(st.integers(1, 9), st.integers(1, 30), st.integers(1, 50), st.integers(1, 2000))
def test_blocks_cover_everything_once_and_are_not_too_large(batch: int, queries: int, cells: int, most: int) -> None:
    covered = np.zeros((batch, queries), int)
    for block in blocks(batch, queries, cells, most):
        covered[block.batch, block.queries] += 1
        part = covered[block.batch, block.queries]
        assert part.size * cells <= max(most, cells)
    assert (covered == 1).all()


def test_blocks_of_the_same_queries_follow_each_other() -> None:
    found = [(block.queries.start, block.batch.start) for block in blocks(3, 10, 4, 20)]
    assert found == sorted(found)


def test_as_many_of_a_batch_as_fit_are_one_block() -> None:
    assert list(blocks(5, 4, 10, 100)) == [
        Block(slice(0, 2), slice(0, 4)),
        Block(slice(2, 4), slice(0, 4)),
        Block(slice(4, 5), slice(0, 4)),
    ]


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 60), st.booleans())
def test_an_answer_is_put_together_from_its_blocks(batch: int, queries: int, most: int, ranked: bool) -> None:
    random = np.random.default_rng(0)
    pairs = random.standard_normal((batch, 2, queries, 5), dtype=np.float32)
    rows = random.standard_normal((batch, queries, 2, 3), dtype=np.float32)
    keys = random.integers(0, 5, (batch, 2, queries, 5)).astype(np.int32)
    assembly = Assembly(batch, queries, np.empty)
    for block in blocks(batch, queries, 10, most):
        outputs = {"weights": pairs[block.batch, :, block.queries], "output": rows[block.batch, block.queries]}
        assembly.place(block, Picked(outputs, keys[block.batch, :, block.queries] if ranked else None, 1))
    whole = assembly.done()
    np.testing.assert_array_equal(whole.outputs["weights"], pairs)
    np.testing.assert_array_equal(whole.outputs["output"], rows)
    assert (whole.keys is None) is not ranked
    if whole.keys is not None:
        np.testing.assert_array_equal(whole.keys, keys)
        assert whole.keys.dtype == np.int32
    assert whole.nonfinite == len(list(blocks(batch, queries, 10, most)))


def test_blocks_may_be_placed_by_several_threads_at_once() -> None:
    """The first of them makes the arrays, and nobody makes others."""
    both_are_there = threading.Barrier(2)

    def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        time.sleep(0.02)  # in which the other thread comes, too
        return np.empty(shape, dtype)

    def place(half: int) -> None:
        both_are_there.wait(10)
        rows = slice(2 * half, 2 * half + 2)
        assembly.place(Block(slice(0, 1), rows), Picked({"weights": np.full((1, 1, 2, 3), half, np.float32)}, None, 1))

    for _ in range(5):
        assembly = Assembly(1, 4, empty)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(place, range(2)))
        whole = assembly.done()
        np.testing.assert_array_equal(whole.outputs["weights"][0, 0, :, 0], [0, 0, 1, 1])
        assert whole.nonfinite == 2


def test_tables_are_cut_where_they_have_queries() -> None:
    axes = {"scale": (), "bias": ("heads", "queries", "keys"), "back": ("keys", "queries"), "cos": ("keys", "head_dim")}
    encoding = tiny.encoding(tables=axes)
    arrays = {f"table.{name}": np.random.default_rng(0).random([7] * len(of)) for name, of in axes.items()}
    part = cut(Tables("k", arrays), encoding, slice(2, 5))
    np.testing.assert_array_equal(part.arrays["table.bias"], arrays["table.bias"][:, 2:5])
    np.testing.assert_array_equal(part.arrays["table.back"], arrays["table.back"][:, 2:5])
    assert part.arrays["table.cos"] is arrays["table.cos"]
    assert part.arrays["table.scale"] is arrays["table.scale"]
    assert part.key != cut(Tables("k", arrays), encoding, slice(2, 6)).key != "k"


# Room


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def free(lease: Lease) -> None:
    lease.close()


def test_room_is_given_in_the_order_it_was_asked_for() -> None:
    async def main() -> None:
        room, order = Room(10), []

        async def client(name: str, numbers: int) -> Lease:
            lease = await room.take(numbers)
            order.append(name)
            return lease

        first = await client("first", 8)
        large, small = asyncio.create_task(client("large", 6)), asyncio.create_task(client("small", 1))
        await turns()
        assert order == ["first"], "the small one would fit, but the large one came first"
        free(first)
        await turns()
        assert order == ["first", "large", "small"]
        for task in (large, small):
            free(await task)
        await turns()
        assert room.free == 10

    asyncio.run(main())


def test_room_comes_back_when_the_last_view_of_the_arrays_is_gone() -> None:
    async def main() -> None:
        room = Room(100)
        lease = await room.take(100)
        array, other = lease.empty((5, 10), np.dtype(np.float32)), lease.empty((50,), np.dtype(np.int32))
        view = array[1:3].data.cast("B")
        lease.close()
        del array, other
        await turns()
        assert room.free == 0
        await asyncio.to_thread(view.release)
        del view
        gc.collect()
        await turns()
        assert room.free == 100

    asyncio.run(main())


def test_a_lease_without_arrays_gives_its_room_back_at_once() -> None:
    async def main() -> None:
        room = Room(5)
        (await room.take(5)).close()
        await turns()
        assert room.free == 5

    asyncio.run(main())


def test_who_waits_too_long_or_leaves_holds_up_nobody() -> None:
    async def main() -> None:
        room = Room(10)
        first = await room.take(10)
        with pytest.raises(DeadlineExceeded, match="other large requests"):
            await room.take(9, time.monotonic() + 0.01)
        leaver, last = asyncio.create_task(room.take(9)), asyncio.create_task(room.take(2))
        await turns()
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        first.close()
        (await last).close()
        await turns()
        assert room.free == 10

    asyncio.run(main())


def test_one_that_leaves_in_the_moment_in_which_there_is_room_is_passed_over() -> None:
    async def main() -> None:
        room = Room(10)
        first = await room.take(10)
        leaver, last = asyncio.create_task(room.take(10)), asyncio.create_task(room.take(10))
        await turns()
        leaver.cancel()
        room.release(0)
        first.close()
        (await last).close()
        await turns()
        assert leaver.cancelled()
        assert room.free == 10

    asyncio.run(main())


def test_one_that_leaves_as_its_turn_comes_gives_it_on() -> None:
    async def main() -> None:
        room = Room(10)
        first = await room.take(10)
        leaver, last = asyncio.create_task(room.take(10)), asyncio.create_task(room.take(10))
        await turns()
        first.close()
        asyncio.get_running_loop().call_soon(leaver.cancel)
        results: Sequence[object] = await asyncio.gather(leaver, return_exceptions=True)
        if isinstance(results[0], Lease):
            results[0].close()
        (await last).close()
        await turns()
        assert room.free == 10

    asyncio.run(main())
