"""Nested lists of numbers, as orjson reads them, made arrays row by row in C; what is wrong with them is told by its
place."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import orjson
from jaxtyping import Float

from service.errors import InvalidInput
from service.words import counted

MAX_RANK = 8
_LARGEST = int(np.finfo(np.float64).max)


def numbers(value: Any, at: str, *, booleans: bool = False) -> Float[np.ndarray, "..."]:
    """Nested lists as a float64 array. Raises InvalidInput at the first ragged row or value that is no number."""
    shape: list[int] = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        if not first or len(shape) > MAX_RANK:
            break
        first = first[0]
    if len(shape) > MAX_RANK:
        raise InvalidInput(f"{at} is nested more than {MAX_RANK} lists deep", pointer=at)
    flat = array.array("d")
    try:
        _flatten(value, shape, flat, booleans)
    except (TypeError, OverflowError, _Ragged):
        _explain(value, shape, at, booleans)
    return np.frombuffer(flat, dtype=np.float64).reshape(shape)


class _Ragged(Exception):
    """Some list has another length than the first at its depth, or a value is no number."""


def _flatten(value: Any, shape: list[int], flat: array.array[float], booleans: bool) -> None:
    level = [value]
    for size in shape[:-1]:
        if not all(type(part) is list and len(part) == size for part in level):
            raise _Ragged
        level = [child for part in level for child in part]
    if not shape:
        flat.append(value)
        rows = [level]
    else:
        rows = level
        for row in rows:
            flat.fromlist(row)
        if any(len(row) != shape[-1] for row in rows):
            raise _Ragged
    if not booleans:
        # true and false are numbers to Python; only where a 0 or a 1 came is it worth looking at the types.
        values = np.frombuffer(flat, dtype=np.float64)
        if ((values == 0) | (values == 1)).any() and any(bool in set(map(type, row)) for row in rows):
            raise _Ragged


def _explain(value: Any, shape: list[int], at: str, booleans: bool) -> None:
    """Finds what is wrong, in the order in which one reads it."""
    _look(value, shape, at, booleans, at)
    raise InvalidInput(f"{at} cannot be read as an array of numbers", pointer=at)


def _look(value: Any, shape: list[int], at: str, booleans: bool, whole: str) -> None:
    if not shape:
        allowed = (int, float, bool) if booleans else (int, float)
        if not isinstance(value, allowed) or (isinstance(value, bool) and not booleans):
            expected = "a number is expected there" if at != whole else "an array of numbers is expected there"
            raise InvalidInput(f"{at} is {kind(value)}; {expected}", pointer=at)
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise InvalidInput(
                f"{at} is an integer of {len(str(abs(value)))} digits, too large for a float", pointer=at
            )
        return
    unit = "number" if len(shape) == 1 else "list"
    expected = counted(shape[0], unit)
    if not isinstance(value, list):
        raise InvalidInput(f"{at} is {kind(value)}; a list of {expected} is expected there", pointer=at)
    if len(shape) > 1 or not set(map(type, value)) <= {float}:
        for i, part in enumerate(value):
            _look(part, shape[1:], f"{at}/{i}", booleans, whole)
    if len(value) != shape[0]:
        raise InvalidInput(
            f"{at} has {counted(len(value), unit)}, but the first of its kind in {whole} has {shape[0]}: "
            "rows must be of equal length",
            pointer=at,
            length=len(value),
            expected=shape[0],
        )


def kind(value: Any) -> str:
    """What a value of JSON is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            shown = value if len(value) <= 40 else value[:40] + "..."
            return f"the string {orjson.dumps(shown).decode()}"
        case list():
            return "a list" if value else "an empty list"
        case dict():
            return "an object"
        case _:
            return f"the number {value}"
