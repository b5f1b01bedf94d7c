"""Attention as characters."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

from service.client import palette
from service.commands.heat_map import HeatMaps

EYE = np.eye(4)


def plain(text: Text) -> list[str]:
    return text.plain.split("\n")


def coloured(text: Text) -> str:
    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system="truecolor", width=200).print(text)
    return file.getvalue()


def test_a_small_map_has_a_line_for_each_query_behind_its_name() -> None:
    maps = HeatMaps.of([EYE], coloured=False, encoding="utf-8")
    lines = plain(maps.draw(EYE, ["a", "bb", "ccc", "a very long token"]))
    assert lines[0] == "         a ██      "
    assert lines[3] == "a very lon       ██"


def test_shades_go_by_the_weight() -> None:
    row = np.array([[0.0, 0.25, 0.45, 0.65, 1.0, np.nan]])
    assert plain(HeatMaps(0.0, 1.0, 1.0, False).draw(row, ["q"])) == ["q   ░░▒▒▓▓██??"]


def test_where_characters_have_no_blocks_letters_do() -> None:
    maps = HeatMaps.of([EYE], coloured=False, encoding="ascii")
    (maps.draw(EYE, list("abcd")).plain + maps.legend().plain).encode("ascii")


def test_colours_are_those_of_the_palette() -> None:
    shown = coloured(HeatMaps(0.0, 1.0, 1.0, True).draw(EYE, list("abcd")))
    for entry in (0, -1):
        red, green, blue = palette()[entry]
        assert f"48;2;{red};{green};{blue}m  " in shown


@pytest.mark.parametrize("size", [41, 64, 65, 1000])
@pytest.mark.parametrize("colour", [True, False])
def test_a_larger_map_fits_into_64_by_32_characters_and_shows_every_peak(size: int, colour: bool) -> None:
    values = np.zeros((size, size))
    values[size // 3, size - 1] = 1.0
    maps = HeatMaps(0.0, 1.0, 1.0, colour)
    text = maps.draw(values, [str(i) for i in range(size)])
    lines = plain(text)
    assert len(lines) == (min(32, -(-size // 2)) if colour else 32)
    assert all(len(line) == min(64, size) for line in lines)
    if colour:
        red, green, blue = palette()[-1]
        assert f";2;{red};{green};{blue}" in coloured(text)
    else:
        assert [line.rstrip()[-1:] for line in lines if line.strip()] == ["█"]


def test_the_legend_says_what_is_beyond_the_scale() -> None:
    assert HeatMaps(0.0, 0.01, 0.9, False).legend().plain == "0   ░░▒▒▓▓██ 0.01 and more, the largest is 0.9"
    assert "and more" not in HeatMaps(0.0, 1.0, 1.0, False).legend().plain
