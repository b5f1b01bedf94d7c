"""Scores by distance."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from service.probes.distances import Distances, Groups
from service.probes.records import NotApplicable


class Curve:
    """Mean, least and largest score at each distance, of all rows that were added."""

    def __init__(self, distances: Distances, heads: int) -> None:
        shape = heads, len(distances)
        self.distances = distances
        self.sums = np.zeros(shape)
        self.least = np.full(shape, np.inf)
        self.largest = np.full(shape, -np.inf)
        self.pairs: Int64[np.ndarray, " distances"] = np.zeros(len(distances), np.int64)

    def add(
        self,
        start: int,
        scores: Float[np.ndarray, "heads queries keys"],
        visible: Bool[np.ndarray, "queries keys"] | None,
    ) -> None:
        """The rows from `start` on."""
        groups = Groups.of(self.distances.indices(start, start + scores.shape[1]), visible)
        at = groups.ids
        self.sums[:, at] += groups.reduce(np.add, scores)
        self.least[:, at] = np.minimum(self.least[:, at], groups.reduce(np.minimum, scores))
        self.largest[:, at] = np.maximum(self.largest[:, at], groups.reduce(np.maximum, scores))
        self.pairs[at] += groups.counts

    @property
    def seen(self) -> Int64[np.ndarray, " seen"]:
        """Which distances any pair has."""
        return np.flatnonzero(self.pairs)

    @property
    def mean(self) -> Float64[np.ndarray, "heads seen"]:
        mean: Float64[np.ndarray, "heads seen"] = self.sums[:, self.seen] / self.pairs[self.seen]
        return mean

    @property
    def spread(self) -> Float64[np.ndarray, "heads seen"]:
        spread: Float64[np.ndarray, "heads seen"] = self.largest[:, self.seen] - self.least[:, self.seen]
        return spread

    def at_zero(self) -> Float64[np.ndarray, " heads"]:
        """S(0). Raises NotApplicable where no query is at the position of a key that it sees."""
        zero = np.flatnonzero(self.distances.values[self.seen] == 0)
        if not len(zero):
            raise NotApplicable("no query is at the position of a key, so there is no S(0)")
        return self.mean[:, zero[0]]
