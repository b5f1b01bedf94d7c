"""The exported analysis graphs, and what they are fed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from service.engine.job import Graph
from service.summaries.layout import Layout

if TYPE_CHECKING:
    from jaxtyping import Bool, Float32, Int64

TOLERANCES = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-5}
"""How far from 1 a row may sum, by the precision of the weights."""
BLOCK_CELLS = 1 << 18
"""More cells than this are fed in blocks of rows. The graph makes several matrices of its input's size, and a core's
cache holds these few: a quarter faster than whole. A GPU wants far more.
"""
NEEDS = {"distance": "distances"}
"""Outputs of the graph of one matrix that need an input which takes a while to make."""


def open_graph(path: Path) -> Graph:
    """An analysis graph as the engine's sessions take it."""
    return Graph(f"analysis.{path.stem}", path, hashlib.sha256(path.read_bytes()).hexdigest()[:16])


def row_feeds(
    layout: Layout,
    outputs: tuple[str, ...],
    tolerance: float,
    padding: Bool[np.ndarray, "#batch queries"] | None = None,
) -> dict[str, np.ndarray]:
    """What the graph of one matrix is fed beside the matrix, for these outputs; `padding` is true for queries that are
    none.
    """
    placed = layout.places >= 0
    return {
        **layout.feeds(frozenset(NEEDS[name] for name in outputs if name in NEEDS)),
        "profiled": placed[None] if padding is None else placed & ~padding,
        "tolerance": np.array(tolerance, np.float64),
    }


def uniform(
    visible: Bool[np.ndarray, "#batch #heads queries keys"] | None, queries: int, keys: int
) -> tuple[Float32[np.ndarray, "#batch #heads queries keys"], Int64[np.ndarray, "#batch #heads queries"]]:
    """The weights of attention that gives every visible key the same, and how many keys each row sees."""
    if visible is None:
        return np.full((1, 1, queries, keys), 1 / keys, np.float32), np.full((1, 1, queries), keys)
    count = np.count_nonzero(visible, axis=-1)
    return visible * (1 / np.maximum(count, 1)).astype(np.float32)[..., None], count


def spans(shape: tuple[int, ...], cells: int) -> Iterator[tuple[int, int]]:
    """Rows from where to where, of about `cells` cells each."""
    batch, heads, queries, keys = shape
    rows = max(1, min(queries, cells // (batch * heads * keys)))
    for start in range(0, queries, rows):
        yield start, min(start + rows, queries)
