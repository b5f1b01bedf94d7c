"""Pairs of a query and a key by the distance between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from service.positions import Positions
from service.probes.inputs import EVEN
from service.probes.records import NotApplicable

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Distances:
    """The different values of query position - key position, ascending."""

    values: Float64[np.ndarray, " distances"]
    _queries: Float64[np.ndarray, " queries"]
    _keys: Float64[np.ndarray, " keys"]
    _step: float | None

    @classmethod
    def of(cls, queries: Positions, keys: Positions) -> Distances:
        """Raises NotApplicable where there are more than two for each query and key: then a distance is that of a pair
        or two, and no mean over it means anything.
        """
        m, n = queries.values, keys.values
        step = _step(m, n)
        if step is not None:
            values = (m[0] - n[0]) + step * np.arange(-(len(n) - 1), len(m), dtype=np.float64)
            return cls(values, m, n, step)
        values = np.empty(0)
        rows = max(1, CHUNK // len(n))
        for start in range(0, len(m), rows):
            values = np.union1d(values, m[start : start + rows, None] - n)
            if len(values) > 2 * (len(m) + len(n)):
                raise NotApplicable(
                    f"the positions are irregular: {len(m)} queries and {len(n)} keys have more than "
                    f"{2 * (len(m) + len(n))} different distances"
                )
        return cls(values, m, n, None)

    def __len__(self) -> int:
        return len(self.values)

    def indices(self, start: int, stop: int) -> Int64[np.ndarray, "queries keys"]:
        """Of the distance of each pair of these queries and all keys."""
        if self._step is not None:
            index: Int64[np.ndarray, "queries keys"] = (
                np.arange(start, stop)[:, None] - np.arange(len(self._keys)) + len(self._keys) - 1
            )
            return index
        found: Int64[np.ndarray, "queries keys"] = np.searchsorted(
            self.values, self._queries[start:stop, None] - self._keys
        )
        return found


def _step(m: Float64[np.ndarray, " queries"], n: Float64[np.ndarray, " keys"]) -> float | None:
    """By which both go up, evenly and alike; None where they do not."""
    steps = np.concatenate([np.diff(m), np.diff(n)])
    if not len(steps):
        return 1.0
    step = float(steps[0])
    return step if step > 0 and np.allclose(steps, step, rtol=EVEN, atol=0) else None


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The cells of some rows, sorted by distance: `cells` are places in the flattened rows, `starts` where each of the
    distances `ids` begins among them."""

    cells: Int64[np.ndarray, " chosen"]
    starts: Int64[np.ndarray, " ids"]
    ids: Int64[np.ndarray, " ids"]

    @classmethod
    def of(cls, indices: Int64[np.ndarray, "queries keys"], chosen: np.ndarray | None = None) -> Groups:
        """`chosen` [queries, keys] says which cells; None: all."""
        flat = indices.ravel()
        cells = np.arange(flat.size) if chosen is None else np.flatnonzero(chosen)
        cells = cells[np.argsort(flat[cells], kind="stable")]
        ordered = flat[cells]
        starts = np.flatnonzero(np.concatenate([[True], np.diff(ordered) > 0])) if ordered.size else ordered
        return cls(cells, starts, ordered[starts])

    @property
    def counts(self) -> Int64[np.ndarray, " ids"]:
        counts: Int64[np.ndarray, " ids"] = np.diff(np.append(self.starts, len(self.cells)))
        return counts

    def reduce(self, ufunc: np.ufunc, values: np.ndarray) -> np.ndarray:
        """Of values [..., queries, keys], float64 [..., ids]."""
        flat = values.reshape(*values.shape[:-2], -1)[..., self.cells].astype(np.float64, copy=False)
        if not len(self.starts):
            return flat
        result: np.ndarray = ufunc.reduceat(flat, self.starts, axis=-1)
        return result
