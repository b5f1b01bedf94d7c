"""Answers as figures: which panels, which titles, which axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import pi
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int32

from service.errors import InvalidInput
from service.masks import Sight, Visible, combine, read_mask
from service.pictures import chart, heat_maps
from service.pictures.chart import Chart, Level
from service.pictures.heat_maps import MOST_PANELS, HeatMaps, Layout, Panel
from service.pictures.ticks import Axis
from service.positions import Positions
from service.records import AttentionInput, EncodingResult, ScoringResult
from service.selection import HIDDEN
from service.views.records import PositionViews

MOST_PIXELS = 1 << 25
ROW_OF_HEADS = 8
"""Up to so many heads stand side by side, one row for each encoding."""

_TITLES = {
    "bias": "what is added whatever the content",
    "similarity": "scores of equal tokens",
    "weights": "attention among equal tokens",
    "vectors": "position vectors",
    "frequencies": "how fast each pair turns",
}
_QUANTITIES = {"bias": "score", "similarity": "score", "weights": "attention weight", "vectors": "component of p"}


def png(figure: HeatMaps | Chart, zoom: int) -> bytes:
    """The figure as PNG. Raises InvalidInput for one of too many panels or pixels."""
    if isinstance(figure, Chart):
        return chart.draw(figure, zoom)
    if len(figure.panels) > MOST_PANELS:
        raise InvalidInput(
            f"a picture has at most {MOST_PANELS} panels, but this would have {len(figure.panels)} "
            "(one for each encoding, term and head); ask for fewer heads, encodings or terms, or for numbers",
            pointer="header:Accept",
            limit=MOST_PANELS,
        )
    layout = Layout(figure)
    if (pixels := layout.width * layout.height * zoom**2) > MOST_PIXELS:
        raise InvalidInput(
            f"the picture would have {pixels:,} pixels at zoom={zoom}; the limit is {MOST_PIXELS:,}",
            pointer="query:zoom",
            limit=MOST_PIXELS,
        )
    return heat_maps.draw(layout, zoom)


def of_positions(result: PositionViews) -> HeatMaps | Chart:
    """The first view of the answer. Raises InvalidInput where it has nothing to show."""
    name, view = next(iter(result.views.items()))
    title = f"{result.encoding}: {_TITLES[name]}"
    last = max(result.queries, result.keys) - 1 + result.offset
    sizes = f"{result.model}: {_heads(result.heads, result.head_dim)}, positions {result.offset:g} to {last:g}"
    description = view.description.replace("`", "")
    details = [
        f"{description[0].upper()}{description[1:]}.",
        f"{result.title}. {sizes}{', causal' if result.causal else ''}.",
        *_parameters(result.parameters),
    ]
    positions = _numbers(result.offset, result.queries), _numbers(result.offset, result.keys)
    if name == "frequencies":
        return _frequencies(result, title, details)
    if name == "vectors":
        width = result.heads * result.head_dim
        panel = Panel("one row for each position", view.values)
        rows, columns = Axis("position", positions[0]), Axis("component", range(width))
        return HeatMaps(title, details, [panel], rows, columns, _QUANTITIES[name])
    return HeatMaps(
        title,
        details,
        [Panel(f"head {head}", values, result.visible) for head, values in enumerate(view.values)],
        Axis("query position", positions[0]),
        Axis("key position", positions[1]),
        _QUANTITIES[name],
        from_zero=name == "weights",
    )


def of_attention(input: AttentionInput, result: ScoringResult) -> HeatMaps:
    """The weights; where none were asked for the scores, or else the terms: a panel for each encoding and head.

    Raises InvalidInput for a batch, and where no matrix was asked for.
    """
    if (result.batch or 1) > 1:
        raise InvalidInput(
            f"a picture shows one input, but a batch of {result.batch} came; send embeddings [tokens, width]",
            pointer="header:Accept",
        )
    kind, quantity = _kind(result.results[0])
    queries, keys = _positions(input, result)
    visible = _visible(input, result, queries, keys)
    heads = range(result.heads) if result.head is None else result.head
    panels = [
        Panel(f"{name}, head {head}", matrix[i], seen[i] if seen is not None else _of_head(visible, head))
        for one in result.results
        for name, matrix, seen in _matrices(one, kind, result)
        for i, head in enumerate(heads)
    ]
    names = ", ".join(one.name for one in result.results)
    tokens = result.tokens
    named = tokens if input.embeddings is not None else None
    if named is not None and result.rows is not None:
        named = [named[row] for row in result.rows]
    return HeatMaps(
        f"Attention {quantity}s: {names}" if kind != "terms" else f"Terms of the scores: {names}",
        [
            f"{result.model}: {_heads(result.heads, result.head_dim)}{', causal' if result.causal else ''}.",
            *(f"{one.name}: {line}" for one in result.results for line in _parameters(one.parameters)),
        ],
        panels,
        Axis("query", list(queries.values), named),
        Axis("key", list(keys.values), tokens),
        f"attention {quantity}" if kind != "terms" else quantity,
        from_zero=kind == "weights",
        across=len(heads) if 1 < len(heads) <= ROW_OF_HEADS and len(panels) > len(heads) else None,
        **({} if result.top_k is None else {"masked": f"not among the {result.top_k} largest keys of this query"}),
    )


def _kind(one: EncodingResult) -> tuple[str, str]:
    matrices = one if one.top_k is None else one.top_k
    if matrices.weights is not None:
        return "weights", "weight"
    if matrices.scores is not None:
        return "scores", "score"
    if matrices.terms:
        return "terms", "part of the score"
    raise InvalidInput("a picture shows weights, scores or terms; add one of them to return", pointer="query:return")


def _matrices(
    one: EncodingResult, kind: str, result: ScoringResult
) -> Iterator[tuple[str, Float[np.ndarray, "heads queries keys"], Bool[np.ndarray, "heads queries keys"] | None]]:
    """Each with its name and what is seen of it, where that is not what the mask lets through."""
    matrices = one if one.top_k is None else one.top_k
    if kind == "terms":
        named = [(f"{one.name}: {term}", matrix) for term, matrix in (matrices.terms or {}).items()]
    else:
        matrix = matrices.weights if kind == "weights" else matrices.scores
        named = [(one.name, matrix)] if matrix is not None else []
    for name, matrix in named:
        matrix = matrix if result.batch is None else matrix[0]
        if one.top_k is None:
            yield name, matrix, None
        else:
            indices = one.top_k.indices if result.batch is None else one.top_k.indices[0]
            yield name, *_spread(matrix, indices, result.keys)


def _spread(
    values: Float[np.ndarray, "heads queries k"], indices: Int32[np.ndarray, "heads queries k"], keys: int
) -> tuple[Float[np.ndarray, "heads queries keys"], Bool[np.ndarray, "heads queries keys"]]:
    """The values at their keys, and where these are."""
    whole = np.zeros((*indices.shape[:-1], keys + 1), values.dtype)
    seen = np.zeros(whole.shape, bool)
    places = np.where(indices == HIDDEN, keys, indices)
    np.put_along_axis(whole, places, values, axis=-1)
    np.put_along_axis(seen, places, True, axis=-1)
    return whole[..., :keys], seen[..., :keys]


def _positions(input: AttentionInput, result: ScoringResult) -> tuple[Positions, Positions]:
    """Of the queries that are shown, and of the keys."""

    def of(own: np.ndarray | None, count: int) -> Positions:
        given = input.positions if own is None else own
        return Positions.first(count) if given is None else Positions.of(given)

    queries = of(input.query_positions, result.queries)
    if result.rows is not None:
        queries = Positions.of(queries.values[list(result.rows)])
    return queries, of(input.key_positions, result.keys)


def _visible(input: AttentionInput, result: ScoringResult, queries: Positions, keys: Positions) -> Visible | None:
    """[heads or 1, queries, keys], as scoring had it."""
    seen = Sight(result.causal, result.window).mask(queries.values, keys.values)
    mask = None
    if input.mask is not None:
        mask = read_mask(input.mask, result.batch, result.heads, result.queries, result.keys)
        if result.rows is not None and mask.shape[2] > 1:
            mask = mask[:, :, list(result.rows)]
    visible = combine(mask, seen, len(queries), len(keys))
    return None if visible is None else visible[0]


def _of_head(visible: Visible | None, head: int) -> Visible | None:
    return None if visible is None else visible[head % len(visible)]


def _frequencies(result: PositionViews, title: str, details: Sequence[str]) -> Chart:
    values = result.views["frequencies"].values
    if not values.size:
        raise InvalidInput(
            f"no pair of components turns under these parameters, so {result.encoding} has no frequencies to draw",
            pointer="query:view",
        )
    length = max(result.queries, result.keys)
    bands = result.views.get("bands")
    return Chart(
        title,
        details,
        Axis("pair of components", range(len(values))),
        values,
        "radians per position",
        groups=result.terms if bands is not None else (),
        group=[int(band) for band in bands.values] if bands is not None else (),
        other=2 * pi,
        other_title="wavelength in positions",
        levels=[Level(2 * pi / length, f"one full turn in {length} positions")],
    )


def _heads(heads: int, head_dim: int) -> str:
    return f"{heads} head{'s' if heads > 1 else ''} of {head_dim}"


def _parameters(parameters: Mapping[str, Any]) -> list[str]:
    shown = []
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            shown.append(f"{name} {value['shape']} {value['source'].removeprefix('default: ')}")
        elif isinstance(value, list):
            shown.append(
                f"{name} = {', '.join(f'{number:g}' for number in value[:6])}{', ...' if len(value) > 6 else ''}"
            )
        else:
            shown.append(f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}")
    return [f"{'; '.join(shown)}."] if shown else []


def _numbers(offset: float, count: int) -> list[float]:
    return [offset + index for index in range(count)]
