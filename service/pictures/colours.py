"""Which colour a number has. The tables are written by `docs/make_colours.py`, 256 colours of 3 bytes each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from math import inf
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, UInt8

Table = UInt8[np.ndarray, "256 3"]
Colour = tuple[int, int, int]

CENTRE = 128
"""The entry of the signed table that is 0; each side has 127 more."""
NEGLIGIBLE = 1e-6
"""A side of 0 this much shorter than the other is rounding, and does not make numbers signed."""

WHITE, INK, GREY, FAINT = (255, 255, 255), (20, 20, 20), (95, 95, 95), (205, 205, 205)
MASKED, HATCH = (222, 222, 222), (170, 170, 170)
NAN, CROSS = (230, 0, 230), (60, 0, 60)


def _table(name: str) -> Table:
    table = np.frombuffer((files(__package__) / f"{name}.rgb").read_bytes(), np.uint8).reshape(256, 3)
    table.flags.writeable = False
    return table


VIRIDIS, SIGNED = _table("viridis"), _table("signed")


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """From numbers to colours: viridis from `low` to `high`, or, where they have both signs, blue, white at 0, orange.

    The same number has the same colour wherever the same scale is used.
    """

    kind: Literal["sequential", "signed"]
    low: float
    high: float

    @classmethod
    def of(cls, shown: Iterable[Float[np.ndarray, "..."]], *, from_zero: bool = False) -> Scale:
        """Wide enough for every finite number of `shown`; `from_zero` where 0 is the least that one may be."""
        low, high = bounds(shown)
        if -low > NEGLIGIBLE * high and high > -NEGLIGIBLE * low:
            limit = max(-low, high)
            return cls("signed", -limit, limit)
        if from_zero or high - low <= NEGLIGIBLE * max(abs(low), abs(high)):
            low, high = min(0.0, low), max(0.0, high)
        return cls("sequential", low, high if high > low else low + 1)

    @property
    def table(self) -> Table:
        return SIGNED if self.kind == "signed" else VIRIDIS

    def entries(self, values: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
        """The entry of the table for each finite number; one beyond the scale has the colour of its end."""
        if self.kind == "signed":
            entries = CENTRE + np.rint(np.clip(values / self.high, -1, 1) * (CENTRE - 1))
        else:
            entries = np.clip(np.floor((values - self.low) / (self.high - self.low) * 256), 0, 255)
        return entries.astype(np.uint8)

    def place(self, value: float) -> float:
        """Where a number stands along the table, from 0 to 256."""
        share = (value - self.low) / (self.high - self.low)
        return CENTRE + 0.5 + value / self.high * (CENTRE - 1) if self.kind == "signed" else share * 256

    def colour(self, value: float) -> Colour:
        red, green, blue = self.table[int(self.entries(np.array(value)))]
        return int(red), int(green), int(blue)


def bounds(arrays: Iterable[Float[np.ndarray, "..."]]) -> tuple[float, float]:
    """The smallest and the largest finite number; 0 and 0 where there is none."""
    low, high = inf, -inf
    for values in arrays:
        finite = values[np.isfinite(values)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return (low, high) if low <= high else (0.0, 0.0)


def hatched(height: int, width: int, period: int) -> Bool[np.ndarray, "height width"]:
    """The pixels of a diagonal hatch, a sixth of them: a masked cell is told by its pattern as well as its colour."""
    across, down = np.arange(width) // period, np.arange(height) // period
    on: Bool[np.ndarray, "height width"] = (across[None, :] + down[:, None]) % 6 == 0
    return on
