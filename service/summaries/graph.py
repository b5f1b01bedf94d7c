"""The exported analysis graphs, and what they are fed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import Float

from service.engine.job import Graph

TOLERANCES = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-5}
"""How far from 1 a row may sum, by the precision of the weights."""
BLOCK_CELLS = 1 << 18
"""More cells than this are fed in blocks of rows. The graph makes several matrices of its input's size, and a core's
cache holds these few: a quarter faster than whole. A GPU wants far more.
"""


class Runs(Protocol):
    """What is needed of `service.engine.session.Sessions`."""

    def run(
        self,
        graph: Graph,
        outputs: tuple[str, ...],
        masked: bool,
        feeds: Mapping[str, np.ndarray],
        switches: tuple[str, ...] = (),
    ) -> dict[str, np.ndarray]: ...


def open_graph(path: Path) -> Graph:
    """An analysis graph as the engine's sessions take it."""
    return Graph(f"analysis.{path.stem}", path, hashlib.sha256(path.read_bytes()).hexdigest()[:16])


def spans(shape: tuple[int, ...], cells: int) -> Iterator[tuple[int, int]]:
    """Rows from where to where, of about `cells` cells each."""
    batch, heads, queries, keys = shape
    rows = max(1, min(queries, cells // (batch * heads * keys)))
    for start in range(0, queries, rows):
        yield start, min(start + rows, queries)


def single(matrix: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """As the graphs take it: float32, contiguous."""
    return np.ascontiguousarray(matrix, dtype=np.float32)
