"""Means and percentiles over the rows that count."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64

PERCENTILES = np.array([0.1, 0.5, 0.9])


def mean_of(values: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Over the last axis; NaN of nothing."""
    with np.errstate(invalid="ignore"):
        mean: np.ndarray = np.where(over, values, 0.0).sum(-1) / over.sum(-1)
    return mean


def percentiles(
    values: Float64[np.ndarray, "*lead rows"], over: Bool[np.ndarray, "*lead rows"], counts: np.ndarray
) -> Float64[np.ndarray, "*lead 3"]:
    """p10, p50 and p90 (linear, as NumPy's) over the last axis; `counts` are those of `over`. NaN of nothing."""
    ordered = np.sort(np.where(over, values, np.inf), axis=-1)
    at = PERCENTILES * np.maximum(counts - 1, 0)[..., None]
    below = at.astype(np.intp)
    part = at - below
    both = np.take_along_axis(ordered, np.concatenate([below, below + (part > 0)], axis=-1), axis=-1)
    lower, upper = both[..., :3], both[..., 3:]
    # An infinite number would spoil the one below it.
    between = np.where(part > 0, lower + part * (upper - lower), lower)
    between[counts == 0] = np.nan
    return between
