"""Matrices side by side on one scale: queries downwards, keys to the right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

from service.pictures import colours
from service.pictures.canvas import HEADING, SMALL, TEXT, TITLE, Box, Canvas, length, shortened, wrapped
from service.pictures.colours import FAINT, GREY, HATCH, MASKED, NAN, Scale, bounds
from service.pictures.ticks import Axis, between, digits, places, step

MOST_PANELS = 64
LARGEST_CELL = 36
SMALLEST_SIDE = 48
CROSSED_CELL = 5
"""Cells from this size on, in pixels, have room for the cross that marks a number that is none."""
BAR = Box(0, 0, 256, 14)
LEAST_WIDTH = 460
MARGIN, GAP = 18, 22
LINE = 16
NAME_WIDTH = 90.0
LABELLED = SMALL + 2
"""Cells from this size on, in points, have room for a token's name beside them."""
_SIDES = ((1, 512, 1024), (4, 320, 512), (9, 240, 384), (16, 192, 256), (MOST_PANELS, 128, 192))
"""Panels up to, the side they are meant to have, the side from which their cells are pooled."""

Matrix = Float[np.ndarray, "rows columns"]
Visible = Bool[np.ndarray, "rows columns"]


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One matrix. Where it is not `visible` a cell is masked, whatever its number."""

    title: str
    values: Matrix
    visible: Visible | None = None

    @property
    def shown(self) -> Float[np.ndarray, " cells"]:
        """The numbers that have a colour."""
        values = self.values.reshape(-1) if self.visible is None else self.values[self.visible]
        finite: Float[np.ndarray, " cells"] = values[np.isfinite(values)]
        return finite

    @property
    def not_numbers(self) -> int:
        finite = np.isfinite(self.values)
        return int(np.count_nonzero(~finite if self.visible is None else ~finite & self.visible))


@dataclass(frozen=True, slots=True, eq=False)
class HeatMaps:
    """A figure. All panels have the size of the axes; `quantity` is what their numbers are, `across` how many panels
    stand side by side."""

    title: str
    details: Sequence[str]
    panels: Sequence[Panel]
    rows: Axis
    columns: Axis
    quantity: str
    from_zero: bool = False
    across: int | None = None
    masked: str = "masked: this query does not see this key"
    """What the legend says of cells that are not visible."""


@dataclass(frozen=True, slots=True)
class Cells:
    """How a matrix fills its panel: points of each cell, and how many rows and columns of numbers each stands for."""

    height: int
    width: int
    rows: int = 1
    columns: int = 1

    @classmethod
    def fit(cls, rows: int, columns: int, side: int, most: int, named: bool = False) -> Cells:
        """Whole points; square wherever both sides allow it. Tokens that are `named` get room for it, up to `most`."""
        pooled = max(1, math.ceil(rows / most)), max(1, math.ceil(columns / most))
        high, wide = math.ceil(rows / pooled[0]), math.ceil(columns / pooled[1])
        size = max(1, min(LARGEST_CELL, side // high, side // wide))
        if named and max(high, wide) * LABELLED <= most:
            size = max(size, LABELLED)
        least = [max(size, min(LARGEST_CELL, math.ceil(SMALLEST_SIDE / count))) for count in (high, wide)]
        return cls(least[0], least[1], *pooled)

    @property
    def pooled(self) -> bool:
        return self.rows * self.columns > 1


class Layout:
    """Where everything of a figure of at most 64 panels stands, in points."""

    def __init__(self, figure: HeatMaps) -> None:
        self.figure = figure
        self.scale = Scale.of((panel.shown for panel in figure.panels), from_zero=figure.from_zero)
        side, most = next((side, most) for count, side, most in _SIDES if len(figure.panels) <= count)
        self.cells = Cells.fit(len(figure.rows), len(figure.columns), side, most, figure.rows.names is not None)
        self.row_labels = _row_labels(figure.rows, self.cells)
        self.column_labels, self.column_names = _column_labels(figure.columns, self.cells)
        self.across = figure.across or _across(len(figure.panels))
        self._place()

    def _place(self) -> None:
        figure, cells = self.figure, self.cells
        width = math.ceil(len(figure.columns) / cells.columns) * cells.width
        height = math.ceil(len(figure.rows) / cells.rows) * cells.height
        self.left = 22 + math.ceil(max((length(text, SMALL) for _, text in self.row_labels), default=0.0)) + 8
        names = max((length(text, SMALL) for _, text in self.column_labels), default=0.0)
        self.below = (math.ceil(names) if self.column_names else 12) + 28
        over = max(0, math.ceil(max(length(panel.title, HEADING) for panel in figure.panels) - width))
        over = min(over, 60)
        down = math.ceil(len(figure.panels) / self.across)
        across = min(self.across, len(figure.panels))
        self.width = max(LEAST_WIDTH, 2 * MARGIN + across * (self.left + width + over) + (across - 1) * GAP)
        inner = self.width - 2 * MARGIN
        self.title = wrapped(figure.title, inner, TITLE)
        self.details = [line for text in figure.details for line in wrapped(text, inner, TEXT)]
        top = MARGIN + len(self.title) * 24 + len(self.details) * LINE + 10
        self.panels = [
            Box(
                MARGIN + (index % self.across) * (self.left + width + over + GAP) + self.left,
                top + (index // self.across) * (HEADING + 10 + height + self.below + 8) + HEADING + 10,
                width,
                height,
            )
            for index in range(len(figure.panels))
        ]
        bottom = top + down * (HEADING + 10 + height + self.below + 8)
        self.quantity = wrapped(figure.quantity, inner, TEXT)
        self.bar = Box(MARGIN, bottom + 8 + len(self.quantity) * LINE, BAR.width, BAR.height)
        self.notes = [line for note in self._notes() for line in wrapped(note, inner, TEXT)]
        self.swatches = self._swatches()
        end = self.bar.bottom + 26 + len(self.notes) * LINE + len(self.swatches) * (LINE + 3)
        self.height = end + MARGIN - 6

    def _notes(self) -> list[str]:
        alike = "; the same number has the same colour in every panel" if len(self.panels) > 1 else ""
        low, high = (self._digits(bound) for bound in bounds(panel.shown for panel in self.figure.panels))
        if self.scale.kind == "signed":
            notes = [f"Numbers from {low} to {high}. Blue below 0, white at 0, orange above{alike}."]
        else:
            notes = [f"Numbers from {low} to {high}. Viridis, linear{alike}."]
        if self.cells.pooled:
            kind = "number farthest from 0" if self.scale.kind == "signed" else "largest number"
            notes.append(
                f"Max-pooled: each cell shows the {kind} of {self.cells.rows} x {self.cells.columns} "
                f"({len(self.figure.rows)} x {len(self.figure.columns)} are too many to draw)."
            )
        return notes

    def _swatches(self) -> list[tuple[str, str]]:
        panels = self.figure.panels
        masked = any(panel.visible is not None and not panel.visible.all() for panel in panels)
        count = sum(panel.not_numbers for panel in panels)
        return [
            *([("masked", self.figure.masked)] if masked else []),
            *([("nan", f"not a finite number: {count} cell{'s' if count > 1 else ''}")] if count else []),
        ]

    def _digits(self, value: float) -> str:
        return digits(value, self.scale.high - self.scale.low)

    def legend(self) -> list[tuple[float, str]]:
        """Numbers under the colour bar, the first and the last its bounds: points from its left, and digits."""
        low, high = self.scale.low, self.scale.high
        ends = [(0.0, self._digits(low)), (float(BAR.width), self._digits(high))]
        free = length(ends[0][1], SMALL) + 8, BAR.width - length(ends[1][1], SMALL) - 8
        inside = []
        for value in between(low, high):
            text, at = self._digits(value), self.scale.place(value)
            half = length(text, SMALL) / 2
            if at - half >= free[0] and at + half <= free[1]:
                inside.append((at, text))
        return [ends[0], *inside, ends[1]]


def draw(layout: Layout, zoom: int = 1) -> bytes:
    """The figure as PNG, `zoom` pixels to each point."""
    figure, canvas = layout.figure, paint(layout, zoom)
    return canvas.png(Title=figure.title, Description=" ".join([*figure.details, figure.quantity]))


def paint(layout: Layout, zoom: int = 1) -> Canvas:
    """Everything of the layout on one sheet."""
    canvas = Canvas(layout.width, layout.height, zoom)
    y = MARGIN
    for line in layout.title:
        canvas.text((MARGIN, y), line, TITLE)
        y += 24
    for line in layout.details:
        canvas.text((MARGIN, y), line, TEXT, GREY)
        y += LINE
    for panel, box in zip(layout.figure.panels, layout.panels, strict=True):
        _panel(canvas, layout, panel, box)
    _legend(canvas, layout)
    return canvas


def _panel(canvas: Canvas, layout: Layout, panel: Panel, box: Box) -> None:
    cells, figure = layout.cells, layout.figure
    canvas.text((box.left, box.top - 8), shortened(panel.title, box.width + 60, HEADING), HEADING, anchor="ls")
    canvas.pixels(box.left, box.top, pixels(panel, layout.scale, cells, canvas.zoom))
    canvas.frame(box)
    for index, text in layout.row_labels:
        y = box.top + (index // cells.rows + 0.5) * cells.height
        canvas.lines([(box.left - 4, y), (box.left - 1, y)])
        canvas.text((box.left - 7, y), text, SMALL, anchor="rm")
    for index, text in layout.column_labels:
        x = box.left + (index // cells.columns + 0.5) * cells.width
        canvas.lines([(x, box.bottom + 1), (x, box.bottom + 4)])
        if layout.column_names:
            canvas.upward((x + 7, box.bottom + 7), text, SMALL, anchor="r")
        else:
            canvas.text((x, box.bottom + 7), text, SMALL, anchor="ma")
    canvas.upward((box.left - layout.left + 14, box.top + box.height / 2), figure.rows.title, SMALL, GREY)
    canvas.text((box.left + box.width / 2, box.bottom + layout.below - 16), figure.columns.title, SMALL, GREY, "ma")


def pixels(panel: Panel, scale: Scale, cells: Cells, zoom: int = 1) -> UInt8[np.ndarray, "height width 3"]:
    """The matrix in colours: masked cells grey with a hatch, what is no finite number magenta with a cross."""
    values, visible = pooled(panel.values, panel.visible, cells.rows, cells.columns, magnitude=scale.kind == "signed")
    finite = np.isfinite(values)
    image = scale.table[scale.entries(np.where(finite & visible, values, scale.low))]
    image[~finite] = NAN
    image[~visible] = MASKED
    down, across = cells.height * zoom, cells.width * zoom

    def enlarged(array: np.ndarray) -> np.ndarray:
        return array.repeat(down, axis=0).repeat(across, axis=1)

    image = enlarged(image)
    if not visible.all():
        image[enlarged(~visible) & colours.hatched(image.shape[0], image.shape[1], zoom)] = HATCH
    if not finite[visible].all() and min(down, across) >= CROSSED_CELL:
        image[enlarged(~finite & visible) & np.tile(_cross(down, across), values.shape)] = colours.CROSS
    return image


def pooled(
    values: Matrix, visible: Visible | None, rows: int, columns: int, *, magnitude: bool
) -> tuple[Matrix, Visible]:
    """The largest visible number of each block (with `magnitude`, the one farthest from 0), and whether it has any.

    A block with a visible number that is not finite is NaN: it must not be lost among others.
    """
    seen: Visible = np.ones(values.shape, np.bool_) if visible is None else visible
    if rows * columns == 1:
        return values, seen
    finite = np.isfinite(values)
    shown = seen & finite
    largest = _blocks(np.where(shown, values, -np.inf), rows, columns, -np.inf).max((1, 3))
    if magnitude:
        smallest = _blocks(np.where(shown, values, np.inf), rows, columns, np.inf).min((1, 3))
        largest = np.where(largest >= -smallest, largest, smallest)
    broken = _blocks(seen & ~finite, rows, columns, False).any((1, 3))
    numbers: Matrix = np.where(broken, np.nan, largest)
    any_seen: Visible = np.asarray(_blocks(seen, rows, columns, False).any((1, 3)))
    return numbers, any_seen


def _blocks(array: np.ndarray[Any, Any], rows: int, columns: int, filler: float) -> np.ndarray[Any, Any]:
    high, wide = (math.ceil(size / by) for size, by in zip(array.shape, (rows, columns), strict=True))
    missing = [(0, high * rows - array.shape[0]), (0, wide * columns - array.shape[1])]
    return np.pad(array, missing, constant_values=filler).reshape(high, rows, wide, columns)


def _cross(height: int, width: int) -> Bool[np.ndarray, "height width"]:
    down, across = np.arange(height)[:, None] / (height - 1), np.arange(width)[None, :] / (width - 1)
    thickness = 0.75 / (min(height, width) - 1)
    return (np.abs(down - across) <= thickness) | (np.abs(down + across - 1) <= thickness)


def _legend(canvas: Canvas, layout: Layout) -> None:
    bar = layout.bar
    for index, line in enumerate(layout.quantity):
        canvas.text((bar.left, bar.top - 4 - (len(layout.quantity) - index) * LINE), line, TEXT)
    table = np.broadcast_to(layout.scale.table, (bar.height, 256, 3))
    canvas.pixels(bar.left, bar.top, table.repeat(canvas.zoom, axis=0).repeat(canvas.zoom, axis=1))
    canvas.frame(bar)
    numbers = layout.legend()
    for index, (at, text) in enumerate(numbers):
        x = bar.left + at
        canvas.lines([(x, bar.bottom + 1), (x, bar.bottom + 4)])
        canvas.text(
            (x, bar.bottom + 6), text, SMALL, anchor="la" if index == 0 else "ra" if index == len(numbers) - 1 else "ma"
        )
    y = bar.bottom + 26
    for note in layout.notes:
        canvas.text((bar.left, y), note, TEXT, GREY)
        y += LINE
    for kind, text in layout.swatches:
        swatch = Box(bar.left, y, 22, 13)
        _swatch(canvas, swatch, kind)
        canvas.frame(swatch, FAINT)
        canvas.text((swatch.right + 7, y), text, TEXT, GREY)
        y += LINE + 3


def _swatch(canvas: Canvas, box: Box, kind: str) -> None:
    height, width = box.height * canvas.zoom, box.width * canvas.zoom
    image = np.empty((height, width, 3), np.uint8)
    image[:] = MASKED if kind == "masked" else NAN
    if kind == "masked":
        image[colours.hatched(height, width, canvas.zoom)] = HATCH
    else:
        image[_cross(height, width)] = colours.CROSS
    canvas.pixels(box.left, box.top, image)


def _row_labels(axis: Axis, cells: Cells) -> list[tuple[int, str]]:
    if axis.names is not None and cells.rows == 1 and cells.height >= LABELLED:
        return [(index, shortened(name, NAME_WIDTH, SMALL)) for index, name in enumerate(axis.names)]
    every = step(2 * SMALL / cells.height * cells.rows)
    return [(index, f"{axis.numbers[index]:g}") for index in places(axis.numbers, every)]


def _column_labels(axis: Axis, cells: Cells) -> tuple[list[tuple[int, str]], bool]:
    """Also whether they are names, which are written upwards."""
    if axis.names is not None and cells.columns == 1 and cells.width >= LABELLED:
        return [(index, shortened(name, NAME_WIDTH, SMALL)) for index, name in enumerate(axis.names)], True
    widest = max(length(f"{axis.numbers[index]:g}", SMALL) for index in (0, len(axis) // 2, -1))
    every = step((widest + 8) / cells.width * cells.columns)
    return [(index, f"{axis.numbers[index]:g}") for index in places(axis.numbers, every)], False


def _across(panels: int) -> int:
    """A near-square arrangement, without gaps where there is one."""
    root = math.ceil(math.sqrt(panels))
    return next((count for count in range(root, 2 * root + 1) if panels % count == 0), root)
