"""What is asked of an encoding about positions, and the answer. NumPy only; no HTTP, no onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool

from service.records import Timings

PICTURED = ("bias", "similarity", "weights", "vectors", "frequencies")
VIEWS = (*PICTURED, "tables")
DEFAULT_VIEWS = ("bias", "similarity", "vectors", "frequencies", "tables")
"""Those of them that the encoding has."""


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """A question. Queries and keys stand at `offset`, `offset + 1`, ...; None takes what suits the model.

    `scalars` are parameters as sent, by dotted name. No `views` are the default ones.
    """

    encoding: str
    model: str | None = None
    queries: int = 64
    keys: int = 64
    width: int | None = None
    heads: int | None = None
    causal: bool | None = None
    offset: float = 0.0
    scalars: Mapping[str, str] = field(default_factory=dict)
    views: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """One array: what its axes count, and what its numbers are."""

    axes: tuple[str, ...]
    description: str
    values: np.ndarray


@dataclass(slots=True)
class PositionViews:
    """The answer: views by name, and position tables by theirs. `terms` are what the view `bands` counts;
    `nonfinite_cells` counts NaN and infinities among scores and weights."""

    model: str
    encoding: str
    title: str
    heads: int
    head_dim: int
    queries: int
    keys: int
    offset: float
    causal: bool
    parameters: Mapping[str, Any]
    conventions: Mapping[str, str]
    terms: tuple[str, ...]
    views: Mapping[str, View]
    tables: Mapping[str, View]
    nonfinite_cells: int
    timings: Timings

    def arrays(self) -> Mapping[str, View]:
        """Every array, tables under `tables/<name>`."""
        return {**self.views, **{f"tables/{name}": table for name, table in self.tables.items()}}

    @property
    def cells(self) -> int:
        """How many numbers the answer holds."""
        return sum(view.values.size for view in self.arrays().values())

    @property
    def visible(self) -> Bool[np.ndarray, "queries keys"] | None:
        """Which keys a query sees; None where it sees all."""
        if not self.causal:
            return None
        return np.tri(self.queries, self.keys, dtype=np.bool_)
