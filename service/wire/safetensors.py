"""The safetensors format: a JSON header and raw little-endian arrays."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np
import orjson
import safetensors

from service.cache import Cache
from service.errors import InvalidInput, MalformedBody
from service.records import AttentionInput, ScoringResult
from service.wire import answer, media
from service.wire.arrays import Array
from service.wire.members import Members, assemble, check_names
from service.wire.pointer import pointer

CAPACITY = 16 << 20
"""Bytes of headers that are kept."""
OF_PLAN = 12 << 10
"""About what the plan has, beside its positions, that each of them keeps."""

_DTYPES: dict[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}
_NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32"}


def decode(body: bytes | bytearray) -> AttentionInput:
    """Raises MalformedBody, InvalidInput."""
    tensors = _tensors(body)
    check_names((name for name, _ in tensors), dotted=True)
    members = Members()
    for name, tensor in tensors:
        if name in ("tokens", "text"):
            others = " or npz" if name == "tokens" else ""
            raise InvalidInput(
                f"{name!r} is text, and safetensors holds numbers only; send it in JSON{others}",
                pointer=pointer(name),
            )
        target = members.parameters if "." in name else members.arrays
        target[name] = _array(tensor, pointer(name))
    return assemble(members)


def arrays(body: bytes | bytearray) -> Iterator[tuple[str, Array]]:
    """By their names, whatever these are. Raises as `decode`."""
    for name, tensor in _tensors(body):
        yield name, _array(tensor, pointer(name))


def _tensors(body: bytes | bytearray) -> list[tuple[str, dict[str, Any]]]:
    try:
        tensors: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(bytes(body))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        hint = media.mismatch(body, media.SAFETENSORS) or f": {error}"
        raise MalformedBody(f"the body is not a safetensors file{hint}") from None
    return tensors


def _array(tensor: dict[str, Any], at: str) -> Array:
    dtype, shape, data = tensor["dtype"], tensor["shape"], tensor["data"]
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if dtype not in _DTYPES:
        raise InvalidInput(f"{at} has the type {dtype}; taken are BF16, {', '.join(_DTYPES)}", pointer=at, dtype=dtype)
    return np.frombuffer(data, dtype=_DTYPES[dtype]).reshape(shape)


class _Heads:
    """The headers of answers that were planned alike: they differ in their timings only."""

    def __init__(self) -> None:
        self._known: Cache[tuple[Hashable, str | None, str], tuple[bytes, bytes]] = Cache(CAPACITY)

    def head(self, result: ScoringResult, dtype: str) -> bytes:
        """The header of an answer whose arrays are packed in their order."""
        if not _alike(result):
            return _head(answer.metadata(result, dtype), answer.arrays(result))
        key = result.plan, result.mask, dtype
        around = self._known.get(key)
        if around is None:
            around = around_timings(result, dtype)
            if around is None:
                return _head(answer.metadata(result, dtype), answer.arrays(result))
            self._known.put(key, around, sum(map(len, around)) + OF_PLAN + 8 * (result.queries + result.keys))
        return _between(around, answer.timings_text(result.timings))


def _alike(result: ScoringResult) -> bool:
    """Whether every answer of its plan has its header, but for the timings."""
    if result.plan is None or result.tokens is not None or result.comparison is not None:
        return False
    return not any(one.nonfinite_cells or one.summary is not None for one in result.results)


_HEADS = _Heads()


def around_timings(result: ScoringResult, dtype: str) -> tuple[bytes, bytes] | None:
    """What stands before and after the timings in the header of this answer; None where that cannot be told."""
    timings = _quoted(answer.timings_text(result.timings))
    text = _head(answer.metadata(result, dtype), answer.arrays(result)).rstrip(b" ")
    before, found, after = text.partition(timings)
    return (before, after) if found and timings not in after else None


def headed(before: bytes, timings: str, after: bytes) -> bytes:
    """The header, with its length."""
    text = _between((before, after), timings)
    return len(text).to_bytes(8, "little") + text


def encode(result: ScoringResult, dtype: str) -> list[Any]:
    """Header and arrays; the pieces of the numbers are views of the result's own arrays."""
    head = _HEADS.head(result, dtype)
    return [len(head).to_bytes(8, "little") + head, *(_bytes(array) for _, array in answer.arrays(result))]


def pack(metadata: bytes, arrays: Iterable[tuple[str, Array]]) -> list[Any]:
    """C-contiguous arrays by name, and JSON about them, in pieces."""
    named = list(arrays)
    head = _head(metadata, named)
    return [len(head).to_bytes(8, "little") + head, *(_bytes(array) for _, array in named)]


def _head(metadata: bytes, arrays: Iterable[tuple[str, Array]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {answer.METADATA: metadata.decode()}}
    offset = 0
    for name, array in arrays:
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    return _padded(orjson.dumps(header))


def _between(around: tuple[bytes, bytes], timings: str) -> bytes:
    return _padded(around[0] + _quoted(timings) + around[1])


def _quoted(timings: str) -> bytes:
    """As they stand inside a string of the header."""
    return timings.replace('"', '\\"').encode()


def _padded(text: bytes) -> bytes:
    return text + b" " * (-len(text) % 8)


def _bytes(array: Array) -> memoryview:
    little = array if sys.byteorder == "little" else array.astype(array.dtype.newbyteorder("<"))
    return little.data.cast("B") if little.size else memoryview(b"")
