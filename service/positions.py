"""Where the tokens of a request are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """One position for each token, read-only; `digest` tells them apart in cache keys."""

    values: Float[np.ndarray, " tokens"]
    digest: str
    smallest: float
    largest: float

    @classmethod
    def of(cls, values: Float[np.ndarray, " tokens"]) -> Positions:
        values = np.array(values, dtype=np.float64)  # the request's own array may be a view of its body
        values.flags.writeable = False
        digest = hashlib.blake2b(values.data, digest_size=16).hexdigest()
        return cls(values, digest, float(values.min()), float(values.max()))

    @classmethod
    def first(cls, count: int) -> Positions:
        """0 .. count - 1."""
        return _first(count)

    def __len__(self) -> int:
        return len(self.values)

    def fractional(self) -> int | None:
        """The index of the first position that is no whole number."""
        offending = np.flatnonzero(self.values != np.floor(self.values))
        return int(offending[0]) if offending.size else None


@lru_cache(maxsize=1024)
def _first(count: int) -> Positions:
    return Positions.of(np.arange(count, dtype=np.float64))
