"""Medians, spreads, and whether a series drifts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Of the rounds of one measurement."""

    median: float
    low: float
    high: float
    halves: float
    """The median of the first half of the rounds over that of the second: how far the machine itself drifted."""


def summarise(values: Sequence[float]) -> Summary:
    """Of one value or more; the middle one of an odd number is in neither half."""
    half = len(values) // 2
    drift = float(np.median(values[:half]) / np.median(values[-half:])) if half else 1.0
    return Summary(float(np.median(values)), min(values), max(values), drift)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the straight line through the points, least squares."""
    return float(np.polyfit(x, y, 1)[0])
