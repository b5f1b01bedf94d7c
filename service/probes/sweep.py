"""What attention is like at other lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.positions import Positions
from service.probes import inputs
from service.probes.records import Extend
from service.probes.runs import Runs

METRICS = ("entropy_norm", "mean_distance_ratio", "sink_mass_1", "sink_mass_4")


async def at_length(runs: Runs, tokens: int, extend: Extend, seed: int) -> Mapping[str, Any]:
    """The summary of the weights. Raises NotApplicable, and what scoring raises."""
    input = inputs.lengthened(runs.input, runs.plan.layout, tokens, extend, seed)
    options = replace(runs.options, returns=("summary",), metrics=METRICS)
    answer = await runs.scoring.score(input, options, runs.timings, runs.deadline)
    summary = answer.results[0].summary
    assert summary is not None  # it was asked for
    return {name: summary[name] for name in METRICS}


def tokens(length: float, of: Positions) -> int:
    """A length in lengths of the input, in tokens."""
    return max(1, round(length * len(of)))
