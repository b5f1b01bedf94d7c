"""Large requests in blocks of rows: whatever their length, they need memory for their answer and for a few blocks."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.deadline import exceeded
from service.encoding import Encoding
from service.engine.job import Tables
from service.plan import Picked

DType = np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of the batch, and some queries of each."""

    batch: slice
    queries: slice


def blocks(batch: int, queries: int, cells: int, most: int) -> Iterator[Block]:
    """Blocks of at most `most` cells, but of one query at least; a query has `cells` of them. All of a batch that have
    the same queries follow each other: they have their tables in common.
    """
    rows = min(queries, max(1, most // cells))
    items = max(1, most // (cells * queries)) if rows == queries else 1
    for query in range(0, queries, rows):
        for item in range(0, batch, items):
            yield Block(slice(item, min(batch, item + items)), slice(query, min(queries, query + rows)))


def cut(tables: Tables, encoding: Encoding, queries: slice) -> Tables:
    """The tables of some of the queries."""
    axes = {f"table.{name}": axes for name, axes in encoding.tables.items()}
    arrays = {name: _rows(array, axes[name], queries) for name, array in tables.arrays.items()}
    return Tables(f"{tables.key}[{queries.start}:{queries.stop}]", arrays)


def _rows(array: np.ndarray, axes: Sequence[int | str], queries: slice) -> np.ndarray:
    return array[tuple(queries if axis == "queries" else slice(None) for axis in axes)] if "queries" in axes else array


class Assembly:
    """One encoding's answer, put together from its blocks, by several threads. `empty` makes its arrays."""

    def __init__(self, batch: int, queries: int, empty: Callable[[tuple[int, ...], DType], np.ndarray]) -> None:
        self._batch = batch
        self._queries = queries
        self._empty = empty
        self._whole = Picked({})
        self._lock = threading.Lock()

    def place(self, block: Block, part: Picked) -> None:
        """Copies what belongs to a block to its place."""
        with self._lock:
            whole = self._whole
            if not whole.outputs:
                whole.outputs = {name: self._like(array, _axis(name)) for name, array in part.outputs.items()}
                whole.keys = None if part.keys is None else self._like(part.keys, 2)
            whole.nonfinite += part.nonfinite
        for name, array in part.outputs.items():
            _put(whole.outputs[name], block, _axis(name), array)
        if whole.keys is not None and part.keys is not None:
            _put(whole.keys, block, 2, part.keys)

    def done(self) -> Picked:
        """The whole, which is then the caller's."""
        with self._lock:
            whole, self._whole = self._whole, Picked({})
        return whole

    def _like(self, array: np.ndarray, axis: int) -> np.ndarray:
        shape = [self._batch, *array.shape[1:]]
        shape[axis] = self._queries
        return self._empty(tuple(shape), array.dtype)


def _axis(name: str) -> int:
    """That of the queries."""
    return 1 if name == "output" else 2


def _put(whole: np.ndarray, block: Block, axis: int, part: np.ndarray) -> None:
    whole[(block.batch, *(slice(None),) * (axis - 1), block.queries)] = part


class Room:
    """Memory for large answers, from their computation to the last byte handed over, or the turns of large requests:
    first come, first served.

    Belongs to one event loop.
    """

    def __init__(self, numbers: int) -> None:
        self.free = numbers
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, numbers: int, deadline: float | None = None) -> Lease:
        """Returns once there is room. `deadline` is a time of `time.monotonic`. Raises DeadlineExceeded."""
        loop = asyncio.get_running_loop()
        if not self._waiting and numbers <= self.free:
            self.free -= numbers
            return Lease(self, numbers, loop)
        mine = numbers, loop.create_future()
        self._waiting.append(mine)
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
                await mine[1]
        except BaseException as error:
            if mine in self._waiting:
                self._waiting.remove(mine)
                self._serve()
            elif not mine[1].cancelled():
                self.release(numbers)  # the turn came in the same moment
            if isinstance(error, TimeoutError) and deadline is not None:
                raise exceeded(deadline, "other large requests kept this one waiting") from None
            raise
        return Lease(self, numbers, loop)

    def release(self, numbers: int) -> None:
        self.free += numbers
        self._serve()

    def _serve(self) -> None:
        while self._waiting and (self._waiting[0][0] <= self.free or self._waiting[0][1].cancelled()):
            numbers, turn = self._waiting.popleft()
            if not turn.cancelled():
                self.free -= numbers
                turn.set_result(None)


class Lease:
    """Room for one answer. It is given back once the lease is closed and the arrays made under it are gone, whoever
    lets go of them, in whichever thread.
    """

    def __init__(self, room: Room, numbers: int, loop: asyncio.AbstractEventLoop) -> None:
        self._room = room
        self._numbers = numbers
        self._loop = loop
        self._lock = threading.Lock()
        self._holders = 1

    def empty(self, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        array = np.empty(shape, dtype)
        with self._lock:
            self._holders += 1
        weakref.finalize(array, self.close).atexit = False
        return array

    def close(self) -> None:
        """No more arrays will be made."""
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            with suppress(RuntimeError):  # the loop has ended, and nobody waits
                self._loop.call_soon_threadsafe(self._room.release, self._numbers)
