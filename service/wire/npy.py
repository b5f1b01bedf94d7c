"""The npy format: one array, whose header is checked against the bytes that came before anything is made of it."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from numpy.lib import format as npy

from service.errors import MalformedBody
from service.records import AttentionInput
from service.wire import arrays, media
from service.wire.arrays import Array
from service.wire.members import Members, assemble

MAX_HEADER = 10_000


def decode(body: bytes | bytearray) -> AttentionInput:
    """The array is `embeddings`. Raises MalformedBody, InvalidInput."""
    return assemble(Members({"embeddings": read(body, "/embeddings")}))


def read(body: bytes | bytearray | memoryview, at: str, *, claimed: str = media.NPY) -> Array:
    """The array in `body`, a view of it: no copy, no pickle. Raises MalformedBody."""
    view = memoryview(body)
    stream = io.BytesIO(view[: MAX_HEADER + 16])
    try:
        version = npy.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = npy.read_array_header_1_0(stream, max_header_size=MAX_HEADER)
        elif version == (2, 0):
            shape, fortran, dtype = npy.read_array_header_2_0(stream, max_header_size=MAX_HEADER)
        else:
            raise MalformedBody(f"{at} is npy {version[0]}.{version[1]}; 1.0 and 2.0 are read", pointer=at)
    except MalformedBody:
        raise
    except Exception as error:  # a header is a Python literal: what a bad one raises has no end
        hint = (
            media.mismatch(view, claimed)
            or f": {str(error).splitlines()[0][:200] if str(error) else type(error).__name__}"
        )
        raise MalformedBody(f"{at} is not an npy array{hint}", pointer=at) from None
    _check(shape, dtype, len(view) - stream.tell(), at)
    flat: Array = np.frombuffer(view, dtype=dtype, count=math.prod(shape), offset=stream.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


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
