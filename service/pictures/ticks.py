"""Which numbers stand at an axis, and in which digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Axis:
    """One side of a matrix: what it counts, the number of each row or column, and their names where they have any."""

    title: str
    numbers: Sequence[float]
    names: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.numbers)


def digits(number: float, span: float) -> str:
    """Four digits, or all of a whole number's, and 0 for what is nothing beside `span`."""
    if abs(number) < 1e-6 * span:
        return "0"
    return f"{number:,.0f}" if 1e4 <= abs(number) < 1e7 else f"{number:.4g}"


def step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... that is not below `least`."""
    if least <= 1:
        return 1
    power = int(10 ** math.floor(math.log10(least)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def places(numbers: Sequence[float], every: int) -> list[int]:
    """The indices that get a label: round numbers where the numbers are consecutive, else every so many."""
    values = np.asarray(numbers)
    if len(values) > 1 and (np.diff(values) == 1).all() and values[0] == np.floor(values[0]):
        chosen = np.flatnonzero(values % every == 0)
        if chosen.size:
            return [int(index) for index in chosen]
    return list(range(0, len(values), every))


def between(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers strictly between the two."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / size) + 1, math.ceil(high / size) - 1
    return [index * size for index in range(first, last + 1)]


def decades(low: float, high: float, most: int = 8) -> list[float]:
    """Powers of ten from `low` to `high`, at most so many."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = step((last - first + 1) / most)
    return [10.0**power for power in range(first, last + 1) if power % every == 0]
