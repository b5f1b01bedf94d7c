"""A white sheet measured in points, of which each is `zoom` pixels: text, lines, rectangles, matrices of pixels."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from service.pictures.colours import INK, WHITE, Colour

Point = tuple[float, float]

TITLE, HEADING, TEXT, SMALL = 17, 13, 12, 11
DOTS_PER_INCH = 96


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in points."""

    left: int
    top: int
    width: int
    height: int

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def bottom(self) -> int:
        return self.top + self.height


class Canvas:
    """What is drawn on it is drawn at the final size, so that a zoomed picture is sharp, not enlarged."""

    def __init__(self, width: int, height: int, zoom: int = 1) -> None:
        self.zoom = zoom
        self.image = Image.new("RGB", (width * zoom, height * zoom), WHITE)
        self._draw = ImageDraw.Draw(self.image)

    def text(self, at: Point, text: str, size: int = TEXT, colour: Colour = INK, anchor: str = "la") -> None:
        """`anchor` as Pillow has it: l, m, r and a (top), m, s (baseline)."""
        self._draw.text(self._pixels(at), plain(text), font=_font(size * self.zoom), fill=colour, anchor=anchor)

    def upward(self, at: Point, text: str, size: int = TEXT, colour: Colour = INK, anchor: str = "m") -> None:
        """Text that is read from below, to the left of that point, where it ends (`r`) or has its middle (`m`)."""
        font, text = _font(size * self.zoom), plain(text)
        width, height = max(1, round(font.getlength(text))), sum(font.getmetrics())
        stamp = Image.new("L", (width, height))
        ImageDraw.Draw(stamp).text((0, 0), text, font=font, fill=255)
        x, y = self._pixels(at)
        corner = round(x) - height, round(y) - (width // 2 if anchor == "m" else 0)
        self.image.paste(colour, corner, stamp.transpose(Image.Transpose.ROTATE_90))

    def lines(self, points: Sequence[Point], colour: Colour = INK, width: float = 1) -> None:
        self._draw.line([self._pixels(at) for at in points], fill=colour, width=max(1, round(width * self.zoom)))

    def rectangle(self, box: Box, colour: Colour) -> None:
        zoom = self.zoom
        corners = (box.left * zoom, box.top * zoom, box.right * zoom - 1, box.bottom * zoom - 1)
        self._draw.rectangle(corners, fill=colour)

    def frame(self, box: Box, colour: Colour = INK) -> None:
        """A line around the box, outside of it."""
        zoom = self.zoom
        corners = (
            box.left * zoom - zoom,
            box.top * zoom - zoom,
            (box.right + 1) * zoom - 1,
            (box.bottom + 1) * zoom - 1,
        )
        self._draw.rectangle(corners, outline=colour, width=zoom)

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        self._draw.polygon([self._pixels(at) for at in points], fill=colour)

    def circle(self, at: Point, radius: float, colour: Colour) -> None:
        self._draw.circle(self._pixels(at), radius * self.zoom, fill=colour)

    def pixels(self, left: int, top: int, pixels: UInt8[np.ndarray, "height width 3"]) -> None:
        """Pixels as they are: `zoom` times as many as there are points in that place."""
        self.image.paste(Image.fromarray(np.ascontiguousarray(pixels)), (left * self.zoom, top * self.zoom))

    def png(self, **about: str) -> bytes:
        """The file; `about` becomes its text entries (Title, Description)."""
        entries = PngInfo()
        for name, text in about.items():
            entries.add_itxt(name, text)
        file = io.BytesIO()
        density = DOTS_PER_INCH * self.zoom
        self.image.save(file, "PNG", pnginfo=entries, dpi=(density, density), compress_level=5)
        return file.getvalue()

    def _pixels(self, at: Point) -> Point:
        return at[0] * self.zoom, at[1] * self.zoom


def length(text: str, size: int = TEXT) -> float:
    """How many points wide a line of text is."""
    return _font(size).getlength(plain(text))


def wrapped(text: str, width: float, size: int = TEXT) -> list[str]:
    """Lines of at most that width, broken between words."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and length(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def shortened(text: str, width: float, size: int = TEXT) -> str:
    """The text, or its beginning and an ellipsis where it is wider than that."""
    if length(text, size) <= width:
        return text
    while text and length(text + "...", size) > width:
        text = text[:-1]
    return text + "..."


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """The text in the letters that the font has, which is ASCII: accents are dropped, other letters become `?`, the
    marks that tokenizers put for a space `_`, and control characters their escapes."""
    if text.isascii() and text.isprintable():
        return text
    text = "".join("_" if letter in "\u2581\u0120\u00b7" else letter for letter in text)
    letters = (letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return "".join(
        letter if letter.isascii() and letter.isprintable() else repr(letter)[1:-1] if letter.isascii() else "?"
        for letter in letters
    )


@lru_cache(maxsize=64)
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    # The same pixels whether or not the machine has libraqm.
    return font.font_variant(layout_engine=ImageFont.Layout.BASIC)
