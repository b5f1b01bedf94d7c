"""Default arrays of learned parameters: the paper's initialisation, from a fixed seed."""

from __future__ import annotations

from math import prod, sqrt

import numpy as np
from jaxtyping import Float32

from service.cache import Cache
from service.encoding import Initial

Array = Float32[np.ndarray, "..."]


def draw(initial: Initial, shape: tuple[int, ...]) -> Array:
    """An array of that shape and distribution, read-only. NumPy froze this stream: every machine gets the same values.

    `xavier_uniform` (Glorot and Bengio 2010) of shape [..., out, in] has the bound sqrt(6 / (in + prod(the rest))).
    """
    random = np.random.RandomState(initial.seed)
    match initial.distribution:
        case "normal":
            values = random.normal(initial.mean, initial.deviation, shape)
        case "uniform":
            values = random.uniform(initial.low, initial.high, shape)
        case "xavier_uniform":
            bound = sqrt(6 / (shape[-1] + prod(shape[:-1])))
            values = random.uniform(-bound, bound, shape)
        case "zeros":
            values = np.zeros(shape)
        case "ones":
            values = np.ones(shape)
    array = values.astype(np.float32)
    array.flags.writeable = False
    return array


class DefaultArrays:
    """Draws default arrays and keeps the ones used last, up to `capacity` bytes.

    Values are drawn in order, so a table of more rows begins with the rows of a shorter one: only the longest is kept.
    Not so for `xavier_uniform`, whose bound depends on the shape.
    """

    def __init__(self, capacity: int = 64 << 20) -> None:
        self._cache: Cache[tuple[Initial, tuple[int, ...]], Array] = Cache(capacity)

    def get(self, initial: Initial, shape: tuple[int, ...]) -> Array:
        """Read-only."""
        grows = initial.distribution != "xavier_uniform"
        key = (initial, shape[1:] if grows else shape)
        array = self._cache.get(key)
        if array is None:
            array = draw(initial, shape)
        elif len(array) < shape[0]:
            # Doubling: lengths that creep up would have it drawn anew each time.
            array = draw(initial, (max(shape[0], 2 * len(array)), *shape[1:]))
        else:
            return array[: shape[0]]
        self._cache.put(key, array, array.nbytes)
        return array[: shape[0]]

    def sweep(self) -> None:
        """Drops those that have not been asked for since this was last called."""
        self._cache.sweep()
