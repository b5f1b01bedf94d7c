from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from jaxtyping import UInt8
from PIL import Image

from service.pictures import heat_maps
from service.pictures.canvas import SMALL, Box, length
from service.pictures.colours import CROSS, HATCH, MASKED, NAN, SIGNED, VIRIDIS, WHITE
from service.pictures.heat_maps import Cells, HeatMaps, Layout, Panel, pooled
from service.pictures.ticks import Axis

Pixels = UInt8[np.ndarray, "height width 3"]


def figure(*values: np.ndarray, visible: np.ndarray | None = None, **more: Any) -> HeatMaps:
    rows, columns = values[0].shape
    panels = [Panel(f"head {index}", one, visible) for index, one in enumerate(values)]
    axes = Axis("query", range(rows)), Axis("key", range(columns))
    return HeatMaps("A title", ["Details."], panels, more.pop("rows", axes[0]), more.pop("columns", axes[1]), **{
        "quantity": "score", **more
    })  # fmt: skip


def painted(layout: Layout, zoom: int = 1) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(heat_maps.draw(layout, zoom))))


def inside(image: Pixels, box: Box, zoom: int = 1) -> Pixels:
    return image[box.top * zoom : box.bottom * zoom, box.left * zoom : box.right * zoom]


def cell(image: Pixels, layout: Layout, panel: int, row: int, column: int, zoom: int = 1) -> tuple[int, ...]:
    """The one colour of a cell."""
    cells = layout.cells
    down, across = cells.height * zoom, cells.width * zoom
    pixels = inside(image, layout.panels[panel], zoom)[
        row * down : (row + 1) * down, column * across : (column + 1) * across
    ]
    colours = {tuple(map(int, colour)) for colour in pixels.reshape(-1, 3)}
    assert len(colours) == 1
    return colours.pop()


RANDOM = np.random.default_rng(0).standard_normal((3, 12, 12))


@pytest.mark.parametrize("zoom", [1, 2])
@pytest.mark.parametrize("values", [RANDOM, np.abs(RANDOM), RANDOM - 9], ids=["signed", "positive", "negative"])
def test_every_cell_has_the_colour_that_the_legend_shows_for_its_number(values: np.ndarray, zoom: int) -> None:
    layout = Layout(figure(*values))
    image = painted(layout, zoom)
    bar = inside(image, layout.bar, zoom)
    for panel, row, column in np.ndindex(*values.shape):
        place = min(layout.scale.place(float(values[panel, row, column])), 255.999)
        shown = bar[0, int(place) * zoom]
        assert cell(image, layout, panel, row, column, zoom) == tuple(shown)


def test_the_legend_is_the_whole_table() -> None:
    for values, table in ((RANDOM, SIGNED), (np.abs(RANDOM), VIRIDIS)):
        layout = Layout(figure(*values))
        assert np.array_equal(inside(painted(layout), layout.bar), np.broadcast_to(table, (layout.bar.height, 256, 3)))


def test_the_same_number_has_the_same_colour_in_every_panel() -> None:
    first, second = RANDOM[0].copy(), 100 * RANDOM[1]
    first[2, 3] = second[7, 8] = 1.25
    layout = Layout(figure(first, second))
    image = painted(layout)
    assert cell(image, layout, 0, 2, 3) == cell(image, layout, 1, 7, 8)
    assert "same colour in every panel" in layout.notes[0]


def test_queries_go_downwards_and_keys_to_the_right() -> None:
    values = np.zeros((4, 6))
    values[3, 1] = 1
    layout = Layout(figure(values))
    image = painted(layout)
    brightest = {(row, column) for row, column in np.ndindex(4, 6) if cell(image, layout, 0, row, column) ==
                 tuple(VIRIDIS[-1])}  # fmt: skip
    assert brightest == {(3, 1)}


