"""How much of the scores' variance within rows one number for each distance explains.

A score is a row's effect plus its distance's plus the rest, S_ij = r_i + b_d(i,j) + e_ij over visible cells. Both
effects are fitted together: to centre rows first and then average by distance is wrong where rows see different
distances, as under a causal mask. With rows taken out by projection the normal equations are M b = v, where

    M = diag(pairs at d) - V' diag(1 / keys that i sees) V,  V_id the number of keys that i sees at d,
    v_d = the sum at d of scores less their row's mean,

and the share is b.v / RSS(row). M is positive semidefinite (a constant over all distances is a row effect), so
conjugate gradients find a solution; every solution has the same b.v, whose error is the square of the solution's.

Pairs at distance 0 are left out: that a token is like itself is content, which would else pass for position's doing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from service.probes.distances import Distances, Groups
from service.probes.records import NotApplicable

DENSE = 1 << 24
"""Numbers of V where rows do not see distances that follow each other."""
RESIDUAL = 1e-8
ROUNDS = 2000
LEAST_DEVIATION = 1e-6
"""Scores that vary less than this within rows, relative to their size, do not vary."""

Cells = Bool[np.ndarray, "#batch #heads queries keys"]


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Of each head; NaN where scores do not vary within rows. `chance` is what noise would have, on average, where all
    distances hang together."""

    share: Float64[np.ndarray, "batch heads"]
    chance: Float64[np.ndarray, "batch heads"]
    reason: str | None


