"""Position tables: positions graphs run once for each set of parameters, positions and sizes, their results kept."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from service.cache import Cache
from service.encoding import Encoding
from service.engine.job import Tables
from service.errors import InvalidInput, ModelFailed, ModelGone
from service.parameters import ResolvedParameters
from service.positions import Positions

# Tables of fewer numbers than this are computed where they are asked for: handing them to a thread costs more.
INLINE = 16_384
PAGES = 1 << 16
"""Bytes from which a table has pages of its own."""


class PositionsSession(Protocol):
    """An onnxruntime session, as far as it is used here."""

    def run(self, output_names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]: ...


class PositionsSessions(Protocol):
    """Opens positions graphs on the CPU; the same path may be asked for often, and from several threads."""

    def positions(self, path: Path) -> PositionsSession: ...


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """What a set of tables follows from."""

    encoding: Encoding
    parameters: ResolvedParameters
    queries: Positions
    keys: Positions
    causal: bool
    heads: int
    head_dim: int
    largest: float | None = None
    """The request's largest position where it is that of none of these: some encodings look at a request's length."""
    key: str = field(init=False)
    """Equal where everything that the graph reads is equal: requests that differ only in what it does not read share
    their tables, and so their batches."""

    def __post_init__(self) -> None:
        graph = self.encoding.positions_graph
        parts = (
            graph.digest,
            self.parameters.digest,
            self.queries.digest if "query_positions" in graph.reads else "",
            self.keys.digest if "key_positions" in graph.reads else "",
            str(self.causal) if "causal" in graph.reads else "",
            f"{self.heads}x{self.head_dim}" if "heads_like" in graph.reads else "",
            "" if self.largest is None or "query_positions" not in graph.reads else f"up to {self.largest!r}",
        )
        object.__setattr__(self, "key", "|".join(parts))

    @property
    def elements(self) -> int:
        """About how many numbers are drawn and computed; an axis of the encoding's own counts as a head dimension."""
        sizes = {"heads": self.heads, "head_dim": self.head_dim, "queries": len(self.queries), "keys": len(self.keys)}
        total = self.parameters.elements
        for axes in self.encoding.tables.values():
            total += prod(axis if isinstance(axis, int) else sizes.get(axis, self.head_dim) for axis in axes)
        return total


class TableCache:
    """Runs positions graphs and keeps the tables used last, up to `capacity` bytes.

    Requests that need the same tables at the same time compute them once. A set larger than that is used, not kept.
    """

    def __init__(self, sessions: PositionsSessions, capacity: int = 64 << 20) -> None:
        self.cache: Cache[str, Tables] = Cache(capacity)
        self._sessions = sessions
        self._pending: dict[str, asyncio.Task[Tables]] = {}

    def get(self, needs: Needs) -> Tables | None:
        """These tables if they are kept."""
        return self.cache.get(needs.key)

    async def of_block(self, needs: Needs) -> Tables:
        """The tables of a part of a request, which nobody else will ask for. Raises as `tables` does."""
        return await asyncio.to_thread(self._compute, needs, keep=False)

    async def tables(self, needs: Needs) -> Tables:
        """These tables, by the scores graph's input names (`table.scale`); read-only.

        Raises InvalidInput for a list parameter of a wrong length, which only the graph knows; ModelFailed.
        """
        found = self.get(needs)
        if found is not None:
            return found
        if needs.elements < INLINE:
            return self._compute(needs)
        task = self._pending.get(needs.key)
        if task is None:
            task = asyncio.create_task(asyncio.to_thread(self._compute, needs))
            self._pending[needs.key] = task
            task.add_done_callback(lambda done: self._finished(needs.key, done))
        # Shielded: whoever asked first may leave, and the others still want the result.
        return await asyncio.shield(task)

    def _finished(self, key: str, task: asyncio.Task[Tables]) -> None:
        del self._pending[key]
        if not task.cancelled():
            task.exception()  # marked as seen: all who asked may have left

    def _compute(self, needs: Needs, *, keep: bool = True) -> Tables:
        graph = needs.encoding.positions_graph
        queries = needs.queries.values
        feeds = {
            "query_positions": queries if needs.largest is None else np.append(queries, needs.largest),
            "key_positions": needs.keys.values,
            "causal": np.array(needs.causal),
            "heads_like": np.zeros((needs.heads, needs.head_dim), np.float32),
            **needs.parameters.feeds(),
        }
        try:
            session = self._sessions.positions(graph.path)
            names = [*graph.expected, *graph.tables]
            results = dict(zip(names, session.run(names, {name: feeds[name] for name in graph.inputs}), strict=True))
        except FileNotFoundError as error:
            raise ModelGone(f"the files of {needs.encoding.name} are no longer there") from error
        except Exception as error:  # onnxruntime's errors share no other base
            raise ModelFailed(f"the position tables of {needs.encoding.name} could not be computed: {error}") from error
        for name in graph.expected:
            self._check_length(needs, name.removeprefix("expected."), feeds, int(results[name]))
        arrays = {name: results[name] for name in graph.tables}
        if needs.largest is not None:
            arrays = {name: _without_last_query(array, needs.encoding, name) for name, array in arrays.items()}
        if keep:
            arrays = {name: _apart(array) for name, array in arrays.items()}
        for array in arrays.values():
            array.flags.writeable = False
        tables = Tables(needs.key, MappingProxyType(arrays))
        if keep:
            self.cache.put(needs.key, tables, sum(array.nbytes for array in arrays.values()) + 1024)
        return tables

    @staticmethod
    def _check_length(needs: Needs, name: str, feeds: Mapping[str, np.ndarray], expected: int) -> None:
        entries = len(feeds[f"parameter.{name}"])
        if entries not in (1, expected):
            raise InvalidInput(
                f"{needs.encoding.id}.{name} has {entries} entries; allowed: {expected}, one for each under head_dim "
                f"{needs.head_dim}, or 1 for all",
                pointer=needs.parameters.pointers.get(name),
                allowed=sorted({1, expected}),
            )


def _apart(array: np.ndarray) -> np.ndarray:
    """The same in memory of its own: what stays for long amid the memory that runs allocate from would keep that in
    pieces. Large ones have pages that go back to the system with them.
    """
    if array.nbytes < PAGES:
        return array.copy()
    own = np.frombuffer(mmap.mmap(-1, array.nbytes), array.dtype).reshape(array.shape)
    own[...] = array
    return own


def _without_last_query(array: np.ndarray, encoding: Encoding, name: str) -> np.ndarray:
    axes = encoding.tables[name.removeprefix("table.")]
    if "queries" not in axes:
        return array
    cut = tuple(slice(-1) if axis == "queries" else slice(None) for axis in axes)
    return np.ascontiguousarray(array[cut])
