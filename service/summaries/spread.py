"""Means and percentiles over the rows that count."""

from __future__ import annotations

import numpy as np


def mean_of(values: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Over the last axis; NaN of nothing."""
    with np.errstate(invalid="ignore"):
        mean: np.ndarray = np.where(over, values, 0.0).sum(-1) / over.sum(-1)
    return mean


def spread(values: np.ndarray, over: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean, p10, p50 and p90 (linear, as NumPy's) over the last axis."""
    ordered = np.sort(np.where(over, values, np.inf), axis=-1)
    last = np.maximum(over.sum(-1, keepdims=True) - 1, 0)
    at = np.array([0.1, 0.5, 0.9]) * last
    below = np.floor(at).astype(int)
    lower = np.take_along_axis(ordered, below, axis=-1)
    upper = np.take_along_axis(ordered, np.minimum(below + 1, last), axis=-1)
    between = np.where(at > below, lower + (at - below) * (upper - lower), lower)
    between = np.where(over.any(-1, keepdims=True), between, np.nan)
    return mean_of(values, over), between[..., 0], between[..., 1], between[..., 2]
