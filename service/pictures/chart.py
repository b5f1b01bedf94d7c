"""A line over a logarithmic axis: the frequencies of an encoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from service.pictures.canvas import SMALL, TEXT, TITLE, Box, Canvas, length, wrapped
from service.pictures.colours import FAINT, GREY, INK, Colour
from service.pictures.ticks import Axis, decades, digits, places, step

MARGIN = 18
LINE = 16
PLOT = Box(78, 0, 520, 320)
RIGHT = 84
RADIUS = 4
# Okabe and Ito's colours, which colour-blind readers tell apart; shapes differ as well.
GROUP_COLOURS: tuple[Colour, ...] = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), INK)
SHAPES = ("circle", "square", "triangle")


@dataclass(frozen=True, slots=True)
class Level:
    """A value worth a line of its own across the chart."""

    value: float
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """One positive value for each place of the axis; `group` says which of the named groups a place belongs to.

    A value of 0 has no place on a logarithmic axis: it is drawn on the lower edge, and said to be 0. `other_title` and
    `other` label the right side: the same height read as `other / value`.
    """

    title: str
    details: Sequence[str]
    places: Axis
    values: Float[np.ndarray, " places"]
    values_title: str
    groups: Sequence[str] = ()
    group: Sequence[int] = ()
    other: float | None = None
    other_title: str = ""
    levels: Sequence[Level] = ()


class _Plot:
    """The rectangle inside the axes: where a place and a value are."""

    def __init__(self, chart: Chart, box: Box) -> None:
        self.box = box
        positive = [float(value) for value in chart.values if value > 0]
        shown = [*positive, *(level.value for level in chart.levels)] or [1.0]
        low, high = math.log10(min(shown)), math.log10(max(shown))
        room = 0.04 * (high - low) + 0.02
        self.zeros = len(positive) < len(chart.values)
        self.low = low - room - (0.1 * (high - low) + 0.1 if self.zeros else 0)
        self.high = high + room
        self.count = len(chart.values)

    def x(self, index: float) -> float:
        return self.box.left + (index + 0.5) / self.count * self.box.width

    def y(self, value: float) -> float:
        if value <= 0:
            return self.box.bottom - RADIUS
        return self.box.bottom - (math.log10(value) - self.low) / (self.high - self.low) * self.box.height


def draw(chart: Chart, zoom: int = 1) -> bytes:
    """The chart as PNG. Raises ValueError where there is nothing to draw."""
    if not len(chart.values):
        raise ValueError("a chart of no values")
    width = MARGIN * 2 + PLOT.left + PLOT.width + (RIGHT if chart.other is not None else 0)
    title = wrapped(chart.title, width - 2 * MARGIN, TITLE)
    details = [line for text in chart.details for line in wrapped(text, width - 2 * MARGIN, TEXT)]
    top = MARGIN + len(title) * 24 + len(details) * LINE + 16
    plot = _Plot(chart, Box(MARGIN + PLOT.left, top, PLOT.width, PLOT.height))
    entries = _legend(chart, plot)
    height = plot.box.bottom + 48 + (LINE + 8 if entries else 0) + MARGIN
    canvas = Canvas(width, height, zoom)
    y = MARGIN
    for line in title:
        canvas.text((MARGIN, y), line, TITLE)
        y += 24
    for line in details:
        canvas.text((MARGIN, y), line, TEXT, GREY)
        y += LINE
    _axes(canvas, chart, plot)
    points = [(plot.x(index), plot.y(value)) for index, value in enumerate(chart.values)]
    for before, after, first, second in zip(points, points[1:], chart.values, chart.values[1:], strict=False):
        if first > 0 and second > 0:
            canvas.lines([before, after], GREY)
    radius = max(1.5, min(RADIUS, plot.box.width / plot.count * 0.4))
    for index, point in enumerate(points):
        _mark(canvas, point, chart.group[index] if len(chart.group) else 0, radius)
    canvas.frame(plot.box)
    x = float(plot.box.left)
    for group, text in entries:
        if group is not None:
            _mark(canvas, (x + RADIUS, plot.box.bottom + 56), group, RADIUS)
        canvas.text((x + 2 * RADIUS + 6, plot.box.bottom + 56), text, TEXT, anchor="lm")
        x += 2 * RADIUS + 6 + length(text, TEXT) + 22
    return canvas.png(Title=chart.title, Description=" ".join(chart.details))


def _legend(chart: Chart, plot: _Plot) -> list[tuple[int | None, str]]:
    used = sorted(set(chart.group))
    entries: list[tuple[int | None, str]] = [(group, chart.groups[group]) for group in used]
    return [*entries, (None, "on the lower edge: 0")] if plot.zeros else entries


def _axes(canvas: Canvas, chart: Chart, plot: _Plot) -> None:
    box = plot.box
    for value in decades(10**plot.low, 10**plot.high):
        y = plot.y(value)
        if y > box.bottom - (4 * RADIUS if plot.zeros else 0):
            continue
        canvas.lines([(box.left, y), (box.right, y)], FAINT)
        canvas.text((box.left - 7, y), digits(value, value), SMALL, anchor="rm")
    canvas.upward((MARGIN + 16, box.top + box.height / 2), chart.values_title, SMALL, GREY)
    if chart.other is not None:
        for value in decades(chart.other / 10**plot.high, chart.other / 10**plot.low):
            y = plot.y(chart.other / value)
            if y <= box.bottom - (4 * RADIUS if plot.zeros else 0):
                canvas.lines([(box.right, y), (box.right + 4, y)])
                canvas.text((box.right + 7, y), digits(value, value), SMALL, anchor="lm")
        canvas.upward((box.right + RIGHT - 4, box.top + box.height / 2), chart.other_title, SMALL, GREY)
    for level in chart.levels:
        y = plot.y(level.value)
        for start in range(box.left, box.right, 8):
            canvas.lines([(start, y), (min(start + 4, box.right), y)], INK)
        canvas.text((box.right - 6, y - 3), level.text, SMALL, INK, anchor="rs")
    every = step((length(f"{chart.places.numbers[-1]:g}", SMALL) + 12) / box.width * plot.count)
    for index in places(chart.places.numbers, every):
        x = plot.x(index)
        canvas.lines([(x, box.bottom + 1), (x, box.bottom + 4)])
        canvas.text((x, box.bottom + 7), f"{chart.places.numbers[index]:g}", SMALL, anchor="ma")
    canvas.text((box.left + box.width / 2, box.bottom + 25), chart.places.title, SMALL, GREY, "ma")


def _mark(canvas: Canvas, at: tuple[float, float], group: int, radius: float) -> None:
    colour, (x, y) = GROUP_COLOURS[group % len(GROUP_COLOURS)], at
    match SHAPES[group % len(SHAPES)]:
        case "circle":
            canvas.circle(at, radius, colour)
        case "square":
            canvas.polygon([(x - radius, y - radius), (x + radius, y - radius), (x + radius, y + radius),
                            (x - radius, y + radius)], colour)  # fmt: skip
        case _:
            canvas.polygon([(x, y - radius), (x + radius, y + radius), (x - radius, y + radius)], colour)
