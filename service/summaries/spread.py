"""Means and percentiles over the rows that count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

PERCENTILES = np.array([0.1, 0.5, 0.9])


def mean_of(values: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Over the last axis; NaN of nothing."""
    with np.errstate(invalid="ignore"):
        mean: np.ndarray = np.where(over, values, 0.0).sum(-1) / over.sum(-1)
    return mean


@dataclass(frozen=True, slots=True, eq=False)
class Quantiles:
    """Where p10, p50 and p90 (linear, as NumPy's) of so many numbers lie among them, once they are in order: the three
    below and the three above, and how far between.
    """

    at: Int64[np.ndarray, "*lead 6"]
    part: Float64[np.ndarray, "*lead 3"]
    none: Bool[np.ndarray, "*lead 1"] | None
    """Where there are no numbers; None where there are some everywhere."""

    @classmethod
    def of(cls, counts: Int64[np.ndarray, "*lead"]) -> Quantiles:
        at = PERCENTILES * np.maximum(counts - 1, 0)[..., None]
        below = at.astype(np.intp)
        part = at - below
        none = None if counts.all() else (counts == 0)[..., None]
        return cls(np.concatenate([below, below + (part > 0)], axis=-1), part, none)


def percentiles(
    values: Float64[np.ndarray, "*lead rows"], over: Bool[np.ndarray, "*lead rows"], quantiles: Quantiles
) -> Float64[np.ndarray, "*lead 3"]:
    """Over the last axis; `quantiles` are those of the counts of `over`. NaN of nothing."""
    ordered = np.sort(np.where(over, values, np.inf), axis=-1)
    both = np.take_along_axis(ordered, quantiles.at, axis=-1)
    lower, upper = both[..., :3], both[..., 3:]
    # An infinite number would spoil the one below it.
    between = np.where(quantiles.part > 0, lower + quantiles.part * (upper - lower), lower)
    return between if quantiles.none is None else np.where(quantiles.none, np.nan, between)
