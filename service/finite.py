"""Numbers that are NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np


def all_finite(array: np.ndarray) -> bool:
    """Whether there are none in this one."""
    if array.dtype == np.float32 and array.flags.c_contiguous:
        # As quick as one look at each number can be: whatever is not finite makes the sum of squares so.
        flat = array.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            square = flat.dot(flat)
        if math.isfinite(square):
            return True
    return bool(np.isfinite(array).all())


def nonfinite(arrays: Iterable[np.ndarray]) -> int:
    """How many there are in all of these."""
    return sum(array.size - int(np.count_nonzero(np.isfinite(array))) for array in arrays)
