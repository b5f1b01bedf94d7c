"""Where the tokens of a request are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from service.cache import Cache


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
        found = _first.get(count)
        if found is None:
            found = cls.of(np.arange(count, dtype=np.float64))
            _first.put(count, found, found.values.nbytes + 256)
        return found

    def __len__(self) -> int:
        return len(self.values)

    def fractional(self) -> int | None:
        """The index of the first position that is no whole number."""
        offending = np.flatnonzero(self.values != np.floor(self.values))
        return int(offending[0]) if offending.size else None


_first: Cache[int, Positions] = Cache(8 << 20)
"""Those from 0 on, by how many there are."""
