"""Requests too large for one run: computed in blocks of rows, side by side with everybody else's."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool

from service.analysis.inquiry import Inquiry
from service.blocks import Assembly, Block, Lease, Room, blocks, cut
from service.deadline import exceeded
from service.engine.batches import Throughput
from service.engine.job import Job, JobResult, Tables
from service.engine.pruning import whole
from service.errors import DeadlineExceeded, Overloaded
from service.masks import Visible, combine, read_mask
from service.plan import Part, Picked, Plan, Runs
from service.positions import Positions
from service.records import Timings
from service.selection import index
from service.tables import Needs, TableCache

Mask = Bool[np.ndarray, "#batch #heads #queries keys"]

BLOCK = 1 << 23
"""A job of more cells than this is cut: 32 MB of float32."""
PIECE = 1 << 22
"""Cells of the blocks that it is cut into. Runs need up to eight times as much besides. Blocks of twice the size took
as long, of half the size up to a tenth more: each turns all the keys anew."""
ANALYSED = 1 << 21
"""The same where the numbers of its rows are wanted as well: they are several passes over what a block computes."""
WHOLE_TABLES = 1 << 22
"""Tables of more numbers than this are computed for each block."""
AHEAD = 2
"""Blocks of one request that are under way at a time: while one is computed, the next is prepared."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Cells and numbers that large requests may have at a time."""

    room: int
    """Numbers of all their answers, until these have been handed over."""
    waiting: int
    """Cells of those whose turn has not come; one may wait whatever its size."""
    block: int = BLOCK
    at_once: int = 2


@dataclass(slots=True)
class Spent:
    """How many blocks are done, and where their time went."""

    compute: float = 0.0
    batch_assembly: float = 0.0
    blocks: int = 0

    def add(self, answers: Sequence[JobResult]) -> None:
        self.compute += sum(answer.compute for answer in answers)
        self.batch_assembly += sum(answer.batch_assembly for answer in answers)
        self.blocks += 1

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
    """Parts of a request whose blocks are computed together, and all that these are cut from."""

    parts: Sequence[Part]
    plan: Plan
    mask: Mask | None
    queries: np.ndarray
    keys: np.ndarray
    deadline: float | None
    first: bool
    """Whether nothing of the request has been computed before."""
    inquiry: Inquiry | None
    assemblies: Sequence[Assembly]
    spent: Spent


