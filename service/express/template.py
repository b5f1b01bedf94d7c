"""Answers that differ from an earlier one in their arrays, summary and timings alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import orjson

from service.records import EncodingResult, ScoringResult
from service.routes.attention import Asked
from service.wire import json, media, safetensors

_TIMINGS, _ARRAY = b'"timings":', b"\0"
_NONE = {"\0": None}
"""Stands for a summary. Nothing that a client names has such a character."""
_MARK = orjson.dumps(_NONE)


class Template(Protocol):
    """Makes the content of an answer."""

    def pieces(self, timings: str, arrays: Sequence[np.ndarray], summary: Mapping[str, Any] | None) -> list[Any]:
        """Of one with these timings, as JSON, these arrays, in the order of the answer, and this summary, if there was
        one in the answer that it is made from.
        """


class SafetensorsTemplate:
    """`before` and `after`: what stands around the timings in the header; the summary is somewhere before."""

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before.split(_quoted(_MARK)), after

    def pieces(self, timings: str, arrays: Sequence[np.ndarray], summary: Mapping[str, Any] | None) -> list[Any]:
        before = self._before[0]
        if summary is not None:
            before = b"".join((before, _quoted(_written(summary)), self._before[1]))
        return [safetensors.headed(before, timings, self._after), *(array.data.cast("B") for array in arrays)]


class JsonTemplate:
    """`between`: what stands before each array, and between the last one and the timings. The summary is before all."""

    def __init__(self, between: Sequence[bytes]) -> None:
        first, *self._between = between
        self._first = first.split(_MARK)

    def pieces(self, timings: str, arrays: Sequence[np.ndarray], summary: Mapping[str, Any] | None) -> list[Any]:
        written: list[Any] = [self._first[0]]
        if summary is not None:
            written += (_written(summary), self._first[1])
        for array, after in zip(arrays, self._between, strict=True):
            written += (*json.encode_array(array), after)
        return [b"".join([*written, timings.encode(), b"}"])]


def _written(summary: Mapping[str, Any]) -> bytes:
    return orjson.dumps(summary, option=orjson.OPT_SERIALIZE_NUMPY)


def _quoted(text: bytes) -> bytes:
    """As it stands inside a string of JSON."""
    return orjson.dumps(text.decode())[1:-1]


def learn(result: ScoringResult, asked: Asked) -> Template | None:
    """From one answer, all of whose numbers are finite; None where its like are written anew each time."""
    query = asked.query
    if query.dtype != "float32" or result.head is not None or result.top_k is not None or sys.byteorder != "little":
        return None
    if any(one.nonfinite_cells for one in result.results):
        return None
    marked = replace(result, results=[_marked(one) for one in result.results])
    if asked.accepted == media.SAFETENSORS:
        around = safetensors.around_timings(marked, query.dtype)
        return None if around is None else SafetensorsTemplate(*around)
    if asked.accepted == media.JSON and query.arrays == "lists":
        return _json(marked)
    return None


def _marked(one: EncodingResult) -> EncodingResult:
    """With a mark in the place of the summary."""
    return one if one.summary is None else replace(one, summary=_NONE)


def _json(result: ScoringResult) -> Template | None:
    between, text = [], b""

    def mark(_: np.ndarray) -> Iterator[bytes]:
        yield _ARRAY

    for piece in json.encode(result, mark):
        if piece == _ARRAY:
            between.append(text)
            text = b""
        else:
            text += piece
    before, found, after = text.rpartition(_TIMINGS)
    # They stand last: an object of numbers, and the end.
    return JsonTemplate([*between, before + found]) if found and after.count(b"}") == 2 else None
