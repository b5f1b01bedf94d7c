"""Answers that differ from an earlier one in their arrays and timings alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from service.records import ScoringResult
from service.routes.attention import Asked
from service.wire import json, media, safetensors

_TIMINGS, _ARRAY = b'"timings":', b"\0"


class Template(Protocol):
    """Makes the content of an answer."""

    def pieces(self, timings: str, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Of one with these timings, as JSON, and these arrays, in the order of the answer."""


class SafetensorsTemplate:
    """`around`: what stands before and after the timings in the header."""

    def __init__(self, around: tuple[bytes, bytes]) -> None:
        self._before, self._after = around

    def pieces(self, timings: str, arrays: Sequence[np.ndarray]) -> list[Any]:
        return [safetensors.headed(self._before, timings, self._after), *(array.data.cast("B") for array in arrays)]


class JsonTemplate:
    """`between`: what stands before each array, and between the last one and the timings."""

    def __init__(self, between: Sequence[bytes]) -> None:
        *self._before, self._after = between

    def pieces(self, timings: str, arrays: Sequence[np.ndarray]) -> list[Any]:
        written: list[Any] = []
        for before, array in zip(self._before, arrays, strict=True):
            written += (before, *json.encode_array(array))
        return [b"".join([*written, self._after, timings.encode(), b"}"])]


def learn(result: ScoringResult, asked: Asked) -> Template | None:
    """From one answer, all of whose numbers are finite; None where its like are written anew each time."""
    query = asked.query
    if query.dtype != "float32" or result.head is not None or result.top_k is not None or sys.byteorder != "little":
        return None
    if any(one.nonfinite_cells for one in result.results):
        return None
    if asked.accepted == media.SAFETENSORS:
        around = safetensors.around_timings(result, query.dtype)
        return None if around is None else SafetensorsTemplate(around)
    if asked.accepted == media.JSON and query.arrays == "lists":
        return _json(result)
    return None


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
