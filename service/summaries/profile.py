"""Attention by distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from service.summaries.layout import Layout
from service.summaries.lists import written
from service.summaries.rows import DIAGONALS, RowNumbers
from service.summaries.shapes import Matrix, Visible

PROFILE = "distance_profile"


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Mean weight by distance in places, query minus key: negative for keys that come later. `weights` sum to 1.

    `pairs` counts the visible cells at each distance.
    """

    distances: Int64[np.ndarray, " distances"]
    weights: Float64[np.ndarray, "batch heads distances"]
    uniform: Float64[np.ndarray, "batch heads distances"]
    pairs: Int64[np.ndarray, "batch heads distances"]
    rows: Int64[np.ndarray, "batch heads"]

    @property
    def seen(self) -> Profile:
        """Without the distances, before all and after all others, at which no head sees a pair."""
        seen = np.flatnonzero(self.pairs.any(axis=(0, 1)))
        kept = slice(int(seen[0]), int(seen[-1]) + 1) if seen.size else slice(0, 0)
        return Profile(
            self.distances[kept], self.weights[..., kept], self.uniform[..., kept], self.pairs[..., kept], self.rows
        )

    def document(self, batched: bool = True) -> dict[str, Any]:
        """Arrays as `orjson` writes them, [batch, heads, distances], without `batched` [heads, distances]."""
        shown = self.seen
        return {
            "distances": shown.distances,
            "weights": written(shown.weights, batched),
            "uniform": written(shown.uniform, batched),
            "pairs": written(shown.pairs, batched),
            "rows": written(shown.rows, batched),
        }


def profile_of(
    rows: Mapping[str, np.ndarray], of: RowNumbers, layout: Layout, reasons: dict[str, str]
) -> Profile | None:
    if not layout.ordered:
        reasons[PROFILE] = "key positions do not increase, so that tokens have no order"
        return None
    weights, uniform, pairs = (rows[name] for name in DIAGONALS)
    count = np.broadcast_to((of.free & (layout.places >= 0)).sum(-1), of.heads)
    if not count.all():
        reasons[PROFILE] = of.why_none or "no counted row sees two keys or more and is at the position of a key"
    with np.errstate(all="ignore"):
        of_rows = np.where(count > 0, count, np.nan)[..., None]
        distances = np.arange(-(layout.keys - 1), layout.keys)
        return Profile(distances, weights / of_rows, uniform / of_rows, np.rint(pairs).astype(int), count)


def placed(name: str, array: np.ndarray, layout: Layout) -> np.ndarray:
    """Diagonal sums by distance in places, from -(keys - 1) to keys - 1, in float64; other arrays as they are.

    `layout` is that of the rows given, whose places go up by one where they have any. Entry c is the diagonal
    row - key = rows - c.
    """
    if name not in DIAGONALS:
        return array
    keys, count, rows = layout.keys, layout.queries, np.flatnonzero(layout.places >= 0)
    whole = np.zeros((*array.shape[:2], 2 * keys - 1))
    if rows.size:
        # Distance d = place + count - c, c = keys + count - 1 .. 1, is at d + keys - 1; `place` is what row 0 has
        # or would have, and what would lie outside is of rows that have none.
        place = int(layout.places[rows[0]] - rows[0])
        first, last = max(place, 0), min(place + count, keys) + keys - 1
        whole[..., first:last] = array[..., keys + count - 1 : 0 : -1][..., first - place : last - place]
    return whole


def scattered(
    weights: Matrix,
    row_sum: Float[np.ndarray, "batch heads queries"],
    over: Bool[np.ndarray, "batch heads queries"],
    layout: Layout,
    *,
    visible: Visible | None,
    sinks: bool,
) -> dict[str, np.ndarray]:
    """What `placed` gives of the diagonal sums, for rows whose places do not go up by one. `over` are the rows that are
    counted and no padding; with `sinks` they are divided by their sums. In float64.
    """
    keys = layout.keys
    found = {name: np.zeros((*weights.shape[:2], 2 * keys - 1)) for name in DIAGONALS}
    for row in np.flatnonzero(layout.places >= 0):
        seen = np.ones((1, 1, keys), bool) if visible is None else visible[:, :, row]
        several = np.count_nonzero(seen, axis=-1)[..., None]
        seen = seen & over[:, :, row, None] & (several >= 2)
        p = np.where(seen, weights[:, :, row], 0.0).astype(np.float64)
        if sinks:
            p /= np.where(seen.any(-1), row_sum[:, :, row], 1.0).astype(np.float64)[..., None]
        place = int(layout.places[row])
        at = slice(place, place + keys)  # of distances place - key, from that of the last key on
        for name, cells in zip(DIAGONALS, (p, seen / np.maximum(several, 1), seen), strict=True):
            found[name][..., at] += cells[..., ::-1]
    return found