class Large:
    """Runs large requests, `bounds.at_once` at a time in the order in which they came: were all of them under way
    together, all would be late together. Belongs to one event loop.
    """

    def __init__(self, engine: Runs, tables: TableCache, bounds: Bounds) -> None:
        self._engine = engine
        self._tables = tables
        self._bounds = bounds
        self._waiting: dict[object, tuple[Plan, int, float]] = {}
        """Those whose turn has not come: their cells, and since when."""
        self._throughput = Throughput()
        self._turns = Room(bounds.at_once)
        self.room = Room(bounds.room)

    def takes(self, plan: Plan) -> bool:
        """Whether this is a large request."""
        return plan.largest_job > self._bounds.block

    def waiting(self) -> dict[str, tuple[int, float]]:
        """Of each graph of requests whose turn has not come: how many, and for how many seconds the oldest of them."""
        found: dict[str, tuple[int, float]] = {}
        now = time.monotonic()
        for plan, _, since in self._waiting.values():
            for part in plan.parts:
                name = part.encoding.graph.name
                jobs, longest = found.get(name, (0, 0.0))
                found[name] = jobs + 1, max(longest, now - since)
        return found

    def refusal(self, cells: int) -> Overloaded | None:
        """What a request of so many cells is told now, where those that wait have enough to do without it; None where
        it may wait with them.
        """
        queued = sum(cells for _, cells, _ in self._waiting.values())
        if not queued or queued + cells <= self._bounds.waiting:
            return None
        wait = min(60.0, max(1.0, self._throughput.time_for(queued)))
        return Overloaded(
            f"{len(self._waiting)} large requests of {queued} cells wait already, and this one of {cells} does not "
            f"fit: the limit is {self._bounds.waiting} cells; try again in about {wait:.1f} s",
            retry_after=wait,
            queued_jobs=len(self._waiting),
            queued_cells=queued,
            limit_cells=self._bounds.waiting,
        )

    async def compute(
        self,
        plan: Plan,
        mask: np.ndarray | None,
        queries: np.ndarray,
        keys: np.ndarray,
        deadline: float | None,
        inquire: Callable[[Mask | None], Inquiry] | None = None,
    ) -> tuple[list[Picked], Spent, Inquiry | None]:
        """What the answer keeps of each part, and what was found out about them: `inquire` says what is asked, under
        this mask. Raises what the engine raises; InvalidInput for a mask that is none.
        """
        read = None if mask is None else await asyncio.to_thread(_read_mask, mask, plan)
        inquiry = None if inquire is None else await asyncio.to_thread(inquire, read)
        cells = plan.layout.cells * sum(part.matrices for part in plan.parts)
        turn = await self._turn(plan, cells, deadline)
        try:
            numbers = sum(_numbers(part, plan) for part in plan.parts)
            lease = await self.room.take(min(self._bounds.room, numbers), deadline)
            began = time.monotonic()
            picked, spent = await self._parts(plan, read, queries, keys, deadline, lease, inquiry)
            self._throughput.record(cells, time.monotonic() - began)
            return picked, spent, inquiry
        finally:
            turn.close()

    async def _turn(self, plan: Plan, cells: int, deadline: float | None) -> Lease:
        """Raises Overloaded, DeadlineExceeded."""
        if (refusal := self.refusal(cells)) is not None:
            raise refusal
        mine = object()
        self._waiting[mine] = plan, cells, time.monotonic()
        try:
            return await self._turns.take(1, deadline)
        finally:
            del self._waiting[mine]

    async def _parts(
        self,
        plan: Plan,
        read: Mask | None,
        queries: np.ndarray,
        keys: np.ndarray,
        deadline: float | None,
        lease: Lease,
        inquiry: Inquiry | None,
    ) -> tuple[list[Picked], Spent]:
        spent = Spent()
        assemblies = [Assembly(len(queries), queries.shape[1], lease.empty) for _ in plan.parts]
        # What is compared must be at hand together; else one part after the other needs less memory.
        together = inquiry is not None and inquiry.compares
        groups = [slice(None)] if together else [slice(i, i + 1) for i in range(len(plan.parts))]
        try:
            works = []
            for group in groups:
                asked = None if inquiry is None else inquiry.of_parts(group)
                first, made = not group.start, assemblies[group]
                works.append(Work(plan.parts[group], plan, read, queries, keys, deadline, first, asked, made, spent))
            try:
                for work in works:
                    await self._group(work)
            except DeadlineExceeded:
                assert deadline is not None
                total = sum(len(self._cut(work)) for work in works)
                raise exceeded(deadline, f"{spent.blocks} of {total} blocks of rows were computed") from None
            picked = [assembly.done() for assembly in assemblies]
        except BaseException:
            # Else whoever keeps the exception keeps all this, by its traceback.
            for assembly in assemblies:
                assembly.done()
            raise
        finally:
            lease.close()
        return picked, spent

    async def _group(self, work: Work) -> None:
        running: deque[asyncio.Task[None]] = deque()
        try:
            async with aclosing(self._blocks(work)) as cut_up:
                async for block, tables in cut_up:
                    if len(running) == AHEAD:
                        await running.popleft()
                    running.append(asyncio.create_task(self._block(work, block, tables)))
            while running:
                await running.popleft()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _cut(self, work: Work) -> list[Block]:
        layout = work.plan.layout
        cells = layout.heads * len(layout.key_positions) * sum(part.matrices for part in work.parts)
        most = min(self._bounds.block, PIECE if work.inquiry is None else ANALYSED)
        return list(blocks(len(work.queries), work.queries.shape[1], cells, most))

    async def _blocks(self, work: Work) -> AsyncGenerator[tuple[Block, list[Tables]]]:
        """Each block, with the tables of each part."""
        all_needs = [part.needs for part in work.parts]
        everything = [
            await self._tables.tables(needs) if needs.elements <= WHOLE_TABLES else None for needs in all_needs
        ]
        queries, tables = slice(0, 0), list[Tables]()
        for block in self._cut(work):
            if block.queries != queries:
                queries = block.queries
                tables = [
                    await self._tables.of_block(_of_block(needs, queries))
                    if known is None
                    else cut(known, needs.encoding, queries)
                    for needs, known in zip(all_needs, everything, strict=True)
                ]
            yield block, tables

    async def _block(self, work: Work, block: Block, tables: Sequence[Tables]) -> None:
        visible = await asyncio.to_thread(_visible, work, block)
        queries, keys = work.queries[block.batch, block.queries], work.keys[block.batch]
        cells = len(queries) * queries.shape[1] * work.plan.layout.heads * keys.shape[1]
        inquiry, piece = work.inquiry, None
        if inquiry is not None:
            piece = await asyncio.to_thread(inquiry.piece, block, visible)
            tables = [piece.tables(one) for one in tables]
        jobs = [
            Job(part.graph, one, part.outputs, queries, keys, visible, cells * part.matrices, part.parameters.switches)
            for part, one in zip(work.parts, tables, strict=True)
        ]
        uniform = [] if piece is None or piece.uniform is None else [piece.uniform]
        patient = Patient(self._engine, first=work.first and not (block.queries.start or block.batch.start))
        answers = await patient.run([*jobs, *uniform], work.deadline)
        if inquiry is not None and piece is not None:
            answers += await inquiry.take(piece, answers, Patient(self._engine, first=False), work.deadline)
        for part, assembly, answer in zip(work.parts, work.assemblies, answers, strict=False):
            if part.kept:
                await asyncio.to_thread(_place, assembly, block, work.plan, part, answer, visible)
        for answer in answers:
            answer.outputs = {}  # the runs' own arrays are needed no more
        work.spent.add(answers)


