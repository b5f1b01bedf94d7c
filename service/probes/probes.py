"""All probes of a request, one encoding after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from service.analysis.tokens import padding
from service.comparisons.comparison import Comparison
from service.errors import InvalidInput, PayloadTooLarge
from service.plan import Layout, Plan
from service.probes import inputs, sweep
from service.probes.curve import Curve
from service.probes.distances import Distances
from service.probes.gaps import METRICS, gap
from service.probes.records import (
    DEFINITIONS,
    EncodingProbes,
    NotApplicable,
    ProbeOptions,
    ProbesResult,
)
from service.probes.references import references
from service.probes.runs import BLOCK, Runs, visible, whole_mask
from service.probes.share import Share
from service.records import AttentionInput, Timings
from service.scoring import Scoring
from service.summaries.lists import written

Answer = dict[str, Any]
ORDERED = "attention is causal, so order counts whatever the encoding"
WINDOWED = "a window hides keys by their positions, so order counts whatever the encoding"


class Probes:
    """Answers `ProbeOptions`."""

    def __init__(self, scoring: Scoring, numbers: int) -> None:
        """An answer holds at most about so many `numbers`."""
        self._scoring = scoring
        self._numbers = numbers

    async def answer(
        self, input: AttentionInput, asked: ProbeOptions, timings: Timings, deadline: float | None = None
    ) -> ProbesResult:
        """Raises the errors of `service.errors`, those of the request's own doing before anything is computed.

        What one encoding cannot do, as take a position that it has no table for, is a reason in its answer.
        """
        input, options = await self._scoring.read_text(input, asked.attention)
        plan = self._scoring.plan(input, options)
        self._check(plan, asked)
        mask = await asyncio.to_thread(whole_mask, input, plan)
        component = await asyncio.to_thread(inputs.root_mean_square, input)
        results = []
        for part in plan.parts:
            runs = Runs.of(self._scoring, plan, part, input, mask, options, timings, deadline)
            answers = {name: await self._one(name, runs, asked, component) for name in asked.probes}
            instance = part.instance
            results.append(
                EncodingProbes(
                    instance.encoding.id,
                    instance.label,
                    instance.name,
                    part.parameters.report,
                    part.conventions,
                    answers,
                )
            )
        layout = plan.layout
        return ProbesResult(
            plan.model.name,
            layout.batch,
            layout.heads,
            len(layout.query_positions),
            len(layout.key_positions),
            layout.head_dim,
            plan.causal,
            {name: {**DEFINITIONS[name], **_arguments(name, asked, layout, component)} for name in asked.probes},
            results,
            timings,
            plan.skipped,
            input.tokens,
        )

    async def _one(self, name: str, runs: Runs, asked: ProbeOptions, component: float) -> Answer:
        answers: Mapping[str, Callable[[], Awaitable[Answer]]] = {
            "position_only": partial(self._position_only, runs, component),
            "position_share": partial(self._position_share, runs),
            "shift_gap": partial(self._shift_gap, runs, asked),
            "order_gap": partial(self._order_gap, runs, asked),
            "length_sweep": partial(self._length_sweep, runs, asked),
        }
        return await _reasoned(answers[name])

    async def _position_only(self, runs: Runs, component: float) -> Answer:
        layout = runs.plan.layout
        distances = Distances.of(layout.query_positions, layout.key_positions)
        same = await self._curve(runs, distances, component)
        nothing = await self._curve(runs, distances, 0.0)
        zero, bare = same.at_zero(), nothing.at_zero()
        values = distances.values[same.seen]
        drawn = []
        if runs.plan.model.width is None:  # else projections stand between these vectors and what positions do to them
            found = await self._scoring.position_tables(inputs.constant(runs.input, layout, component), runs.options)
            drawn = references(runs.part.encoding.id, found, values, component)
        return {
            "distances": values,
            "curve": _single(same.mean - zero[:, None]),
            "at_zero": _single(zero),
            "spread": _single(same.spread),
            "without_content": _single(nothing.mean - bare[:, None]),
            "pairs": same.pairs[same.seen],
            "references": [reference.json() for reference in drawn],
        }

    async def _curve(self, runs: Runs, distances: Distances, component: float) -> Curve:
        layout = runs.plan.layout
        curve = Curve(distances, layout.heads)
        async for block in runs.output(inputs.constant(runs.input, layout, component), "scores"):
            seen = visible(runs.plan, None, block.start, block.stop)
            seen = None if seen is None else seen[0, 0]
            await runs.look(block.values.size, partial(curve.add, block.start, block.values[0], seen))
        return curve

    async def _position_share(self, runs: Runs) -> Answer:
        layout = runs.plan.layout
        distances = Distances.of(layout.query_positions, layout.key_positions)
        share = Share(distances, layout.batch or 1, layout.heads, len(layout.query_positions))
        unreal = padding(runs.input, layout.batch, layout.heads, layout.choice, len(layout.key_positions))
        async for block in runs.output(runs.input, "scores"):
            seen = visible(runs.plan, runs.mask, block.start, block.stop)
            if unreal is not None:  # padding attends as little as it is attended to
                rows = ~unreal[:, None, block.start : block.stop, None]
                seen = np.broadcast_to(rows, (*rows.shape[:3], block.values.shape[3])) if seen is None else seen & rows
            await runs.look(block.values.size, partial(share.add, block.start, block.values, seen))
        found = await runs.look(layout.cells, share.fit)
        batched = layout.batch is not None
        answer: Answer = {"share": written(found.share, batched), "chance": written(found.chance, batched)}
        return answer if found.reason is None else {**answer, "reason": found.reason}

    async def _shift_gap(self, runs: Runs, asked: ProbeOptions) -> Answer:
        layout = runs.plan.layout
        queries, keys = layout.query_positions, layout.key_positions

        async def at(offset: float) -> Answer:
            moved = queries.values + offset
            there = moved if queries is keys else keys.values + offset
            return _gap(await gap(runs, moved, there), layout)

        return {
            "offsets": [{"offset": offset, **await _reasoned(partial(at, offset))} for offset in asked.offsets],
        }

    async def _order_gap(self, runs: Runs, asked: ProbeOptions) -> Answer:
        if not runs.plan.sight.everything:
            raise NotApplicable(ORDERED if runs.plan.causal else WINDOWED)
        positions = inputs.reordered(runs.plan.layout, asked.seed)
        return _gap(await gap(runs, positions, positions), runs.plan.layout)

    async def _length_sweep(self, runs: Runs, asked: ProbeOptions) -> Answer:
        layout, lengths = runs.plan.layout, []

        async def at(tokens: int) -> Answer:
            return dict(await sweep.at_length(runs, tokens, asked.extend, asked.seed))

        for length in asked.lengths:
            tokens = sweep.tokens(length, layout.key_positions)
            lengths.append({"length": length, "tokens": tokens, **await _reasoned(partial(at, tokens))})
        return {"lengths": lengths}

    def _check(self, plan: Plan, asked: ProbeOptions) -> None:
        """Raises PayloadTooLarge."""
        layout, limit = plan.layout, self._scoring.limits.cells
        pairs = len(layout.query_positions) * len(layout.key_positions)
        longest = max(1.0, *asked.lengths) if "length_sweep" in asked.probes else 1.0
        a_row = longest * (layout.batch or 1) * layout.heads * len(layout.key_positions)
        if a_row > BLOCK:
            raise PayloadTooLarge(
                f"one query of all heads of all the batch has {a_row:,.0f} cells; a probe takes at most {BLOCK:,}: "
                "send fewer keys, ask for fewer heads, or send fewer inputs at once",
                limit=BLOCK,
            )
        cells = {
            "position_only": 2 * layout.heads * pairs,
            "position_share": layout.cells,
            "shift_gap": 2 * len(asked.offsets) * layout.cells,
            "order_gap": 2 * layout.cells if plan.sight.everything else 0,
            "length_sweep": sum(length**2 for length in asked.lengths) * layout.cells,
        }
        each = {name: cells[name] * len(plan.parts) for name in asked.probes}
        total = sum(each.values())
        if total > limit:
            parts = ", ".join(f"{name} {count:,.0f}" for name, count in each.items())
            raise PayloadTooLarge(
                f"these probes of {len(plan.parts)} encodings compute {total:,.0f} cells ({parts}); the limit is "
                f"{limit:,}: ask for fewer probes, encodings, offsets, lengths or heads, or send fewer tokens",
                limit=limit,
            )
        numbers = len(plan.parts) * sum(_numbers(name, layout, asked) for name in asked.probes)
        if numbers > self._numbers:
            raise PayloadTooLarge(
                f"the answer would have about {numbers:,} numbers; the limit is {self._numbers:,} "
                "(ATTENTION_JSON_CELLS): ask for fewer probes, encodings or heads, or send fewer tokens",
                limit=self._numbers,
            )


async def _reasoned(answer: Callable[[], Awaitable[Answer]]) -> Answer:
    """The answer, or why there is none."""
    try:
        return await answer()
    except NotApplicable as reason:
        return {"reason": str(reason)}
    except (InvalidInput, PayloadTooLarge) as error:
        return {"reason": error.detail}


def _arguments(name: str, asked: ProbeOptions, layout: Layout, component: float) -> Answer:
    match name:
        case "position_only":
            return {
                "component": component,
                "vector": "all components of the constant vector are the root mean square of the input's numbers",
            }
        case "shift_gap":
            return {"offsets": asked.offsets}
        case "order_gap":
            return {"seed": asked.seed}
        case "length_sweep":
            drawn = {"seed": asked.seed} if asked.extend == "random" else {}
            how = {
                "tiled": "the input is repeated from its beginning",
                "random": "normal numbers follow the input, with the mean and deviation of each of its components",
            }
            return {
                "length": len(layout.key_positions),
                "lengths": asked.lengths,
                "extend": asked.extend,
                "extended": f"shorter is the beginning of the input; where it is longer, {how[asked.extend]}",
                **drawn,
            }
        case _:
            return {}


def _numbers(name: str, layout: Layout, asked: ProbeOptions) -> int:
    """About how many an encoding's answer holds."""
    rows = (layout.batch or 1) * layout.heads
    spread = len(METRICS) * 6
    match name:
        case "position_only":
            return 5 * layout.heads * (len(layout.query_positions) + len(layout.key_positions))
        case "position_share":
            return 2 * rows
        case "shift_gap":
            return spread * rows * len(asked.offsets)
        case "order_gap":
            return spread * rows
        case _:
            return len(sweep.METRICS) * 6 * rows * len(asked.lengths)


def _gap(found: Comparison, layout: Layout) -> Answer:
    document = found.document(layout.batch is not None)
    return {name: document[name] for name in (*METRICS, "identical", "floor")}


def _single(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=np.float32)
