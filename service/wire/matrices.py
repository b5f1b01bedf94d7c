"""Attention matrices that somebody has already, and what goes with them: a body of `POST /compare/matrices`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from service.errors import InvalidInput, UnknownName
from service.records import MatricesInput
from service.wire import arrays, json, media, members, npz, safetensors
from service.wire.arrays import Array
from service.wire.lists import kind as kind_of
from service.wire.pointer import pointer

MATRICES, SCORES = "matrices", "scores"
OTHERS = ("mask", "positions", "query_positions", "key_positions", "tokens")
NAMES = (MATRICES, SCORES, *OTHERS)
MOST = 16
"""Matrices of one request."""
LONGEST = 64
"""Characters of a matrix's name."""


def decode(kind: str, body: bytes | bytearray, limit: int) -> MatricesInput:
    """At most `limit` bytes once unpacked. The matrices are in the order of the body, in safetensors in that of their
    names. In formats of named arrays a matrix is `matrices/<name>`, its scores
    `scores/<name>`. Raises MalformedBody, InvalidInput, UnknownName, PayloadTooLarge.
    """
    result = MatricesInput()
    if kind == media.JSON:
        _read_json(result, json.load(body))
    elif kind == media.NPZ:
        _read_arrays(result, npz.arrays(body, limit))
    elif kind == media.SAFETENSORS:
        # The format keeps no order.
        _read_arrays(result, sorted(safetensors.arrays(body), key=lambda named: named[0]))
    else:
        raise InvalidInput(
            f"{kind} holds one array; send the matrices as {media.JSON} or {' or '.join(media.BINARY)}",
            pointer="header:Content-Type",
        )
    _check(result)
    return result


def _read_json(result: MatricesInput, document: Any) -> None:
    if not isinstance(document, dict):
        raise InvalidInput(f'the body is {kind_of(document)}; {{"matrices": {{"a": ..., "b": ...}}}} is expected')
    for name, value in document.items():
        at = pointer(name)
        if name in (MATRICES, SCORES):
            if not isinstance(value, Mapping) or "base64" in value:
                raise InvalidInput(f"{at} is no object of arrays by name, such as {{'a': ..., 'b': ...}}", pointer=at)
            for one, array in value.items():
                _put(result, f"{name}/{one}", json.array(array, at + pointer(one)), at + pointer(one))
        elif name == "tokens":
            result.tokens = json.tokens(value, at)
        else:
            _put(result, name, json.array(value, at, booleans=name == "mask"), at)


def _read_arrays(result: MatricesInput, named: Iterable[tuple[str, Array]]) -> None:
    for name, array in named:
        if name == "tokens":
            result.tokens = members.strings(array, pointer(name))
        else:
            _put(result, name, array, pointer(name))


def _put(result: MatricesInput, name: str, array: Array, at: str) -> None:
    group, slash, own = name.partition("/")
    if slash and group in (MATRICES, SCORES):
        if not 1 <= len(own) <= LONGEST:
            raise InvalidInput(f"{own[:LONGEST]!r}... has {len(own)} characters; a name has 1 to {LONGEST}", pointer=at)
        getattr(result, group)[own] = arrays.numeric(array, at)
    elif name == "mask":
        result.mask = arrays.mask(array, at)
    elif name in OTHERS:
        setattr(result, name, arrays.positions(array, at))
    else:
        raise UnknownName("member", name, [*NAMES, f"{MATRICES}/NAME", f"{SCORES}/NAME"], pointer=at)


def _check(result: MatricesInput) -> None:
    if not result.matrices:
        raise InvalidInput(
            'there is no matrix: send {"matrices": {"a": ..., "b": ...}}, or arrays named matrices/a, matrices/b',
            pointer="/matrices",
        )
    if len(result.matrices) > MOST:
        raise InvalidInput(f"{len(result.matrices)} matrices came, at most {MOST} are taken", pointer="/matrices")
    for name in result.scores:
        if name not in result.matrices:
            raise UnknownName("matrix", name, result.matrices, pointer="/scores" + pointer(name))
    if result.positions is not None and (result.query_positions is not None or result.key_positions is not None):
        raise InvalidInput("send positions, or query_positions and key_positions, not both", pointer="/positions")
