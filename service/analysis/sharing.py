"""Jobs of the analysis graphs that share runs with those of other requests, on a device that pads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from service.engine.appending import EXACT
from service.engine.job import Graph, Job, Own, Tables

if TYPE_CHECKING:
    from jaxtyping import Bool

MATRIX = ("batch", "heads", "queries", "keys")
ROWS, KEYS = ("batch", "queries"), ("batch", "keys")
AXES = {"profiled": ROWS, "query_tokens": ROWS, "key_tokens": KEYS, "tokens_before": KEYS}
"""Inputs of the graph of one matrix that are a request's own."""
PADDED = "padded"
"""The switch of the graph of two matrices that says that not all keys are real."""


def own(feeds: Mapping[str, np.ndarray], prefix: str = "") -> dict[str, Own]:
    """These of the inputs that are a request's own, under their names after the prefix."""
    return {prefix + name: Own(feeds[name], axes) for name, axes in AXES.items() if name in feeds}


@lru_cache(64)
def _shared(tolerance: float, top: int) -> Tables:
    """Kept, so that they stay on the device."""
    arrays = {"tolerance": np.array(tolerance), "top": np.zeros(top, np.float32)}
    for array in arrays.values():
        array.flags.writeable = False
    return Tables(f"{tolerance:g}, of {top}", arrays)


def pair_job(
    graph: Graph,
    matrices: Mapping[str, np.ndarray],
    outputs: tuple[str, ...],
    *,
    tolerance: float,
    top: int,
    visible: Bool[np.ndarray, "#batch #heads queries keys"] | None,
    sinks: Sequence[str],
    padded: tuple[int, int] | None,
) -> Job:
    """One that compares the rows of two matrices, `weights_a`, `weights_b` and perhaps their scores, all [batch, heads,
    queries, keys]; computed with as many queries and keys as `padded` says. `sinks` are the switches that are on.
    """
    batch, heads, queries, keys = matrices["weights_a"].shape
    inputs = {name: Own(array, MATRIX) for name, array in matrices.items()}
    switches = (EXACT, *sinks)
    if visible is not None or (padded is not None and padded[1] > keys):
        # So that what fills its bucket shares the runs of what does not.
        inputs["real_keys"] = Own(np.ones((batch, keys), bool), KEYS)
        switches = (*switches, PADDED)
    most = padded or (queries, keys)
    return Job.of_items(
        graph,
        _shared(tolerance, top),
        inputs,
        outputs,
        (batch, queries, keys),
        batch * heads * most[0] * most[1],
        visible,
        switches,
        None if padded == (queries, keys) else padded,
    )
