"""What the analysis graphs say of each row, and which rows may be read for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

from service.summaries.layout import Layout
from service.summaries.shapes import Rows, Selection

DIAGONALS = ("diagonals", "uniform_diagonals", "pair_diagonals")


@dataclass(frozen=True, slots=True, eq=False)
class RowNumbers:
    """The graph's numbers for every row, and which rows may be read for what."""

    numbers: Mapping[str, Float[np.ndarray, "batch heads queries"]]
    places: Int64[np.ndarray, " queries"]
    visible_keys: Rows
    real: Selection
    counted: Selection
    forced: Selection
    free: Selection

    @classmethod
    def of(
        cls, numbers: Mapping[str, np.ndarray], layout: Layout, padding: Bool[np.ndarray, "#batch queries"] | None
    ) -> RowNumbers:
        shape = numbers["counted"].shape
        real = np.ones(shape, bool) if padding is None else np.broadcast_to(~padding[:, None], shape)
        counted = (numbers["counted"] > 0.5) & real
        # Where nothing is masked the graph is not asked.
        visible_keys = numbers["visible_keys"].astype(np.float64) if "visible_keys" in numbers else None
        visible_keys = np.full(shape, float(layout.keys)) if visible_keys is None else visible_keys
        forced = counted & (visible_keys == 1)
        return cls(numbers, layout.places, visible_keys, real, counted, forced, counted & ~forced)

    def __getitem__(self, name: str) -> Rows:
        return self.numbers[name].astype(np.float64)

    @property
    def entropy(self) -> Rows:
        return self["entropy" if "entropy" in self.numbers else "entropy_of_scores"]

    @property
    def why_none(self) -> str | None:
        """Why a head without any counted row has none."""
        if not self.real.any(axis=-1).all():
            return "all rows are padding"
        if not self.counted.any(axis=-1).all():
            return "no row is counted: they see no key, hold NaN or infinity, or do not sum to 1"
        return None


def concatenate(blocks: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The numbers of all rows from those of blocks of rows, in order. Sums over rows are added up."""
    return {
        name: sum((block[name] for block in blocks[1:]), start=blocks[0][name])
        if name in DIAGONALS
        else np.concatenate([block[name] for block in blocks], axis=2)
        for name in blocks[0]
    }
