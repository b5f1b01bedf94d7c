from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from service.pictures.chart import GROUP_COLOURS, Chart, Level, draw
from service.pictures.ticks import Axis


def chart(values: np.ndarray, **more: object) -> Chart:
    return Chart("Frequencies", ["Details."], Axis("pair", range(len(values))), values, "radians per position", **more)  # type: ignore[arg-type]


def centre(png: bytes, colour: tuple[int, int, int]) -> np.ndarray:
    """The middle of everything in that colour: down, across."""
    image = np.asarray(Image.open(io.BytesIO(png)))
    return np.array(np.argwhere((image == colour).all(-1)).mean(0))


def test_each_group_has_its_colour_and_a_faster_one_is_higher() -> None:
    values = np.geomspace(1, 1e-4, 3)
    png = draw(chart(values, groups=("fast", "medium", "slow"), group=(0, 1, 2)))
    image = np.asarray(Image.open(io.BytesIO(png)))
    height = image.shape[0] - 100  # the legend below repeats the colours
    places = []
    for colour in GROUP_COLOURS[:3]:
        points = np.argwhere((image[:height] == colour).all(-1))
        assert len(points) > 20
        places.append(points.mean(0))
    down, across = np.array(places).T
    assert (np.diff(down) > 50).all()
    assert np.allclose(np.diff(across), np.diff(across)[0], atol=2)
    assert np.allclose(np.diff(down), np.diff(down)[0], atol=2)  # equal ratios are equal steps


def test_zeros_are_drawn_on_the_lower_edge() -> None:
    values = np.array([1.0, 0.5, 0.0, 0.0])
    blue = draw(chart(values, groups=("on", "off"), group=(0, 0, 1, 1)))
    without = draw(chart(np.array([1.0, 0.5]), groups=("on", "off"), group=(0, 0)))
    assert centre(blue, GROUP_COLOURS[1])[0] > centre(blue, GROUP_COLOURS[0])[0]
    assert not np.isnan(centre(without, GROUP_COLOURS[0])).any()


@pytest.mark.parametrize("values", [[1.0], [0.0], [1.0, 1.0], list(np.geomspace(1, 1e-18, 400))])
@pytest.mark.parametrize("zoom", [1, 2])
def test_any_values_can_be_drawn(values: list[float], zoom: int) -> None:
    png = draw(chart(np.array(values), other=2 * np.pi, other_title="wavelength", levels=[Level(0.1, "here")]), zoom)
    image = Image.open(io.BytesIO(png))
    assert image.size[0] == zoom * (36 + 78 + 520 + 84)


def test_nothing_is_no_chart() -> None:
    with pytest.raises(ValueError, match="no values"):
        draw(chart(np.array([])))
