"""Arrays as JSON has them, which has no NaN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from jaxtyping import Bool


def written(array: np.ndarray, batched: bool = True) -> Any:
    """As orjson writes it: contiguous, in as many digits as float32 has; without `batched` the first of a batch."""
    part = array if batched else array[0]
    if part.ndim == 0:
        return np.float32(part) if array.dtype.kind == "f" else part
    return np.asarray(part, dtype=np.float32 if array.dtype.kind == "f" else array.dtype, order="C")


def known_only(array: np.ndarray, known: Bool[np.ndarray, "..."], batched: bool = True) -> Any:
    """Nested lists, None for what is not known."""
    cells = array.astype(object)
    cells[~known] = None
    return (cells if batched else cells[0]).tolist()


def plain(document: Mapping[str, Any]) -> Any:
    """A document with arrays as dictionaries and lists; None for what is not finite."""
    return orjson.loads(orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY))
