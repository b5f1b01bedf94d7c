from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from service.pictures.canvas import Box, Canvas, length, plain, shortened, wrapped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("caf\u00e9", "cafe"),
        ("\u2581the", "_the"),
        ("\u0120cat", "_cat"),
        ("a\nb", r"a\nb"),
        ("\u4e2d\u6587", "??"),
        ("ten\u2026", "ten..."),
    ],
)
def test_names_are_written_in_the_letters_the_font_has(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_lines_are_broken_between_words_and_never_longer() -> None:
    text = "the same number has the same colour in every panel of one picture"
    lines = wrapped(text, 120)
    assert " ".join(lines) == text
    assert len(lines) > 2
    assert all(length(line) <= 120 for line in lines)


def test_long_names_end_in_an_ellipsis() -> None:
    assert shortened("short", 200) == "short"
    cut = shortened("a name that goes on and on", 60)
    assert cut.endswith("...")
    assert length(cut) <= 60


def test_a_zoomed_picture_has_as_many_pixels_to_each_point() -> None:
    for zoom in (1, 2, 3):
        canvas = Canvas(40, 20, zoom)
        canvas.rectangle(Box(10, 5, 4, 3), (1, 2, 3))
        image = Image.open(io.BytesIO(canvas.png(Title="a title")))
        assert image.size == (40 * zoom, 20 * zoom)
        assert image.info["dpi"] == pytest.approx((96 * zoom, 96 * zoom), rel=1e-3)
        assert image.info["Title"] == "a title"
        inside = np.argwhere((np.asarray(image) == (1, 2, 3)).all(-1))
        assert inside.min(0).tolist() == [5 * zoom, 10 * zoom]
        assert inside.max(0).tolist() == [8 * zoom - 1, 14 * zoom - 1]


def test_text_that_is_read_from_below_ends_where_it_should() -> None:
    canvas = Canvas(60, 60)
    canvas.upward((40, 10), "upward", anchor="r")
    dark = np.argwhere(np.asarray(canvas.image).sum(-1) < 500)
    assert dark[:, 0].min() >= 10
    assert dark[:, 1].max() < 40
    assert np.ptp(dark[:, 0]) > np.ptp(dark[:, 1])