class Share:
    """Fits both effects to rows that are added in order, all of them."""

    def __init__(self, distances: Distances, batch: int, heads: int, queries: int) -> None:
        self._distances = distances
        zero = np.flatnonzero(distances.values == 0)
        self._zero = int(zero[0]) if len(zero) else len(distances)
        self._count = len(distances) - len(zero)
        self._queries = queries
        self._right = np.zeros((batch, heads, self._count))
        self._row, self._squares, self._cells = (np.zeros((batch, heads)) for _ in range(3))
        self._seen: list[_Seen] = []

    def add(self, start: int, scores: Float[np.ndarray, "batch heads queries keys"], visible: Cells | None) -> None:
        """The rows from `start` on; `visible` is None where all cells are. Raises NotApplicable."""
        indices = self._distances.indices(start, start + scores.shape[2])
        apart = indices != self._zero
        seen = apart[None, None] if visible is None else visible & apart
        indices -= indices > self._zero
        indices[~apart] = 0  # never read, but a place that there is
        values = np.where(seen, scores, np.float32(0)).astype(np.float64)
        if not np.isfinite(values).all():
            raise NotApplicable("the scores hold NaN or infinity")
        keys = seen.sum(-1, keepdims=True)
        self._squares += (values * values).sum((-2, -1))
        centred = np.where(seen, values - values.sum(-1, keepdims=True) / np.maximum(keys, 1), 0)
        self._row += (centred * centred).sum((-2, -1))
        self._cells += keys.sum((-2, -1))
        groups = Groups.of(indices, apart)
        self._right[..., groups.ids] += groups.reduce(np.add, centred)
        self._seen.append(_Seen.of(indices, seen, self._count, self._queries))

    def fit(self) -> Shares:
        """Raises NotApplicable."""
        seen = _Seen.joined(self._seen)
        share, chance = (np.full(self._row.shape, np.nan) for _ in range(2))
        size, deviation = (np.sqrt(sums / np.maximum(self._cells, 1)) for sums in (self._squares, self._row))
        varying = deviation > LEAST_DEVIATION * size
        for b, h in np.ndindex(seen.shape):
            # A mask that is the same along an axis is that of all its batches or heads.
            part = tuple(
                slice(None) if count == 1 else slice(i, i + 1) for i, count in zip((b, h), seen.shape, strict=True)
            )
            design = seen.design(b, h)
            right = self._right[part].reshape(self._row[part].size, self._count).T
            explained = design.explained(right).reshape(self._row[part].shape)
            with np.errstate(invalid="ignore", divide="ignore"):
                share[part] = np.where(varying[part], (explained / self._row[part]).clip(0, 1), np.nan)
            free = design.cells - design.rows
            if free > 0:
                chance[part] = min(1.0, (design.distances - 1) / free)
        reason = None if varying.all() else "scores do not vary within rows, so there is nothing to explain"
        return Shares(share, chance, reason)


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Which distances rows see, of each mask: from `low` to before `high`, `count` of them, each once; or where they
    do not follow each other the whole `matrix`."""

    low: Int64[np.ndarray, "batch heads queries"]
    high: Int64[np.ndarray, "batch heads queries"]
    count: Int64[np.ndarray, "batch heads queries"]
    distances: int
    matrix: Float[np.ndarray, "batch heads queries distances"] | None

    @classmethod
    def of(cls, indices: Int64[np.ndarray, "queries keys"], visible: Cells, distances: int, whole: int) -> _Seen:
        """Of some of `whole` rows. Raises NotApplicable where all of them would be too many."""
        count = visible.sum(-1)
        low = np.where(visible, indices, distances).min(-1)
        high = np.where(visible, indices, -1).max(-1) + 1
        low, high = np.where(count, low, 0), np.where(count, high, 0)
        once = len(np.unique(indices[0])) == indices.shape[1]  # no two keys are at one position
        if once and (high - low == count).all():
            return cls(low, high, count, distances, None)
        numbers = visible.shape[0] * visible.shape[1] * whole * distances
        if numbers > DENSE:
            raise NotApplicable(
                f"the mask or the positions leave gaps between the distances that a query sees; then at most {DENSE:,} "
                f"pairs of a query and a distance are fitted, and here are {numbers:,}"
            )
        return cls(low, high, count, distances, _matrix(indices, visible, distances))

    @property
    def shape(self) -> tuple[int, int]:
        return self.count.shape[0], self.count.shape[1]

    @classmethod
    def joined(cls, parts: list[_Seen]) -> _Seen:
        shape = np.broadcast_shapes(*(part.shape for part in parts))
        distances = parts[0].distances
        low, high, count = (
            np.concatenate(
                [np.broadcast_to(getattr(part, name), (*shape, part.count.shape[2])) for part in parts], axis=2
            )
            for name in ("low", "high", "count")
        )
        if all(part.matrix is None for part in parts):
            return cls(low, high, count, distances, None)
        matrices = [np.broadcast_to(part._filled(), (*shape, *part._filled().shape[2:])) for part in parts]
        return cls(low, high, count, distances, np.concatenate(matrices, axis=2))

    def design(self, b: int, h: int) -> _Design:
        count = self.count[b, h]
        kept = count > 0
        if self.matrix is not None:
            return _Dense(count[kept].astype(np.float64), self.matrix[b, h][kept])
        return _Runs(count[kept].astype(np.float64), self.low[b, h][kept], self.high[b, h][kept], self.distances)

    def _filled(self) -> Float[np.ndarray, "batch heads queries distances"]:
        if self.matrix is not None:
            return self.matrix
        at = np.arange(self.distances)
        return ((at >= self.low[..., None]) & (at < self.high[..., None])).astype(np.float32)


def _matrix(
    indices: Int64[np.ndarray, "queries keys"], visible: Cells, distances: int
) -> Float[np.ndarray, "batch heads queries distances"]:
    rows = np.arange(len(indices))[:, None] * distances
    size = len(indices) * distances
    counts = [
        np.bincount((rows + indices)[seen], minlength=size).reshape(len(indices), distances)
        for seen in visible.reshape(-1, *visible.shape[2:])
    ]
    return np.stack(counts).reshape(*visible.shape[:3], distances).astype(np.float32)


class _Design(ABC):
    """V, of the rows that see anything; `seen` are the keys that each sees."""

    seen: Float64[np.ndarray, " queries"]

    @abstractmethod
    def times(self, b: Float64[np.ndarray, "distances columns"]) -> Float64[np.ndarray, "queries columns"]:
        """V b."""

    @abstractmethod
    def transposed(self, a: Float64[np.ndarray, "queries columns"]) -> Float64[np.ndarray, "distances columns"]:
        """V' a."""

    @abstractmethod
    def squares(self) -> Float64[np.ndarray, " distances"]:
        """The diagonal of V' diag(1 / seen) V."""

    @property
    def cells(self) -> float:
        return float(self.seen.sum())

    @property
    def rows(self) -> int:
        return len(self.seen)

    @property
    def pairs(self) -> Float64[np.ndarray, " distances"]:
        return self.transposed(np.ones((self.rows, 1)))[:, 0]

    @property
    def distances(self) -> int:
        """How many of them any row sees."""
        return int(np.count_nonzero(self.pairs))

    def explained(self, right: Float64[np.ndarray, "distances columns"]) -> Float64[np.ndarray, " columns"]:
        """b.v of each column v, M b = v."""
        pairs = self.pairs[:, None]
        diagonal = self.pairs - self.squares()
        # What only rows of one key see has nothing left once rows are out.
        inverse = np.where(diagonal > 1e-9, 1 / np.where(diagonal > 1e-9, diagonal, 1), 0)[:, None]
        solution = np.zeros_like(right)
        residual = np.where(inverse > 0, right, 0)
        tolerance = RESIDUAL**2 * (residual * inverse * residual).sum(0)
        direction = inverse * residual
        norm = (residual * direction).sum(0)
        for _ in range(ROUNDS):
            if (norm <= tolerance).all():
                break
            image = pairs * direction - self.transposed(self.times(direction) / self.seen[:, None])
            curvature = (direction * image).sum(0)
            moving = (norm > tolerance) & (curvature > 0)
            step = np.where(moving, norm / np.where(moving, curvature, 1), 0)
            solution += step * direction
            residual = residual - step * image
            scaled = inverse * residual
            last, norm = norm, (residual * scaled).sum(0)
            direction = scaled + np.where(last > 0, norm / np.where(last > 0, last, 1), 0) * direction
        explained: Float64[np.ndarray, " columns"] = (solution * right).sum(0)
        return explained


