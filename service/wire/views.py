"""What position alone contributes, in every format: the same arrays, each with its axes and a description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson

from service.views.records import PositionViews, View
from service.wire import answer, json, media, npz, safetensors
from service.wire.json import Piece


def encode(kind: str, result: PositionViews) -> Iterator[Any]:
    """The answer as bytes and memoryviews, in JSON or one of `media.BINARY`."""
    if kind == media.JSON:
        yield from _json(result)
        return
    pack = npz.pack if kind == media.NPZ else safetensors.pack
    arrays = result.arrays()
    about = {name: _about(view) for name, view in arrays.items()}
    metadata = orjson.dumps({**_head(result), "arrays": about, **_tail(result)}, option=orjson.OPT_SERIALIZE_NUMPY)
    yield from pack(metadata, ((name, np.asarray(view.values, order="C")) for name, view in arrays.items()))


def _head(result: PositionViews) -> dict[str, Any]:
    return {
        "model": result.model,
        "encoding": result.encoding,
        "title": result.title,
        "shape": {
            "heads": result.heads,
            "queries": result.queries,
            "keys": result.keys,
            "head_dim": result.head_dim,
            "width": result.heads * result.head_dim,
        },
        "causal": result.causal,
        "offset": result.offset,
        "parameters": dict(result.parameters),
        "conventions": dict(result.conventions),
        "terms": list(result.terms),
    }


def _tail(result: PositionViews) -> dict[str, Any]:
    return {"nonfinite_cells": result.nonfinite_cells, "timings": answer.timings(result.timings)}


def _about(view: View) -> dict[str, Any]:
    return {"axes": list(view.axes), "shape": list(view.values.shape), "description": view.description}


def _json(result: PositionViews) -> Iterator[Piece]:
    """Numbers that are not finite become null."""
    yield orjson.dumps(_head(result), option=orjson.OPT_SERIALIZE_NUMPY)[:-1]
    for name, views in (("views", result.views), ("tables", result.tables)):
        yield f',"{name}":{{'.encode()
        yield from _members(views)
        yield b"}"
    yield b"," + orjson.dumps(_tail(result))[1:]


def _members(views: Mapping[str, View]) -> Iterator[Piece]:
    opening = b""
    for name, view in views.items():
        yield opening + orjson.dumps(name) + b":" + orjson.dumps(_about(view))[:-1] + b',"values":'
        yield from json.encode_array(view.values) if view.values.ndim else (_number(view.values),)
        yield b"}"
        opening = b","


def _number(value: np.ndarray) -> bytes:
    return orjson.dumps(value[()], option=orjson.OPT_SERIALIZE_NUMPY)
