"""Numbers that are NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def nonfinite(arrays: Iterable[np.ndarray]) -> int:
    """How many there are in all of these."""
    return sum(array.size - int(np.count_nonzero(np.isfinite(array))) for array in arrays)