def test_masked_cells_are_hatched_grey_and_do_not_stretch_the_scale() -> None:
    values = RANDOM[0].copy()
    values[0, 5] = 1000
    visible = np.tri(12, dtype=bool)
    layout = Layout(figure(values, visible=visible))
    assert layout.scale.high < 10
    image = painted(layout)
    side = layout.cells.width
    pixels = inside(image, layout.panels[0])[: 2 * side, 5 * side : 7 * side].reshape(-1, 3)
    assert {tuple(map(int, colour)) for colour in pixels} == {MASKED, HATCH}
    assert ("masked", "masked: this query does not see this key") in layout.swatches


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_what_is_no_finite_number_is_crossed_magenta_and_counted(broken: float) -> None:
    values = RANDOM[0].copy()
    values[4, 5] = values[1, 10] = broken
    visible = np.tri(12, dtype=bool)
    layout = Layout(figure(values, visible=visible))
    image = painted(layout)
    side = layout.cells.width
    pixels = inside(image, layout.panels[0])[4 * side : 5 * side, 5 * side : 6 * side].reshape(-1, 3)
    assert {tuple(map(int, colour)) for colour in pixels} == {MASKED, HATCH}  # key 5 is after query 4
    layout = Layout(figure(values))
    pixels = inside(painted(layout), layout.panels[0])[4 * side : 5 * side, 5 * side : 6 * side].reshape(-1, 3)
    assert {tuple(map(int, colour)) for colour in pixels} == {NAN, CROSS}
    assert ("nan", "not a finite number: 2 cells") in layout.swatches


def test_a_broken_cell_leaves_the_others_as_they_are() -> None:
    values = RANDOM[0].copy()
    values[np.unravel_index(np.abs(values).argmin(), values.shape)] = np.nan
    whole, broken = Layout(figure(RANDOM[0])), Layout(figure(values))
    before, after = (inside(painted(layout), layout.panels[0]) for layout in (whole, broken))
    changed = (before != after).any(-1)
    assert changed.sum() == whole.cells.width**2


def test_a_matrix_of_nothing_but_masked_or_broken_cells_is_drawn() -> None:
    for values, visible in ((RANDOM[0], np.zeros((12, 12), bool)), (np.full((12, 12), np.nan), None)):
        layout = Layout(figure(values, visible=visible))
        assert painted(layout).shape[0] == layout.height


def test_a_large_matrix_is_pooled_and_says_so() -> None:
    values = np.zeros((2100, 2100))
    values[1234, 777] = 1.0
    layout = Layout(figure(values))
    assert (layout.cells.rows, layout.cells.columns) == (3, 3)
    assert any("Max-pooled: each cell shows the largest number of 3 x 3" in note for note in layout.notes)
    image = inside(painted(layout), layout.panels[0])
    bright = np.argwhere((image == VIRIDIS[-1]).all(-1))
    assert bright.tolist() == [[1234 // 3, 777 // 3]]


def test_pooling_keeps_the_extremes_of_both_signs() -> None:
    values = np.array([[1.0, -5.0, 2.0], [0.0, 1.0, -1.0], [0.5, 0.2, 7.0]])
    largest, seen = pooled(values, None, 2, 2, magnitude=True)
    assert largest.tolist() == [[-5.0, 2.0], [0.5, 7.0]]
    assert seen.all()
    assert pooled(values, None, 2, 2, magnitude=False)[0].tolist() == [[1.0, 2.0], [0.5, 7.0]]


def test_pooling_loses_no_broken_cell_and_shows_what_any_query_sees() -> None:
    values = np.array([[1.0, np.nan], [3.0, 4.0]])
    visible = np.array([[True, True], [False, False]])
    numbers, seen = pooled(values, visible, 1, 2, magnitude=False)
    assert np.isnan(numbers[0, 0])
    assert seen.tolist() == [[True], [False]]
    numbers, _ = pooled(values, np.array([[True, False], [True, False]]), 2, 2, magnitude=False)
    assert numbers.tolist() == [[3.0]]


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (64, 64), (1, 1000), (1000, 1), (64, 4000), (5000, 3)])
@pytest.mark.parametrize("panels", [1, 3, 8, 64])
def test_cells_are_whole_points_and_panels_of_bearable_size(shape: tuple[int, int], panels: int) -> None:
    layout = Layout(figure(*[np.zeros(shape)] * panels))
    for box in layout.panels:
        assert box.width % layout.cells.width == 0
        assert box.height % layout.cells.height == 0
        assert 24 <= box.width <= 1024
        assert 24 <= box.height <= 1024
        assert 0 < box.left < box.right < layout.width
        assert 0 < box.top < box.bottom < layout.bar.top
    assert layout.width * layout.height < 8_000_000


def test_square_matrices_have_square_cells() -> None:
    assert Cells.fit(64, 64, 512, 1024) == Cells(8, 8)
    assert Cells.fit(64, 128, 512, 1024) == Cells(4, 4)
    assert Cells.fit(1, 512, 512, 1024) == Cells(36, 1)


