"""JSON bodies: numbers as nested lists or in base64, decoded into arrays and encoded straight from them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import orjson

from service.errors import InvalidInput, MalformedBody, PayloadTooLarge
from service.records import AttentionInput, EncodingResult, ScoringResult, TopK
from service.wire import answer, base64, media, simdjson
from service.wire.arrays import Array
from service.wire.lists import kind, numbers
from service.wire.members import Members, assemble, check_names
from service.wire.pointer import pointer

BLOCK = 1 << 15
"""Numbers encoded at a time: about 1 ms, after which others get their turn."""

Piece = bytes | memoryview
Write = Callable[[Array], Iterator[Piece]]

MAX_LISTS = 1 << 20
_CACHED = 1 << 18
_NOT_JSON = re.compile(rb"NaN|Infinity|\d[eE]\+?\d{3}|\d{300}")


def decode(body: bytes | bytearray) -> AttentionInput:
    """Raises MalformedBody where the bytes are no JSON, InvalidInput where the content is not allowed."""
    brackets = _count(body, "[")
    _check_lists(body, brackets)
    members = simdjson.read(body, brackets)
    return assemble(members if members is not None else _loaded(body))


def load(body: bytes | bytearray) -> Any:
    """The document. Raises MalformedBody where the bytes are no JSON, InvalidInput where a member came twice,
    PayloadTooLarge.
    """
    _check_lists(body, _count(body, "["))
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedBody(f"the body is not JSON{media.not_json(body, error)}") from None
    check_twice(body, document)
    return document


def _loaded(body: bytes | bytearray) -> Members:
    """By way of lists."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        reason = media.not_json(body, error)
    else:
        check_twice(body, document)
        return _read(document)
    if _NOT_JSON.search(body):
        _name_nonfinite(body)
    raise MalformedBody(f"the body is not JSON{reason}")


