"""One encoding's runs, through scoring like anybody's, in blocks of rows: nothing is ever whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float

from service.instance import Instance
from service.masks import combine, read_mask
from service.plan import Part, Plan
from service.records import AttentionInput, AttentionOptions, Timings
from service.scoring import Scoring
from service.selection import Selection

BLOCK = 1 << 20
"""Numbers of one run: 4 MB, and what is looked at has a few copies. Below what scoring itself would cut up, so that no
run of a probe waits for memory that another run of it holds."""
INLINE = 1 << 15
"""Numbers up to which a block is looked at on the event loop."""

T = TypeVar("T")
Matrix = Float[np.ndarray, "batch heads queries keys"]
Mask = Bool[np.ndarray, "#batch #heads #queries #keys"]
Cells = Bool[np.ndarray, "#batch #heads queries keys"]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The rows from `start` to before `stop` of one output."""

    start: int
    stop: int
    values: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """What a request asks of one of its encodings. `options` name it alone, with its own parameters; `mask` is that of
    the input, with all axes."""

    scoring: Scoring
    plan: Plan
    part: Part
    input: AttentionInput
    mask: Mask | None
    options: AttentionOptions
    timings: Timings
    deadline: float | None

    @classmethod
    def of(
        cls,
        scoring: Scoring,
        plan: Plan,
        part: Part,
        input: AttentionInput,
        mask: Mask | None,
        options: AttentionOptions,
        timings: Timings,
        deadline: float | None,
    ) -> Runs:
        own = replace(
            options,
            encoding=part.instance.name,
            compare=(),
            model=plan.model.name,
            causal=plan.causal,
            scalars=_own(options.scalars, plan, part),
            rows=None,
            head=None,
            top_k=None,
        )
        mine = replace(input, parameters=_own(input.parameters, plan, part))
        return cls(scoring, plan, part, mine, mask, own, timings, deadline)

    @property
    def sinks(self) -> bool:
        """Whether rows of weights sum to less than 1."""
        return "sinks" in self.part.parameters.switches

    def spans(self, queries: int, keys: int, batch: int) -> list[tuple[int, int]]:
        """Rows from where to where."""
        rows = max(1, BLOCK // (batch * self.plan.layout.heads * keys))
        return [(start, min(start + rows, queries)) for start in range(0, queries, rows)]

    async def output(self, input: AttentionInput, name: str) -> AsyncIterator[Block]:
        """Of all rows of this input, `weights` or `scores`, in order. Raises what scoring raises."""
        queries, keys, batch = _sizes(input)
        for start, stop in self.spans(queries, keys, batch or 1):
            yield await self.rows(input, name, start, stop, queries)

    async def rows(self, input: AttentionInput, name: str, start: int, stop: int, queries: int) -> Block:
        """Of some rows."""
        whole = stop - start == queries
        rows = None if whole else Selection("rows", ((start, stop, None),))
        options = replace(self.options, returns=(name,), rows=rows)
        answer = await self.scoring.score(input, options, self.timings, self.deadline)
        values = answer.results[0].weights if name == "weights" else answer.results[0].scores
        assert values is not None  # it was asked for
        return Block(start, stop, values if answer.batch is not None else values[None])

    async def look(self, numbers: int, at: Callable[[], T]) -> T:
        """What `at` returns, on a thread where there is much to look at."""
        began = time.perf_counter()
        try:
            return at() if numbers <= INLINE else await asyncio.to_thread(at)
        finally:
            self.timings.postprocess += time.perf_counter() - began


def whole_mask(input: AttentionInput, plan: Plan) -> Mask | None:
    """That of the input. Raises InvalidInput."""
    layout = plan.layout
    if input.mask is None:
        return None
    return read_mask(input.mask, layout.batch, layout.heads, layout.choice.queries, len(layout.key_positions))


def visible(plan: Plan, mask: Mask | None, start: int, stop: int) -> Cells | None:
    """What the rows of the request see; None where all of it."""
    keys = plan.layout.key_positions.values
    seen = plan.sight.mask(plan.layout.query_positions.values[start:stop], keys)
    if mask is not None and mask.shape[2] > 1:
        mask = mask[:, :, start:stop]
    return combine(mask, seen, stop - start, len(keys))


def _own(dotted: Mapping[str, T], plan: Plan, part: Part) -> dict[str, T]:
    """Those parameters that are this part's."""
    return {
        name: value
        for name, value in dotted.items()
        if Instance.of(plan.model, name.rpartition(".")[0]).name == part.instance.name
    }


def _sizes(input: AttentionInput) -> tuple[int, int, int | None]:
    """Queries, keys, batch."""
    queries = input.queries if input.embeddings is None else input.embeddings
    keys = input.keys if input.embeddings is None else input.embeddings
    assert queries is not None  # admitted
    assert keys is not None
    return queries.shape[-2], keys.shape[-2], len(queries) if queries.ndim == 3 else None
