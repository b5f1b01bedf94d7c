"""Attention as characters: blocks of colour on a terminal, shades elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float
from rich.color import Color
from rich.style import Style
from rich.text import Text

from service.client import NAN_COLOUR, limits, palette, pool, shade

Map = Float[np.ndarray, "queries keys"]

SHADES = " ░▒▓█"
PLAIN_SHADES = " .:*#"
"""For a file or terminal whose character encoding has no blocks."""
NAN = "?"
LARGEST_NAMED = 40
"""Queries and keys of a map that has a line for each query, behind its name."""
POINTS = 64
"""At most along a side of a larger map."""
NAME = 10


@dataclass(frozen=True, slots=True)
class HeatMaps:
    """Several maps on one scale. Of a map of more than `LARGEST_NAMED` queries or keys a point is the largest weight of
    those that it stands for.
    """

    low: float
    high: float
    largest: float
    """What `high` is not always: a few large weights do not leave the rest dark."""
    coloured: bool
    shades: str = SHADES

    @classmethod
    def of(cls, shown: Iterable[Map], *, coloured: bool, encoding: str) -> HeatMaps:
        """`encoding` is that of the characters."""
        low, high, largest = limits(pool(values, POINTS, POINTS) for values in shown)
        try:
            SHADES.encode(encoding)
        except UnicodeEncodeError:
            return cls(low, high, largest, coloured, PLAIN_SHADES)
        return cls(low, high, largest, coloured)

    def draw(self, values: Map, names: Sequence[str]) -> Text:
        """`names` has one for each query."""
        if max(values.shape) <= LARGEST_NAMED:
            width = min(NAME, max(map(len, names)))
            lines = (
                Text(f"{name[:width]:>{width}} ").append_text(Text().join(self._cell(value, 2) for value in row))
                for name, row in zip(names, values, strict=True)
            )
            return Text("\n").join(lines)
        if self.coloured:
            return self._halves(pool(values, POINTS, POINTS))
        pooled = pool(values, POINTS // 2, POINTS)  # a character is twice as high as it is wide
        return Text("\n").join(Text().join(self._cell(value, 1) for value in row) for row in pooled)

    def legend(self) -> Text:
        shown = np.linspace(self.low, self.high, 24 if self.coloured else len(self.shades))
        bar = Text().join(self._cell(value, 1 if self.coloured else 2) for value in shown)
        beyond = f" and more, the largest is {self.largest:.3g}" if self.largest > self.high else ""
        return Text(f"{self.low:.3g} ").append_text(bar).append(f" {self.high:.3g}{beyond}")

    def _cell(self, value: float, width: int) -> Text:
        if self.coloured:
            return Text(" " * width, Style(bgcolor=self._colour(value)))
        entry = int(shade(np.array(value), self.low, self.high, len(self.shades)))
        return Text((self.shades + NAN)[entry] * width)

    def _halves(self, values: Map) -> Text:
        """Two rows to a line: the upper half of a block, and its ground."""
        lines = []
        for i in range(0, len(values), 2):
            line = Text()
            below = values[i + 1] if i + 1 < len(values) else [None] * values.shape[1]
            for upper, lower in zip(values[i], below, strict=True):
                ground = None if lower is None else self._colour(lower)
                line.append("▀", Style(color=self._colour(upper), bgcolor=ground))
            lines.append(line)
        return Text("\n").join(lines)

    def _colour(self, value: float) -> Color:
        return _colours()[int(shade(np.array(value), self.low, self.high))]


@cache
def _colours() -> tuple[Color, ...]:
    return tuple(Color.from_rgb(*map(int, colour)) for colour in (*palette(), NAN_COLOUR))
