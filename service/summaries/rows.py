"""What the analysis graphs say of each row, and which rows may be read for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int64, Num

from service.summaries.layout import Layout
from service.summaries.shapes import Matrix, Rows, Selection, Visible

LEAST = 1e-30
"""With sinks, a row that weighs less than this goes to no key: what is left has lost digits, or is 0 in float32."""
DIAGONALS = ("diagonals", "uniform_diagonals", "pair_diagonals")


@dataclass(frozen=True, slots=True, eq=False)
class RowNumbers:
    """The graph's numbers for every row, and which rows may be read for what. `uniform` has those of attention that
    gives every visible key the same. Selections have 1 of the batch and of the heads where all are alike.
    """

    numbers: Mapping[str, Float[np.ndarray, "batch heads queries"]]
    uniform: Mapping[str, Float[np.ndarray, "#batch #heads queries"]]
    places: Int64[np.ndarray, " queries"]
    visible_keys: Rows
    real: Selection
    counted: Selection
    forced: Selection
    free: Selection
    spent: Selection
    """Rows that see keys, but whose attention goes to sinks: less than `LEAST` is left. They are not counted."""
    heads: tuple[int, int]
    """Of the numbers: batch and heads."""
    _selections: dict[tuple[bool, int], Selection] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        numbers: Mapping[str, np.ndarray],
        counted: Selection,
        layout: Layout,
        *,
        visible_keys: Num[np.ndarray, "#batch #heads queries"] | None,
        padding: Bool[np.ndarray, "#batch queries"] | None,
        uniform: Mapping[str, np.ndarray] | None = None,
        spent: Selection | None = None,
    ) -> RowNumbers:
        """`visible_keys` is None where nothing is masked, `padding` true for queries that are none. `spent` may hold
        rows that see no key.
        """
        shape = counted.shape
        if padding is None:
            real = np.ones(shape, bool)
        else:
            real = np.broadcast_to(~padding[:, None], shape)
            counted = counted & real
        if visible_keys is None:
            seen = np.full(shape, float(layout.keys))
            forced = counted if layout.keys == 1 else np.zeros(shape, bool)
        else:
            seen = np.broadcast_to(np.asarray(visible_keys, dtype=np.float64), shape)
            forced = counted & (seen == 1)
        spent = np.zeros(shape, bool) if spent is None else spent & real & (seen >= 1)
        return cls(
            numbers, uniform or {}, layout.places, seen, real, counted, forced, counted & ~forced, spent, shape[:2]
        )

    def with_numbers(self, numbers: Mapping[str, np.ndarray], heads: tuple[int, int]) -> RowNumbers:
        """Others, of so many heads, whose rows may be read for the same."""
        return replace(self, numbers=numbers, heads=heads)

    def __getitem__(self, name: str) -> Rows:
        return self.numbers[name].astype(np.float64)

    def baseline(self, name: str) -> Rows:
        """Of uniform attention."""
        return np.broadcast_to(self.uniform[name], self.real.shape)

    def after(self, first: int, *, free: bool) -> Selection:
        """The rows whose place is `first` or later, and that are counted, or also free."""
        found = self._selections.get((free, first))
        if found is None:
            found = self._selections[free, first] = (self.free if free else self.counted) & (self.places >= first)
        return found

    def tally(self) -> Int64[np.ndarray, "4 #batch #heads"]:
        """How many rows are counted, forced, invalid and padding."""
        kinds = self.counted, self.forced, self.real & ~self.counted, ~self.real
        return np.stack([rows.sum(-1) for rows in kinds])

    @property
    def entropy(self) -> Rows:
        return self["entropy" if "entropy" in self.numbers else "entropy_of_scores"]

    @property
    def why_none(self) -> str | None:
        """Why a head without any counted row has none."""
        if not self.real.any(axis=-1).all():
            return "all rows are padding"
        none = ~self.counted.any(axis=-1)
        if not none.any():
            return None
        if (self.spent.any(axis=-1) | ~none).all():
            return f"no row is counted: all but {LEAST:g} of each goes to learned sinks, and what is left is too little"
        sums = f"do not sum to 1 (with learned sinks: to {LEAST:g} or more)"
        return f"no row is counted: they see no key, hold NaN, infinity or a negative weight, or {sums}"


def counts(
    row_sum: Float[np.ndarray, "batch heads queries"], tolerance: float, *, sinks: bool
) -> Bool[np.ndarray, "batch heads queries"]:
    """Whether each row's weights can be read as a distribution: as the graphs decide it."""
    allowed = np.float32(tolerance)
    least = np.float32(LEAST) if sinks else 1 - allowed
    counted: Bool[np.ndarray, "batch heads queries"] = (row_sum >= least) & (row_sum <= 1 + allowed)
    return counted


def spent(row_sum: Float[np.ndarray, "batch heads queries"]) -> Selection:
    """With sinks, the rows of which too little is left to be read as a distribution."""
    gone: Selection = (row_sum >= 0) & (row_sum < np.float32(LEAST))
    return gone


def negative(weights: Matrix, visible: Visible | None) -> Selection:
    """Rows that see a negative weight, and are no distributions whatever they sum to."""
    below: Bool[np.ndarray, "batch heads queries keys"] = np.less(weights, 0)
    if visible is not None:
        below &= visible
    found: Selection = np.any(below, axis=-1)
    return found


def concatenate(blocks: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The numbers of all rows from those of blocks of rows, in order. Sums over rows are added up."""
    if len(blocks) == 1:
        return dict(blocks[0])
    return {
        name: sum((block[name] for block in blocks[1:]), start=blocks[0][name])
        if name in DIAGONALS
        else np.concatenate([block[name] for block in blocks], axis=2)
        for name in blocks[0]
    }