def check_twice(body: bytes | bytearray, document: Any) -> None:
    """Raises InvalidInput for a member that an object has twice: orjson keeps the last.

    Only where the bytes have the name of a member (or of a member's member) twice is it worth a slower look.
    """
    if not isinstance(document, dict):
        return
    names = {*document, *(name for value in document.values() if isinstance(value, dict) for name in value)}
    if all(body.count(orjson.dumps(name)) < 2 for name in names):
        return

    def once(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidInput(
                    f"the body has {name[:80]!r} twice in one object; send it once",
                    pointer=pointer(name) if name in document else None,
                )
            seen.add(name)

    with suppress(RecursionError):
        json.loads(body, object_pairs_hook=once)


def _name_nonfinite(body: bytes | bytearray) -> None:
    """Raises InvalidInput naming the first NaN, Infinity or 1e400 by its place: Python's own encoder writes them."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return
    assemble(_read(document))


def _check_lists(body: bytes | bytearray, brackets: int) -> None:
    """A list of two bytes becomes one of eighty in memory: many short ones are refused before they are made."""
    if len(body) > MAX_LISTS and (lists := brackets + _count(body, "{")) > MAX_LISTS:
        raise PayloadTooLarge(
            f"the body has {lists} lists and objects, at most {MAX_LISTS} are read in JSON; "
            f"send {' or '.join(media.BINARY)}",
            lists=lists,
            limit=MAX_LISTS,
        )


def _count(body: bytes | bytearray, character: str) -> int:
    """As `body.count`, at four times its speed."""
    code, content = ord(character), np.frombuffer(body, dtype=np.uint8)
    return sum(
        int(np.count_nonzero(content[start : start + _CACHED] == code)) for start in range(0, len(content), _CACHED)
    )


def _read(document: Any) -> Members:
    if not isinstance(document, dict):
        raise InvalidInput(
            f'the body is {kind(document)}; it must be an object such as {{"embeddings": [[0.1, 0.2], [0.3, 0.4]]}}',
            pointer="",
        )
    check_names(document, dotted=False, values=document)
    members = Members(parameters_at=pointer("parameters"))
    for name, value in document.items():
        at = pointer(name)
        if name == "tokens":
            members.tokens = tokens(value, at)
        elif name == "text":
            members.text = _text(value, at)
        elif name == "parameters":
            members.parameters = _parameters(value, at)
        else:
            members.arrays[name] = array(value, at, booleans=name == "mask")
    return members


def array(value: Any, at: str, *, booleans: bool = False) -> Array:
    """Nested lists or base64 as an array. Raises InvalidInput."""
    if isinstance(value, dict) and "base64" in value:
        return base64.decode(value, at)
    return numbers(value, at, booleans=booleans)


def encode(result: ScoringResult, write: Write) -> Iterator[Piece]:
    """The answer in pieces, so that a large one can be encoded between other work. `write` encodes an array."""
    opening = orjson.dumps(answer.head(result))
    yield opening[:-1] + b',"results":['
    for i, one in enumerate(result.results):
        yield b"," if i else b""
        yield from _encode_result(one, write)
    if result.comparison is not None:
        yield b'],"comparison":' + orjson.dumps(result.comparison, option=orjson.OPT_SERIALIZE_NUMPY)
        yield b',"timings":' + orjson.dumps(answer.timings(result.timings)) + b"}"
        return
    yield b'],"timings":' + orjson.dumps(answer.timings(result.timings)) + b"}"


def _encode_result(one: EncodingResult, write: Write) -> Iterator[Piece]:
    head = answer.result_head(one)
    if one.profile is not None:
        head["summary"] = {**head["summary"], "distance_profile": one.profile}
    yield orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)[:-1]
    if one.top_k is not None:
        yield b',"top_k":{"indices":'
        yield from write(one.top_k.indices)
        yield from _encode_matrices(one.top_k, write)
        yield b"}"
    yield from _encode_matrices(one, write)
    if one.output is not None:
        yield b',"output":'
        yield from write(one.output)
    yield b',"nonfinite_cells":%d}' % one.nonfinite_cells


def _encode_matrices(one: EncodingResult | TopK, write: Write) -> Iterator[Piece]:
    for name in ("weights", "scores"):
        matrix = getattr(one, name)
        if matrix is not None:
            yield f',"{name}":'.encode()
            yield from write(matrix)
    if one.terms is not None:
        opening = b',"terms":{'
        for term, matrix in one.terms.items():
            yield opening + orjson.dumps(term) + b":"
            yield from write(matrix)
            opening = b","
        yield b"}" if one.terms else b',"terms":{}'


def encode_array(values: Array) -> Iterator[Piece]:
    """Nested lists in pieces of at most `BLOCK` numbers, unless one row is longer. Non-finite numbers become null."""
    if values.size <= BLOCK or values.ndim == 1:
        yield orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
        return
    rows = max(1, BLOCK * len(values) // values.size)
    yield b"["
    for start in range(0, len(values), rows):
        if start:
            yield b","
        if rows == 1:
            yield from encode_array(values[start])
        else:
            block = orjson.dumps(np.ascontiguousarray(values[start : start + rows]), option=orjson.OPT_SERIALIZE_NUMPY)
            yield memoryview(block)[1:-1]
    yield b"]"


def tokens(value: Any, at: str) -> list[str]:
    """Raises InvalidInput for what is no list of strings."""
    if not isinstance(value, list):
        raise InvalidInput(f"{at} is {kind(value)}; a list of strings is expected, one for each token", pointer=at)
    for i, token in enumerate(value):
        if not isinstance(token, str):
            raise InvalidInput(f"{at}/{i} is {kind(token)}; a token is a string", pointer=f"{at}/{i}")
    return value


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{at} is {kind(value)}; a string is expected", pointer=at)
    return value


def _parameters(value: Any, at: str) -> dict[str, np.ndarray]:
    if not isinstance(value, Mapping):
        raise InvalidInput(
            f'{at} is {kind(value)}; an object of arrays by ENCODING.NAME is expected, such as {{"t5.bias": [[...]]}}',
            pointer=at,
        )
    for name, part in value.items():
        if isinstance(part, str | bool):
            raise InvalidInput(
                f"{at}{pointer(name)} is {kind(part)}; a number is what it takes, {_unquoted(name, part)}, or an array "
                f"of numbers; words go into the query string: {media.in_query(name, part)}",
                pointer=at + pointer(name),
            )
    return {name: array(part, at + pointer(name)) for name, part in value.items()}


def _unquoted(name: str, value: str | bool) -> str:
    """The number that was meant, or another."""
    try:
        number = orjson.dumps(float(value)) if isinstance(value, str) else b"1"
    except ValueError:
        number = b"1"
    return f"{orjson.dumps(name[:40]).decode()}: {number.decode().removesuffix('.0')}"