class _Runs(_Design):
    """Every row sees distances that follow each other, each once: sums over runs are differences of running sums."""

    def __init__(
        self,
        seen: Float64[np.ndarray, " queries"],
        low: Int64[np.ndarray, " queries"],
        high: Int64[np.ndarray, " queries"],
        distances: int,
    ) -> None:
        self.seen, self._low, self._high, self._count = seen, low, high, distances

    def times(self, b: Float64[np.ndarray, "distances columns"]) -> Float64[np.ndarray, "queries columns"]:
        running = np.concatenate([np.zeros((1, b.shape[1])), np.cumsum(b, axis=0)])
        result: Float64[np.ndarray, "queries columns"] = running[self._high] - running[self._low]
        return result

    def transposed(self, a: Float64[np.ndarray, "queries columns"]) -> Float64[np.ndarray, "distances columns"]:
        changes = np.zeros((self._count + 1, a.shape[1]))
        np.add.at(changes, self._low, a)
        np.subtract.at(changes, self._high, a)
        result: Float64[np.ndarray, "distances columns"] = np.cumsum(changes, axis=0)[:-1]
        return result

    def squares(self) -> Float64[np.ndarray, " distances"]:
        return self.transposed(1 / self.seen[:, None])[:, 0]


class _Dense(_Design):
    """V itself."""

    def __init__(self, seen: Float64[np.ndarray, " queries"], matrix: Float[np.ndarray, "queries distances"]) -> None:
        self.seen, self._matrix = seen, matrix.astype(np.float64)

    def times(self, b: Float64[np.ndarray, "distances columns"]) -> Float64[np.ndarray, "queries columns"]:
        result: Float64[np.ndarray, "queries columns"] = self._matrix @ b
        return result

    def transposed(self, a: Float64[np.ndarray, "queries columns"]) -> Float64[np.ndarray, "distances columns"]:
        result: Float64[np.ndarray, "distances columns"] = self._matrix.T @ a
        return result

    def squares(self) -> Float64[np.ndarray, " distances"]:
        squares: Float64[np.ndarray, " distances"] = (self._matrix**2 / self.seen[:, None]).sum(0)
        return squares
