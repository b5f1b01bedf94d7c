"""Tensors of the Open Inference Protocol: a name, a shape, a datatype, and numbers in JSON or as raw bytes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from service.errors import InvalidInput, MalformedBody, UnknownName
from service.wire import lists
from service.wire.arrays import Array
from service.wire.pointer import pointer

DATATYPES: dict[str, str] = {
    "BOOL": "u1",  # looked at before it is taken for bool
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
    "BF16": "<u2",  # the upper half of a float32
}
BINARY_ONLY = ("FP16", "BF16")
MAX_RANK = lists.MAX_RANK
MAX_ELEMENTS = 1 << 48


def check_shape(shape: Any, at: str) -> tuple[int, ...]:
    """Raises MalformedBody for anything but a list of sizes. A size may be 0."""
    if not isinstance(shape, list) or len(shape) > MAX_RANK:
        raise MalformedBody(f"{at}: shape must be a list of at most {MAX_RANK} sizes", pointer=at)
    for size in shape:
        if type(size) is not int or size < 0:
            raise MalformedBody(
                f"{at}: the shape {_shown(shape)} holds {_shown(size)}; sizes are whole numbers from 0 on", pointer=at
            )
    if prod(size for size in shape if size) > MAX_ELEMENTS:
        raise MalformedBody(f"{at} claims the shape {_shown(shape)}, more than fits anywhere", pointer=at)
    return tuple(shape)


def check_datatype(datatype: Any, at: str) -> str:
    """Raises MalformedBody or UnknownName."""
    if not isinstance(datatype, str):
        raise MalformedBody(f"{at}: datatype must be one of {', '.join(DATATYPES)}", pointer=at)
    if datatype == "BYTES":
        raise InvalidInput(f"{at} is BYTES (text); numbers are taken: {', '.join(DATATYPES)}", pointer=at)
    if datatype not in DATATYPES:
        raise UnknownName(f"datatype of {at}", datatype, DATATYPES, pointer=at)
    return datatype


def size_of(datatype: str, shape: tuple[int, ...]) -> int:
    """In bytes."""
    return prod(shape) * np.dtype(DATATYPES[datatype]).itemsize


def alignment_of(datatype: str) -> int:
    """In bytes."""
    return np.dtype(DATATYPES[datatype]).itemsize


def from_bytes(content: memoryview, datatype: str, shape: tuple[int, ...], at: str) -> Array:
    """A view of `content`, which must have the right size; BF16 becomes float32. Raises InvalidInput."""
    flat: Array = np.frombuffer(content, dtype=DATATYPES[datatype])
    if datatype == "BOOL":
        if (flat > 1).any():
            raise InvalidInput(f"{at} is BOOL, but has the byte {flat.max()}; 0 and 1 are allowed", pointer=at)
        flat = flat.view(np.bool_)
    elif datatype == "BF16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.reshape(shape)


def from_json(data: Any, datatype: str, shape: tuple[int, ...], at: str) -> Array:
    """Nested or flat, as float64; BOOL as bool. Raises InvalidInput where the numbers are not what is claimed."""
    if datatype in BINARY_ONLY:
        raise InvalidInput(f"{at} is {datatype}, which is taken as binary data only; FP32 may be JSON", pointer=at)
    if not isinstance(data, list):
        raise MalformedBody(f"{at}: data must be a list", pointer=at)
    values: Array = lists.numbers(data, at, booleans=datatype == "BOOL")
    if values.shape != shape:
        if values.ndim != 1 or values.size != prod(shape):
            raise InvalidInput(
                f"{at} claims the shape {list(shape)}, but its data has the shape {list(values.shape)}; "
                f"{prod(shape)} numbers in one list would do as well",
                pointer=at,
            )
        values = values.reshape(shape)
    if datatype == "BOOL":
        _check(values, (values == 0) | (values == 1), datatype, "true or false", at)
        return values.astype(np.bool_)
    if "INT" in datatype:
        limits = np.iinfo(DATATYPES[datatype])
        allowed = (values == np.floor(values)) & (values >= limits.min) & (values <= limits.max)
        _check(values, allowed, datatype, f"whole numbers from {limits.min} to {limits.max}", at)
    return values


def _check(values: Array, allowed: Array, datatype: str, what: str, at: str) -> None:
    if allowed.all():
        return
    place = tuple(int(i) for i in np.unravel_index(int(np.argmin(allowed)), values.shape))
    where = at + pointer(*place)
    raise InvalidInput(f"{where} is {values[place]:g}; {datatype} holds {what}", pointer=where)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:120] + "..."