@dataclass(frozen=True, slots=True)
class Patient:
    """The engine, for which one block of a request waits: only the first is refused where the queue is full, for later
    there is work to lose.
    """

    engine: Runs
    first: bool

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        while True:
            try:
                return await self.engine.run(jobs, deadline)
            except Overloaded as error:
                if self.first or (deadline is not None and time.monotonic() > deadline):
                    raise
                await asyncio.sleep(min(0.1, error.retry_after))


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
    seen = work.plan.sight.mask(layout.query_positions.values[block.queries], layout.key_positions.values)
    if mask is not None:
        mask = mask[block.batch if len(mask) > 1 else slice(None)]
        mask = mask[:, :, block.queries] if mask.shape[2] > 1 else mask
    return combine(mask, seen, block.queries.stop - block.queries.start, len(layout.key_positions))


def _place(
    assembly: Assembly, block: Block, plan: Plan, part: Part, answer: JobResult, visible: Visible | None
) -> None:
    assembly.place(block, Picked.of(plan.layout.choice, part.kept, answer, visible))


def _numbers(part: Part, plan: Plan) -> int:
    """Of what the answer keeps of one part."""
    layout, choice = plan.layout, plan.layout.choice
    rows = (layout.batch or 1) * len(layout.query_positions)
    heads = layout.heads if choice.head is None else len(choice.head)
    keys = len(layout.key_positions) if choice.top_k is None else choice.top_k
    outputs = sum(whole(output) == "output" for output in part.kept)
    matrices = len(part.kept) - outputs + (choice.top_k is not None)
    return rows * heads * (keys * matrices + layout.head_dim * outputs)
