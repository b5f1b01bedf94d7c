"""Requests too large for one run: computed in blocks of rows, side by side with everybody else's."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool

from service.blocks import Assembly, Block, Room, blocks, cut
from service.engine.job import Job, JobResult, Tables
from service.engine.pruning import whole
from service.masks import Visible, causal_mask, combine, read_mask
from service.plan import Part, Picked, Plan, Runs
from service.positions import Positions
from service.records import Timings
from service.selection import index
from service.tables import Needs, TableCache

Mask = Bool[np.ndarray, "#batch #heads #queries keys"]

BLOCK = 1 << 23
"""A job of more cells than this is cut into blocks of so many: 32 MB of float32. Smaller ones take longer, for each of
them turns all the keys anew; what runs need besides grows with it, and is kept."""
WHOLE_TABLES = 1 << 22
"""Tables of more numbers than this are computed for each block."""
AHEAD = 2
"""Blocks of one request that are under way at a time: while one is computed, the next is prepared."""


@dataclass(slots=True)
class Spent:
    """Where the time of the blocks went."""

    compute: float = 0.0
    batch_assembly: float = 0.0

    def add(self, answer: JobResult) -> None:
        self.compute += answer.compute
        self.batch_assembly += answer.batch_assembly

    def add_to(self, timings: Timings, checking: float, waited: float) -> None:
        """`waited` is the time from the first block to the last."""
        compute = min(waited, self.compute)
        assembly = min(waited - compute, self.batch_assembly)
        timings.decode += checking
        timings.compute += compute
        timings.batch_assembly += assembly
        timings.queue += waited - compute - assembly
        timings.batch_jobs = 1


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One part of a request, and all that its blocks are cut from."""

    part: Part
    plan: Plan
    mask: Mask | None
    queries: np.ndarray
    keys: np.ndarray
    deadline: float | None


class Large:
    """Runs large requests. Their answers have at most `room` numbers at a time."""

    def __init__(self, engine: Runs, tables: TableCache, room: int, block: int = BLOCK) -> None:
        self._engine = engine
        self._tables = tables
        self._most = room
        self._block_cells = block
        self.room = Room(room)

    def takes(self, plan: Plan) -> bool:
        """Whether this is a large request."""
        return plan.largest_job > self._block_cells

    async def compute(
        self, plan: Plan, mask: np.ndarray | None, queries: np.ndarray, keys: np.ndarray, deadline: float | None
    ) -> tuple[list[Picked], Spent]:
        """What the answer keeps of each part. Raises what the engine raises; InvalidInput for a mask that is none."""
        read = None if mask is None else await asyncio.to_thread(_read_mask, mask, plan)
        spent = Spent()
        lease = await self.room.take(min(self._most, sum(_numbers(part, plan) for part in plan.parts)), deadline)
        picked: list[Picked] = []
        assembly = None
        try:
            for part in plan.parts:
                assembly = Assembly(len(queries), queries.shape[1], lease.empty)
                await self._part(Work(part, plan, read, queries, keys, deadline), assembly, spent)
                picked.append(assembly.done())
        except BaseException:
            # Else whoever keeps the exception keeps all this, by its traceback.
            picked.clear()
            if assembly is not None:
                assembly.done()
            raise
        finally:
            lease.close()
        return picked, spent

    async def _part(self, work: Work, assembly: Assembly, spent: Spent) -> None:
        running: deque[asyncio.Task[JobResult]] = deque()
        try:
            async with aclosing(self._blocks(work)) as cut_up:
                async for block, tables in cut_up:
                    if len(running) == AHEAD:
                        spent.add(await running.popleft())
                    running.append(asyncio.create_task(self._block(work, block, tables, assembly)))
            while running:
                spent.add(await running.popleft())
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _blocks(self, work: Work) -> AsyncGenerator[tuple[Block, Tables]]:
        needs, layout = work.part.needs, work.plan.layout
        everything = await self._tables.tables(needs) if needs.elements <= WHOLE_TABLES else None
        cells = layout.heads * len(layout.key_positions) * len(work.part.outputs)
        queries, tables = slice(0, 0), None
        for block in blocks(len(work.queries), work.queries.shape[1], cells, self._block_cells):
            if tables is None or block.queries != queries:
                queries = block.queries
                if everything is not None:
                    tables = cut(everything, needs.encoding, queries)
                else:
                    tables = await self._tables.of_block(_of_block(needs, queries))
            yield block, tables

    async def _block(self, work: Work, block: Block, tables: Tables, assembly: Assembly) -> JobResult:
        visible = await asyncio.to_thread(_visible, work, block)
        part, queries, keys = work.part, work.queries[block.batch, block.queries], work.keys[block.batch]
        cells = len(queries) * queries.shape[1] * work.plan.layout.heads * keys.shape[1] * len(part.outputs)
        job = Job(part.encoding.graph, tables, part.outputs, queries, keys, visible, cells, part.parameters.switches)
        (answer,) = await self._engine.run([job], work.deadline)
        await asyncio.to_thread(_place, assembly, block, work.plan, answer, visible)
        return answer


def _of_block(needs: Needs, queries: slice) -> Needs:
    largest = max(needs.queries.largest, needs.keys.largest, needs.largest or -math.inf)
    part = Positions.of(needs.queries.values[queries])
    return replace(needs, queries=part, largest=largest if largest > max(part.largest, needs.keys.largest) else None)


def _read_mask(mask: np.ndarray, plan: Plan) -> Mask:
    layout = plan.layout
    read = read_mask(mask, layout.batch, layout.heads, layout.choice.queries, len(layout.key_positions))
    rows = layout.choice.rows
    return read if rows is None or read.shape[2] == 1 else read[:, :, index(rows)]


def _visible(work: Work, block: Block) -> Visible | None:
    layout, mask = work.plan.layout, work.mask
    causal = None
    if work.plan.causal:
        causal = causal_mask(layout.query_positions.values[block.queries], layout.key_positions.values)
    if mask is not None:
        mask = mask[block.batch if len(mask) > 1 else slice(None)]
        mask = mask[:, :, block.queries] if mask.shape[2] > 1 else mask
    return combine(mask, causal, block.queries.stop - block.queries.start, len(layout.key_positions))


def _place(assembly: Assembly, block: Block, plan: Plan, answer: JobResult, visible: Visible | None) -> None:
    assembly.place(block, Picked.of(plan.layout.choice, answer, visible))
    answer.outputs = {}  # the run's own arrays are needed no more


def _numbers(part: Part, plan: Plan) -> int:
    """Of what the answer keeps of one part."""
    layout, choice = plan.layout, plan.layout.choice
    rows = (layout.batch or 1) * len(layout.query_positions)
    heads = layout.heads if choice.head is None else len(choice.head)
    keys = len(layout.key_positions) if choice.top_k is None else choice.top_k
    outputs = sum(whole(output) == "output" for output in part.outputs)
    matrices = len(part.outputs) - outputs + (choice.top_k is not None)
    return rows * heads * (keys * matrices + layout.head_dim * outputs)
