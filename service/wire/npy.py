"""The npy format: one array, whose header is checked against the bytes that came before anything is made of it."""

from __future__ import annotations

import io
import math
import re
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib import format as npy

from service.errors import MalformedBody
from service.records import AttentionInput
from service.wire import arrays, media
from service.wire.arrays import Array

MAX_HEADER = 10_000
_INTERNAL = re.compile(r" object at 0x|malformed node|codec can't")


def decode(body: bytes | bytearray) -> AttentionInput:
    """The array is `embeddings`. Raises MalformedBody, InvalidInput."""
    return AttentionInput(embeddings=arrays.embeddings(read(body, "/embeddings"), "/embeddings"))


def read(body: bytes | bytearray | memoryview, at: str, *, claimed: str = media.NPY) -> Array:
    """The array in `body`, a view of it: no copy, no pickle. Raises MalformedBody."""
    view = memoryview(body)
    try:
        shape, fortran, dtype, start = _header(bytes(view[: min(_end(view), MAX_HEADER)]))
    except Exception as error:  # a header is a Python literal: what a bad one raises has no end
        hint = media.mismatch(view, claimed) or f": {_reason(error)}"
        raise MalformedBody(f"{at} is not an npy array{hint}", pointer=at) from None
    _check(shape, dtype, len(view) - start, at)
    flat: Array = np.frombuffer(view, dtype=dtype, count=math.prod(shape), offset=start)
    return flat.reshape(shape, order="F" if fortran else "C")


def layout(body: bytes) -> tuple[tuple[int, ...], int] | None:
    """Shape and beginning of the numbers of a body that is one array of float32 in C order, as `read` has taken it;
    None for all others.
    """
    shape, fortran, dtype, start = _header(body[: min(_end(memoryview(body)), MAX_HEADER)])
    return (shape, start) if dtype == np.dtype("<f4") and not fortran else None


def _reason(error: Exception) -> str:
    """What NumPy says where it says it of the header, and not of how it reads one."""
    text = str(error).partition("\n")[0]
    if isinstance(error, ValueError) and text and not _INTERNAL.search(text):
        return text[:200]
    return (
        "its header cannot be read; it must be a dictionary such as "
        "{'descr': '<f4', 'fortran_order': False, 'shape': (11, 384), }"
    )


def _end(view: memoryview) -> int:
    """Where the array begins, as its header says: the length of the header is its 9th to 10th or 12th byte."""
    head = bytes(view[:12])
    return (
        10 + int.from_bytes(head[8:10], "little") if head[6:7] == b"\x01" else 12 + int.from_bytes(head[8:12], "little")
    )


@lru_cache(maxsize=256)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether the order is Fortran's, type, length of the header. Most arrays of a client have the same one."""
    stream = io.BytesIO(head)
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version[0]}.{version[1]} is not read; 1.0, 2.0 and 3.0 are")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(stream, max_header_size=MAX_HEADER)
    return shape, fortran, dtype, stream.tell()


def _check(shape: tuple[int, ...], dtype: np.dtype[Any], available: int, at: str) -> None:
    arrays.check_dtype(dtype, at)
    if any(size < 0 for size in shape) or len(shape) > 32:
        raise MalformedBody(f"{at} claims the shape {str(list(shape))[:200]}", pointer=at)
    needed = math.prod(shape) * dtype.itemsize
    if needed != available:
        raise MalformedBody(
            f"{at} claims the shape {str(list(shape))[:200]} of {dtype}, which is {needed} bytes, "
            f"but {available} bytes follow its header",
            pointer=at,
        )
