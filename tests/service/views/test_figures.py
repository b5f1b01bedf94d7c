"""Which panels, titles and axes an answer gets; what the pixels are is tested with the pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.errors import InvalidInput
from service.pictures.chart import Chart
from service.pictures.heat_maps import HeatMaps
from service.records import AttentionInput, EncodingResult, ScoringResult, Timings, TopK
from service.views import figures
from service.views.records import PositionViews, View


def positions(name: str, values: np.ndarray, **more: Any) -> PositionViews:
    fields: dict[str, Any] = {
        "model": "identity",
        "encoding": "plain",
        "title": "Plain",
        "heads": 2,
        "head_dim": 4,
        "queries": 3,
        "keys": 5,
        "offset": 0.0,
        "causal": False,
        "parameters": {"theta": 10_000.0, "table": {"shape": [3, 4], "source": "default: zeros"}},
        "conventions": {},
        "terms": ("fast", "slow"),
        "tables": {},
        "nonfinite_cells": 0,
        "timings": Timings(),
    }
    views = {name: View(("any",), "what it `is`", values), **more.pop("views", {})}
    return PositionViews(**{**fields, **more}, views=views)


def heat_maps(figure: HeatMaps | Chart) -> HeatMaps:
    assert isinstance(figure, HeatMaps)
    return figure


def test_a_matrix_of_scores_has_a_panel_for_each_head() -> None:
    figure = heat_maps(figures.of_positions(positions("bias", np.zeros((2, 3, 5)), offset=10.0)))
    assert [panel.title for panel in figure.panels] == ["head 0", "head 1"]
    assert list(figure.rows.numbers) == [10, 11, 12]
    assert list(figure.columns.numbers) == [10, 11, 12, 13, 14]
    assert figure.title == "plain: what is added whatever the content"
    assert figure.details == [
        "What it is.",
        "Plain. identity: 2 heads of 4, positions 10 to 14.",
        "theta = 10000; table [3, 4] zeros.",
    ]


def test_causal_views_are_masked() -> None:
    figure = heat_maps(figures.of_positions(positions("weights", np.zeros((2, 3, 5)), causal=True)))
    visible = figure.panels[0].visible
    assert visible is not None
    assert visible.tolist() == [[n <= m for n in range(5)] for m in range(3)]
    assert figure.from_zero
    assert "causal" in figure.details[1]


def test_vectors_are_one_panel_of_positions_by_components() -> None:
    figure = heat_maps(figures.of_positions(positions("vectors", np.zeros((3, 8)), causal=True)))
    (panel,) = figure.panels
    assert panel.visible is None
    assert (figure.rows.title, len(figure.rows)) == ("position", 3)
    assert (figure.columns.title, len(figure.columns)) == ("component", 8)


def test_frequencies_are_a_chart_with_their_bands() -> None:
    bands = View(("pairs",), "bands", np.array([0, 0, 1]))
    figure = figures.of_positions(positions("frequencies", np.array([1.0, 0.1, 0.01]), views={"bands": bands}))
    assert isinstance(figure, Chart)
    assert [figure.groups[group] for group in figure.group] == ["fast", "fast", "slow"]
    assert figure.levels[0].value == pytest.approx(2 * np.pi / 5)


def test_no_frequencies_are_no_chart() -> None:
    with pytest.raises(InvalidInput, match="no pair of components turns"):
        figures.of_positions(positions("frequencies", np.array([])))


def scored(*encodings: str, batch: int | None = None, causal: bool = False, **matrices: Any) -> ScoringResult:
    return ScoringResult(
        model="identity",
        batch=batch,
        heads=2,
        queries=3,
        keys=3,
        head_dim=4,
        causal=causal,
        results=[EncodingResult(name, {"theta": 1.0} if name == "rope" else {}, {}, **matrices) for name in encodings],
        tokens=["a", "b", "c"],
        timings=Timings(),
    )


EMBEDDINGS = AttentionInput(embeddings=np.zeros((3, 8), np.float32))
MATRIX = np.arange(18, dtype=np.float32).reshape(2, 3, 3)


def test_an_encoding_with_a_label_is_titled_by_its_name() -> None:
    result = scored("rope", "rope", weights=MATRIX, terms={"fast": MATRIX})
    result.results[1].label = "long"
    figure = figures.of_attention(EMBEDDINGS, result)
    titles = ["rope, head 0", "rope, head 1", "rope@long, head 0", "rope@long, head 1"]
    assert [panel.title for panel in figure.panels] == titles
    assert figure.title == "Attention weights: rope, rope@long"
    assert "rope@long: theta = 1." in figure.details
    for one in result.results:
        one.weights = None
    assert figures.of_attention(EMBEDDINGS, result).panels[2].title == "rope@long: fast, head 0"


def test_each_encoding_is_a_row_of_heads_on_one_scale() -> None:
    figure = figures.of_attention(EMBEDDINGS, scored("rope", "alibi", weights=MATRIX, scores=MATRIX))
    titles = ["rope, head 0", "rope, head 1", "alibi, head 0", "alibi, head 1"]
    assert [panel.title for panel in figure.panels] == titles
    assert figure.across == 2
    assert figure.title == "Attention weights: rope, alibi"
    assert figure.details == ["identity: 2 heads of 4.", "rope: theta = 1."]
    assert (figure.quantity, figure.from_zero) == ("attention weight", True)
    assert figure.rows.names == figure.columns.names == ["a", "b", "c"]
    assert np.array_equal(figure.panels[3].values, MATRIX[1])


def test_scores_are_shown_where_there_are_no_weights_and_terms_where_there_is_neither() -> None:
    scores = figures.of_attention(EMBEDDINGS, scored("rope", scores=MATRIX, terms={"fast": MATRIX}))
    assert (scores.quantity, scores.from_zero) == ("attention score", False)
    terms = figures.of_attention(EMBEDDINGS, scored("rope", terms={"fast": MATRIX, "slow": 2 * MATRIX}))
    assert [panel.title for panel in terms.panels][::2] == ["rope: fast, head 0", "rope: slow, head 0"]
    with pytest.raises(InvalidInput, match="weights, scores or terms"):
        figures.of_attention(EMBEDDINGS, scored("rope", output=MATRIX))


def test_one_input_is_shown_with_or_without_a_batch_axis() -> None:
    one = figures.of_attention(EMBEDDINGS, scored("rope", weights=MATRIX[None], batch=1))
    assert np.array_equal(one.panels[1].values, MATRIX[1])
    with pytest.raises(InvalidInput, match="batch of 2"):
        figures.of_attention(EMBEDDINGS, scored("rope", weights=np.stack([MATRIX, MATRIX]), batch=2))


def test_masked_keys_are_those_that_scoring_hid() -> None:
    mask = np.ones((1, 2, 3, 3))
    mask[0, 1, :, 0] = 0
    input = AttentionInput(embeddings=EMBEDDINGS.embeddings, mask=mask)
    figure = figures.of_attention(input, scored("rope", "t5", weights=MATRIX, causal=True))
    tril = np.tri(3, dtype=bool)
    for panel, expected in zip(figure.panels, [tril, tril & mask[0, 1].astype(bool)] * 2, strict=True):
        assert panel.visible is not None
        assert np.array_equal(panel.visible, expected)
    apart = AttentionInput(
        queries=EMBEDDINGS.embeddings, keys=EMBEDDINGS.embeddings, query_positions=np.array([5.0, 0.0, 1.0])
    )
    figure = figures.of_attention(apart, scored("rope", weights=MATRIX, causal=True))
    visible = figure.panels[0].visible
    assert visible is not None
    assert visible.tolist() == [[True] * 3, [True, False, False], [True, True, False]]
    assert figure.rows.names is None  # tokens name keys
    assert list(figure.rows.numbers) == [5, 0, 1]


def test_rows_and_heads_label_the_axis_and_the_panels() -> None:
    mask = np.ones((1, 2, 3, 3))
    mask[0, 1, 2, 0] = 0
    result = scored("rope", weights=MATRIX[[1]][:, [2, 0]], causal=True)
    result.rows, result.head = (2, 0), (1,)
    input = AttentionInput(embeddings=EMBEDDINGS.embeddings, positions=np.array([5.0, 6.0, 7.0]), mask=mask)
    figure = figures.of_attention(input, result)
    (panel,) = figure.panels
    assert panel.title == "rope, head 1"
    assert np.array_equal(panel.values, MATRIX[1, [2, 0]])
    assert panel.visible is not None
    assert panel.visible.tolist() == [[False, True, True], [True, False, False]]
    assert list(figure.rows.numbers) == [7, 5]
    assert figure.rows.names == ["c", "a"]
    assert list(figure.columns.numbers) == [5, 6, 7]
    assert figures.png(figure, 1).startswith(b"\x89PNG")


@pytest.mark.parametrize("batch", [None, 1])
def test_the_largest_keys_are_drawn_in_their_columns_and_the_others_left_out(batch: int | None) -> None:
    indices = np.array([[[2, 0], [1, -1], [0, 1]]] * 2, np.int32)
    weights = np.array([[[0.5, 0.25], [1, 0], [0.5, 0.5]]] * 2, np.float32)
    result = scored("rope", batch=batch)
    result.top_k = 2
    result.results[0].top_k = TopK(indices, weights) if batch is None else TopK(indices[None], weights[None])
    figure = figures.of_attention(EMBEDDINGS, result)
    for panel in figure.panels:
        assert panel.values.tolist() == [[0.25, 0, 0.5], [0, 1, 0], [0.5, 0.5, 0]]
        assert panel.visible is not None
        assert panel.visible.tolist() == [[True, False, True], [False, True, False], [True, True, False]]
    assert figure.masked == "not among the 2 largest keys of this query"
    assert figures.png(figure, 1).startswith(b"\x89PNG")


def test_too_many_panels_or_pixels_are_refused() -> None:
    many = figures.of_attention(EMBEDDINGS, scored(*["rope"] * 33, weights=MATRIX))
    with pytest.raises(InvalidInput, match="at most 64 panels, but this would have 66") as caught:
        figures.png(many, 1)
    assert caught.value.extra["limit"] == 64
    large = figures.of_positions(positions("bias", np.zeros((1, 2000, 2000)), queries=2000, keys=2000))
    assert figures.png(large, 2).startswith(b"\x89PNG")
    large = figures.of_positions(positions("bias", np.zeros((64, 200, 200)), heads=64, queries=200, keys=200))
    with pytest.raises(InvalidInput, match="pixels at zoom=4") as caught:
        figures.png(large, 4)
    assert caught.value.pointer == "query:zoom"