def test_names_of_a_sentences_tokens_have_room_in_every_one_of_several_panels() -> None:
    names = [f"token{i}" for i in range(21)]
    axes: dict[str, Any] = {"rows": Axis("query", range(21), names), "columns": Axis("key", range(21), names)}
    for panels in (1, 4, 6, 9):
        assert labels(Layout(figure(*[np.eye(21)] * panels, **axes))) == (names, names)
    many = Layout(figure(*[np.eye(21)] * 64, **axes))
    assert labels(many)[0][:2] == ["0", "5"]  # or the picture would be too large


@pytest.mark.parametrize(("panels", "across"), [(1, 1), (2, 2), (3, 3), (4, 2), (6, 3), (7, 3), (8, 4), (16, 4)])
def test_panels_stand_in_rows_without_gaps_where_there_is_a_way(panels: int, across: int) -> None:
    assert len({box.left for box in Layout(figure(*[RANDOM[0]] * panels)).panels}) == across


def labels(layout: Layout) -> tuple[list[str], list[str]]:
    return [text for _, text in layout.row_labels], [text for _, text in layout.column_labels]


def test_tokens_are_named_where_all_of_them_fit() -> None:
    tokens = [f"token{index}" for index in range(12)]
    named = Layout(figure(RANDOM[0], rows=Axis("query", range(12), tokens), columns=Axis("key", range(12), tokens)))
    assert labels(named) == (tokens, tokens)
    assert named.column_names
    many = [f"token{index}" for index in range(200)]
    axes: dict[str, Any] = {"rows": Axis("query", range(200), many), "columns": Axis("key", range(200), many)}
    thinned = Layout(figure(np.zeros((200, 200)), **axes))
    assert labels(thinned)[0][:3] == ["0", "20", "40"]
    assert not thinned.column_names


def spans(places: Sequence[tuple[float, float]]) -> list[float]:
    """The room between each label and the next."""
    ordered = sorted(places)
    return [after[0] - before[1] for before, after in pairwise(ordered)]


@pytest.mark.parametrize("count", [3, 10, 64, 100, 333, 1000, 3000])
@pytest.mark.parametrize("offset", [0, 7, 1_000_000])
def test_labels_do_not_overlap(count: int, offset: int) -> None:
    axis = Axis("key", range(offset, offset + count))
    layout = Layout(figure(np.zeros((count, count)), rows=axis, columns=axis))
    cells = layout.cells
    across = [
        ((index / cells.columns) * cells.width - half, (index / cells.columns) * cells.width + half)
        for index, text in layout.column_labels
        for half in [length(text, SMALL) / 2]
    ]
    down = [((index / cells.rows) * cells.height, (index / cells.rows) * cells.height + 11) for index, _ in
            layout.row_labels]  # fmt: skip
    assert all(room >= 2 for room in spans(across))
    assert all(room >= 2 for room in spans(down))
    assert len(across) >= min(count, 2)


def test_the_legend_begins_and_ends_with_its_bounds() -> None:
    layout = Layout(figure(np.array([[1.672, 4.0]])))
    numbers = layout.legend()
    assert numbers[0] == (0.0, "1.672")
    assert numbers[-1] == (256.0, "4")
    assert "3" in [text for _, text in numbers]
    signed = Layout(figure(np.array([[-1.0, 4.0]]))).legend()
    assert [text for _, text in signed if text == "0"]
    assert [at for at, text in signed if text == "0"] == [128.5]
    assert "Numbers from -1 to 4" in Layout(figure(np.array([[-1.0, 4.0]]))).notes[0]


def test_weights_are_shown_from_zero() -> None:
    layout = Layout(figure(np.array([[0.2, 0.8]]), from_zero=True))
    assert (layout.scale.low, layout.scale.high) == (0.0, 0.8)


def test_the_sheet_is_white_and_says_what_it_shows() -> None:
    layout = Layout(figure(RANDOM[0]))
    image = painted(layout)
    assert tuple(image[0, 0]) == WHITE
    assert image.shape == (layout.height, layout.width, 3)
    about = Image.open(io.BytesIO(heat_maps.draw(layout))).info
    assert about["Title"] == "A title"
    assert "Details." in about["Description"]


def test_the_same_figure_is_the_same_file() -> None:
    assert heat_maps.draw(Layout(figure(*RANDOM)), 2) == heat_maps.draw(Layout(figure(*RANDOM)), 2)
