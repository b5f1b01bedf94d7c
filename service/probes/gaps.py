"""How far attention moves when nothing but positions changes."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from service.analysis.analyst import TOLERANCE
from service.analysis.inquiry import PAIR_CELLS
from service.analysis.tokens import padding
from service.comparisons.comparison import Comparison, compare
from service.comparisons.metrics import outputs_for
from service.engine.appending import EXACT
from service.engine.job import Job, Tables
from service.probes import inputs
from service.probes.runs import Block, Runs, visible
from service.summaries.graph import spans
from service.summaries.layout import Layout
from service.summaries.rows import concatenate

METRICS = ("jsd", "tv")


async def gap(runs: Runs, queries: Float64[np.ndarray, " queries"], keys: Float64[np.ndarray, " keys"]) -> Comparison:
    """Of the request's weights and those of the same content at these positions. Raises what scoring raises."""
    plan, moved = runs.plan.layout, inputs.moved(runs.input, queries, keys)
    layout = Layout(plan.query_positions.values, plan.key_positions.values)
    blocks: list[dict[str, np.ndarray]] = []
    counts: list[np.ndarray] = []
    async for there in runs.output(moved, "weights"):
        here = await runs.rows(runs.input, "weights", there.start, there.stop, len(queries))
        seen = visible(runs.plan, runs.mask, here.start, here.stop)
        blocks += await _compared(runs, here, there, seen, layout)
        shape = (1, 1, here.stop - here.start)
        counts.append(np.full(shape, len(keys)) if seen is None else np.count_nonzero(seen, axis=-1))
    lead = np.broadcast_shapes(*(count.shape[:2] for count in counts))
    return compare(
        concatenate(blocks),
        layout,
        visible_keys=np.concatenate([np.broadcast_to(one, (*lead, one.shape[2])) for one in counts], axis=2),
        metrics=METRICS,
        padding=padding(runs.input, plan.batch, plan.heads, plan.choice, len(keys)),
    )


async def _compared(
    runs: Runs, here: Block, there: Block, seen: np.ndarray | None, layout: Layout
) -> list[dict[str, np.ndarray]]:
    """The numbers of these rows, by the graph of two matrices."""
    analyst, engine = runs.scoring.analyst, runs.scoring.engine
    outputs = outputs_for(METRICS, layout, scored=False)
    switches = (EXACT, *(("sinks_a", "sinks_b") if runs.sinks else ()))
    jobs = []
    for start, stop in spans(here.values.shape, PAIR_CELLS):
        rows = slice(start, stop)
        feeds = {
            "weights_a": here.values[:, :, rows],
            "weights_b": there.values[:, :, rows],
            "tolerance": np.array(TOLERANCE),
            "top": np.zeros(1, np.float32),
        }
        part = None if seen is None else seen[:, :, rows]
        tables = Tables(analyst.name(), feeds)
        jobs.append(Job.of_arrays(analyst.pairs, tables, outputs, feeds["weights_a"].size, part, switches))
    answers = await engine.run(jobs, runs.deadline)
    runs.timings.postprocess += sum(answer.compute for answer in answers)
    return [dict(answer.outputs) for answer in answers]
