"""One number for each head, and many of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from service.summaries.lists import written
from service.summaries.shapes import Heads
from service.summaries.spread import mean_of


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One number for each head, and how it spreads over the rows it is the mean of. NaN where undefined, with a reason.

    `uniform` is what attention that gives every visible key the same would have. A number that belongs to no row
    (a ratio of means) has no percentiles.
    """

    mean: Heads
    rows: Int64[np.ndarray, "batch heads"]
    p10: Heads | None = None
    p50: Heads | None = None
    p90: Heads | None = None
    uniform: Heads | None = None
    reason: str | None = None

    @property
    def layer(self) -> Float64[np.ndarray, " batch"]:
        """The mean of the heads that have a value."""
        return mean_of(self.mean, np.isfinite(self.mean))

    def part(self, items: slice) -> Metric:
        """Of some of the batch."""
        p10, p50, p90, uniform = (
            None if array is None else array[items] for array in (self.p10, self.p50, self.p90, self.uniform)
        )
        return Metric(self.mean[items], self.rows[items], p10, p50, p90, uniform, self.reason)

    def document(self, batched: bool = True) -> dict[str, Any]:
        """Arrays [batch, heads], without `batched` [heads], as `orjson` writes them: what is not finite as null."""
        arrays: Mapping[str, np.ndarray | None] = {
            "mean": self.mean,
            "p10": self.p10,
            "p50": self.p50,
            "p90": self.p90,
            "uniform": self.uniform,
            "layer": self.layer,
            "rows": self.rows,
        }
        given = {name: written(array, batched) for name, array in arrays.items() if array is not None}
        return given if self.reason is None else {**given, "reason": self.reason}


def undefined(shape: tuple[int, ...], reason: str) -> Metric:
    """For heads [batch, heads]."""
    missing = np.full(shape, np.nan)
    return Metric(missing, np.zeros(shape, int), missing, missing, missing, missing, reason)
