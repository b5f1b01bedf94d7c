"""What every format checks of an array: its type, its rank, that it is not empty, that every number is one.

Each function takes the array and the pointer to it, and raises InvalidInput.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Num

from service.errors import InvalidInput, MalformedBody
from service.finite import all_finite
from service.wire.pointer import pointer

Array = np.ndarray[Any, np.dtype[Any]]

_KINDS = {
    "c": "complex numbers",
    "S": "bytes",
    "U": "text",
    "V": "records",
    "M": "dates",
    "m": "durations",
    "b": "bool",
}


def embeddings(array: Array, at: str) -> Float[np.ndarray, "*batch tokens width"]:
    """float32, [tokens, width] or [batch, tokens, width]."""
    _check_numeric(array, at)
    if array.ndim not in (2, 3):
        raise InvalidInput(
            f"{at} is {array.ndim}-D with shape {list(array.shape)}; it must be 2-D [tokens, width], "
            "or 3-D [batch, tokens, width] for a batch of equal lengths",
            pointer=at,
            shape=list(array.shape),
        )
    if 0 in array.shape:
        axis = ("batch", "tokens", "width")[3 - array.ndim :][array.shape.index(0)]
        raise InvalidInput(
            f"{at} is empty: its shape {list(array.shape)} has no {axis}; at least 1 is needed",
            pointer=at,
            shape=list(array.shape),
        )
    return _float32(array, at)


def parameter(array: Array, at: str) -> Float[np.ndarray, "..."]:
    """float64 where it came so, else float32; within float32's range, and of any shape: the encoding says which."""
    _check_numeric(array, at)
    single = _float32(array, at)
    return single if array.dtype.itemsize < 8 else np.asarray(array, dtype=np.float64, order="C")


def positions(array: Array, at: str) -> Float[np.ndarray, " tokens"]:
    """float64 [tokens]."""
    _check_numeric(array, at)
    if array.ndim != 1 or array.size == 0:
        raise InvalidInput(
            f"{at} has shape {list(array.shape)}; it must be 1-D, one position for each token",
            pointer=at,
            shape=list(array.shape),
        )
    result = np.asarray(array, dtype=np.float64, order="C")
    _check_finite(result, array, at)
    return result


def numeric(array: Array, at: str) -> Float[np.ndarray, "..."]:
    """float16, float32 or float64: as it came, or float64 of whole numbers. What is not finite stays."""
    _check_numeric(array, at)
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def mask(array: Array, at: str) -> Num[np.ndarray, "..."]:
    """As it came: what its values and shape may be follows from the rest of the request."""
    if array.dtype.kind != "b":
        _check_numeric(array, at)
    return array


def check_dtype(dtype: np.dtype[Any], at: str) -> None:
    """Refuses what only pickle could read. Raises MalformedBody."""
    if dtype.hasobject:
        advice = "array of text (<U), as np.array(tokens, dtype=str) makes it," if at == "/tokens" else "float32"
        raise MalformedBody(
            f"{at or 'the array'} has the NumPy type object, which is stored as a pickle; pickle is never read here. "
            f"Convert it to {advice} before saving it",
            pointer=at or None,
        )


def _check_numeric(array: Array, at: str) -> None:
    dtype = array.dtype
    if (dtype.kind == "f" and dtype.itemsize <= 8) or dtype.kind in "iu":
        return
    raise InvalidInput(
        f"{at} holds {_KINDS.get(dtype.kind, dtype.name)} ({dtype}); float16, float32, float64 and integers are taken",
        pointer=at,
        dtype=str(dtype),
    )


def _float32(array: Array, at: str) -> Float[np.ndarray, "..."]:
    if array.dtype == np.float32 and array.flags.c_contiguous:
        result = array
    else:
        with np.errstate(over="ignore"):
            result = np.asarray(array, dtype=np.float32, order="C")
    _check_finite(result, array, at)
    return result


def _check_finite(result: Array, original: Array, at: str) -> None:
    if all_finite(result):
        return
    place = _first(~np.isfinite(result))
    value = original[place]
    where = at + pointer(*place)
    if np.isfinite(value):
        raise InvalidInput(
            f"{where} is {value:g}, too large for float32: at most {np.finfo(np.float32).max:.7g}", pointer=where
        )
    count = int(result.size - np.count_nonzero(np.isfinite(original)))
    raise InvalidInput(
        f"{where} is {value}; every number must be finite ({count} of {result.size} are not)",
        pointer=where,
        nonfinite=count,
    )


def _first(offending: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(offending)), offending.shape))
