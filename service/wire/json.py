"""JSON bodies: decoded with orjson into arrays, row by row in C; encoded straight from float32 arrays."""

from __future__ import annotations

import array
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson
from jaxtyping import Float

from service.errors import InvalidInput, MalformedBody, PayloadTooLarge
from service.records import AttentionInput, EncodingResult, ScoringResult
from service.wire import answer, media
from service.wire.members import Members, assemble, check_names
from service.wire.pointer import pointer

BLOCK = 1 << 16
"""Numbers encoded at a time: about 2 ms, after which others get their turn."""

MAX_RANK = 8
MAX_LISTS = 1 << 20
_LARGEST = int(np.finfo(np.float64).max)
_NOT_JSON = re.compile(rb"NaN|Infinity|\d[eE]\+?\d{3}|\d{300}")


def decode(body: bytes | bytearray) -> AttentionInput:
    """Raises MalformedBody where the bytes are no JSON, InvalidInput where the content is not allowed."""
    _check_lists(body)
    try:
        return _read(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        reason = str(error)
    if _NOT_JSON.search(body):
        _name_nonfinite(body)
    raise MalformedBody(f"the body is not JSON{media.mismatch(body, media.JSON) or ': ' + reason}")


def _name_nonfinite(body: bytes | bytearray) -> None:
    """Raises InvalidInput naming the first NaN, Infinity or 1e400 by its place: Python's own encoder writes them."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return
    _read(document)


def _check_lists(body: bytes | bytearray) -> None:
    """A list of two bytes becomes one of eighty in memory: many short ones are refused before they are made."""
    if len(body) > MAX_LISTS and (lists := body.count(b"[") + body.count(b"{")) > MAX_LISTS:
        raise PayloadTooLarge(
            f"the body has {lists} lists and objects, at most {MAX_LISTS} are read in JSON; "
            f"send {' or '.join(media.BINARY)}",
            lists=lists,
            limit=MAX_LISTS,
        )


def _read(document: Any) -> AttentionInput:
    if not isinstance(document, dict):
        raise InvalidInput(
            f'the body is {_kind(document)}; it must be an object such as {{"embeddings": [[0.1, 0.2], [0.3, 0.4]]}}',
            pointer="",
        )
    check_names(document, dotted=False)
    members = Members(parameters_at=pointer("parameters"))
    for name, value in document.items():
        at = pointer(name)
        if name == "tokens":
            members.tokens = _tokens(value, at)
        elif name == "text":
            members.text = _text(value, at)
        elif name == "parameters":
            members.parameters = _parameters(value, at)
        else:
            members.arrays[name] = numbers(value, at, booleans=name == "mask")
    return assemble(members)


def encode(result: ScoringResult) -> Iterator[bytes]:
    """The answer in pieces, so that a large one can be encoded between other work. Non-finite numbers become null."""
    opening = orjson.dumps(answer.head(result))
    yield opening[:-1] + b',"results":['
    for i, one in enumerate(result.results):
        yield b"," if i else b""
        yield from _encode_result(one)
    yield b'],"timings":' + orjson.dumps(answer.timings(result.timings)) + b"}"


def _encode_result(one: EncodingResult) -> Iterator[bytes]:
    yield orjson.dumps(answer.result_head(one), option=orjson.OPT_SERIALIZE_NUMPY)[:-1]
    for name in ("weights", "scores"):
        matrix = getattr(one, name)
        if matrix is not None:
            yield f',"{name}":'.encode()
            yield from encode_array(matrix)
    if one.terms is not None:
        opening = b',"terms":{'
        for term, matrix in one.terms.items():
            yield opening + orjson.dumps(term) + b":"
            yield from encode_array(matrix)
            opening = b","
        yield b"}" if one.terms else b',"terms":{}'
    if one.output is not None:
        yield b',"output":'
        yield from encode_array(one.output)
    yield b',"nonfinite_cells":%d}' % one.nonfinite_cells


def encode_array(values: Float[np.ndarray, "..."]) -> Iterator[bytes]:
    """Nested lists in pieces of at most `BLOCK` numbers, unless one row is longer."""
    if values.size <= BLOCK or values.ndim == 1:
        yield orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
        return
    rows = max(1, BLOCK * len(values) // values.size)
    yield b"["
    for start in range(0, len(values), rows):
        if rows == 1:
            yield b"," if start else b""
            yield from encode_array(values[start])
        else:
            block = orjson.dumps(np.ascontiguousarray(values[start : start + rows]), option=orjson.OPT_SERIALIZE_NUMPY)
            yield (b"," if start else b"") + block[1:-1]
    yield b"]"


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
            raise InvalidInput(f"{at} is {_kind(value)}; {expected}", pointer=at)
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise InvalidInput(
                f"{at} is an integer of {len(str(abs(value)))} digits, too large for a float", pointer=at
            )
        return
    expected = f"{shape[0]} numbers" if len(shape) == 1 else f"{shape[0]} lists"
    if not isinstance(value, list):
        raise InvalidInput(f"{at} is {_kind(value)}; a list of {expected} is expected there", pointer=at)
    if len(shape) > 1 or not set(map(type, value)) <= {float}:
        for i, part in enumerate(value):
            _look(part, shape[1:], f"{at}/{i}", booleans, whole)
    if len(value) != shape[0]:
        unit = "numbers" if len(shape) == 1 else "lists"
        raise InvalidInput(
            f"{at} has {len(value)} {unit}, but the first of its kind in {whole} has {shape[0]}: "
            "rows must be of equal length",
            pointer=at,
            length=len(value),
            expected=shape[0],
        )


def _kind(value: Any) -> str:
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


def _tokens(value: Any, at: str) -> list[str]:
    if not isinstance(value, list):
        raise InvalidInput(f"{at} is {_kind(value)}; a list of strings is expected, one for each token", pointer=at)
    for i, token in enumerate(value):
        if not isinstance(token, str):
            raise InvalidInput(f"{at}/{i} is {_kind(token)}; a token is a string", pointer=f"{at}/{i}")
    return value


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{at} is {_kind(value)}; a string is expected", pointer=at)
    return value


def _parameters(value: Any, at: str) -> dict[str, np.ndarray]:
    if not isinstance(value, Mapping):
        raise InvalidInput(
            f'{at} is {_kind(value)}; an object of arrays by ENCODING.NAME is expected, such as {{"t5.bias": [[...]]}}',
            pointer=at,
        )
    return {name: numbers(part, at + pointer(name)) for name, part in value.items()}
