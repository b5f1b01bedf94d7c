"""JSON bodies whose arrays simdjson makes in one go, without a Python object for each number.

The whole decoding of embeddings against the same by way of orjson's lists, of float32's digits and of float64's (one
core, the best of 25): [32, 64] 63 -> 37 and 72 -> 43 us; [128, 64] 232 -> 125 and 262 -> 160 us; [512, 256] 4.5 -> 2.0
and 4.9 -> 2.7 ms. It takes what is in order and nothing else: whatever it leaves is read as lists, which say what is
wrong.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from service.errors import InvalidInput
from service.wire import base64, lists
from service.wire.arrays import Array
from service.wire.members import NAMES, Members
from service.wire.pointer import pointer

try:
    import simdjson
except ImportError:  # there is no wheel of it for every Python
    AVAILABLE = False
else:
    AVAILABLE = True


class _Unusual(Exception):
    """Left to those who read lists."""


def read(body: bytes | bytearray, brackets: int) -> Members | None:
    """The members of a body in which `brackets` lists open or strings have a '['; None where it is to be read as lists.

    simdjson flattens what is nested too deeply without a word: that the lists found are all there are is seen from
    their number.
    """
    if not AVAILABLE or (b"\\" in body and b"\\u005" in body):  # a '[' in a string that does not look like one
        return None
    try:
        # A parser's own memory is that of its largest body, and it can be used again only when no value of its last one
        # is left: a new one costs a few microseconds.
        reader = _Reader()
        members = reader.members(simdjson.Parser().parse(body))
    except (_Unusual, InvalidInput, TypeError, ValueError, RuntimeError):
        return None
    return members if reader.brackets == brackets else None


class _Reader:
    """Counts the '[' of what it reads."""

    def __init__(self) -> None:
        self.brackets = 0

    def members(self, document: Any) -> Members:
        members = Members(parameters_at=pointer("parameters"))
        for name, value in self.items(document):
            at = pointer(name)
            match name:
                case "tokens":
                    members.tokens = self.strings(value)
                case "text":
                    members.text = self.string(value)
                case "parameters":
                    home = at
                    members.parameters = {
                        part: self.array(found, home + pointer(part)) for part, found in self.items(value)
                    }
                case _ if name in NAMES:
                    members.arrays[name] = self.array(value, at, booleans=name == "mask")
                case _:
                    raise _Unusual
        return members

    def items(self, value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, simdjson.Object):
            raise _Unusual
        names = list(value)
        if len(set(names)) < len(names) or any("\0" in name for name in names):  # it looks names up as C strings
            raise _Unusual
        return [(self.string(name), value[name]) for name in names]

    def string(self, value: Any) -> str:
        if not isinstance(value, str):
            raise _Unusual
        self.brackets += value.count("[")
        return value

    def strings(self, value: Any) -> list[str]:
        if not isinstance(value, simdjson.Array):
            raise _Unusual
        self.brackets += 1
        return [self.string(part) for part in value]

    def array(self, value: Any, at: str, *, booleans: bool = False) -> Array:
        if isinstance(value, simdjson.Object):
            found = value.as_dict()
            self.brackets += 1
            return base64.decode(found, at)
        if not isinstance(value, simdjson.Array):
            return lists.numbers(value, at, booleans=booleans)
        if booleans and isinstance(_first(value), bool):
            array = lists.numbers(value.as_list(), at, booleans=True)
            shape = array.shape
        else:
            shape = _shape(value, lists.MAX_RANK)
            array = np.frombuffer(value.as_buffer(of_type="d"), dtype=np.float64).reshape(shape)
        self.brackets += sum(prod(shape[:axis]) for axis in range(len(shape)))
        return array


def _first(value: Any) -> Any:
    while isinstance(value, simdjson.Array):
        value = next(iter(value), None)
    return value


def _shape(value: Any, rank: int) -> tuple[int, ...]:
    """Of nested lists of at most `rank` levels. Raises TypeError or _Unusual where they have none."""
    first = next(iter(value), None)
    if not isinstance(first, simdjson.Array):
        return (len(value),)
    if rank == 1:
        raise _Unusual
    if isinstance(next(iter(first), None), simdjson.Array):
        shapes = {_shape(part, rank - 1) for part in value}
    else:
        shapes = {(size,) for size in set(map(len, value))}
    if len(shapes) > 1:
        raise _Unusual
    return (len(value), *shapes.pop())
