"""Arrays as lists for JSON, which has no NaN."""

from __future__ import annotations

from typing import Any

import numpy as np


def listed(array: np.ndarray) -> Any:
    """Nested lists, None for what is not finite."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    return known_only(array, np.isfinite(array))


def known_only(array: np.ndarray, known: np.ndarray) -> Any:
    """Nested lists, None for what is not known."""
    cells = array.astype(object)
    cells[~known] = None
    return cells.tolist()
