"""Arrays in JSON as base64: `{"base64": "...", "dtype": "float32", "shape": [11, 384]}`, little-endian, in C order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import orjson
import pybase64

from service.errors import InvalidInput, UnknownName
from service.wire.arrays import Array
from service.wire.lists import MAX_RANK, kind
from service.wire.pointer import pointer

MEMBERS = ("base64", "dtype", "shape")
DTYPES = (
    "float32",
    "float16",
    "float64",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "bool",
)
BLOCK = 3 << 17
"""Bytes encoded at a time, a multiple of 3: about 0.05 ms, after which other threads may have the interpreter."""
_ALIEN = re.compile(r"[^A-Za-z0-9+/]")
_EXAMPLE = '{"base64": "...", "dtype": "float32", "shape": [11, 384]}'


def decode(value: Mapping[str, Any], at: str) -> Array:
    """The array of such an object. Raises InvalidInput, or UnknownName for another member or dtype."""
    for name in value:
        if name not in MEMBERS:
            raise UnknownName("member of an array in base64", name, MEMBERS, pointer=at + pointer(name))
    for name in MEMBERS:
        if name not in value:
            raise InvalidInput(f"{at} has no {name!r}; an array in base64 is {_EXAMPLE}", pointer=at)
    dtype, shape = _dtype(value["dtype"], f"{at}/dtype"), _shape(value["shape"], f"{at}/shape")
    text = value["base64"]
    if not isinstance(text, str):
        raise InvalidInput(f"{at}/base64 is {kind(text)}; a string is expected", pointer=f"{at}/base64")
    try:
        content = pybase64.b64decode(text, validate=True)
    except ValueError:
        raise _malformed(text, f"{at}/base64") from None
    needed = prod(shape) * dtype.itemsize
    if len(content) != needed:
        raise InvalidInput(
            f"{at}/base64 holds {len(content)} bytes, but the shape {list(shape)} of {dtype.name} takes {needed}",
            pointer=f"{at}/base64",
            bytes=len(content),
            expected=needed,
        )
    if dtype.kind == "b":
        return _booleans(np.frombuffer(content, dtype=np.uint8).reshape(shape), at)
    return np.frombuffer(content, dtype=dtype).reshape(shape)


def encode(values: Array) -> Iterator[bytes]:
    """The object in pieces, the characters as they leave the encoder."""
    dtype = values.dtype.newbyteorder("<")
    yield b'{"dtype":"%s","shape":%s,"base64":"' % (dtype.name.encode(), orjson.dumps(list(values.shape)))
    content = np.ascontiguousarray(values, dtype=dtype).reshape(-1).view(np.uint8).data
    for start in range(0, len(content), BLOCK):
        yield pybase64.b64encode(content[start : start + BLOCK])
    yield b'"}'


def _dtype(name: Any, at: str) -> np.dtype[Any]:
    if not isinstance(name, str):
        raise InvalidInput(f"{at} is {kind(name)}; one of {', '.join(DTYPES)} is expected", pointer=at)
    if name not in DTYPES:
        raise UnknownName("dtype", name, DTYPES, pointer=at)
    return np.dtype(name).newbyteorder("<")


def _shape(sizes: Any, at: str) -> tuple[int, ...]:
    if not isinstance(sizes, list):
        raise InvalidInput(f"{at} is {kind(sizes)}; a list of sizes such as [11, 384] is expected", pointer=at)
    if len(sizes) > MAX_RANK:
        raise InvalidInput(f"{at} has {len(sizes)} sizes, at most {MAX_RANK} are taken", pointer=at)
    for i, size in enumerate(sizes):
        if type(size) is not int or size < 1:
            raise InvalidInput(f"{at}/{i} is {kind(size)}; a size is a whole number from 1 on", pointer=f"{at}/{i}")
    return tuple(sizes)


def _malformed(text: str, at: str) -> InvalidInput:
    body = text.rstrip("=")
    alien = _ALIEN.search(body)
    if alien is not None:
        what = f"has {alien.group()!r} at {alien.start()}"
        if alien.group() in "-_":
            what += "; the alphabet with + and / is read, not the one for URLs"
    else:
        what = f"has {len(text)} characters, {len(text) - len(body)} of them padding; the length is a multiple of 4"
    return InvalidInput(f"{at} is no base64: it {what}", pointer=at)


def _booleans(values: Array, at: str) -> Array:
    if values.size and values.max() > 1:
        raise InvalidInput(f"{at}/base64 is bool, but has the byte {values.max()}; 0 and 1 are allowed", pointer=at)
    return values.view(np.bool_)
