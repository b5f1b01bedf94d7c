"""Presets in every format that a request body may have: what `POST /attention` reads as it is."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import orjson

from service.presets.preset import Tokens
from service.wire import base64, json, media, npz, safetensors
from service.wire.body import Form

WRITTEN = (media.JSON, media.NPY, media.NPZ, media.SAFETENSORS)


def encode(kind: str, tokens: Tokens, form: Form = "lists") -> Iterable[Any]:
    """Bytes and memoryviews, in one of `WRITTEN`; the same for the same tokens.

    Names go where the format has room for text: into JSON and npz, and beside the arrays in safetensors.
    """
    match kind:
        case media.JSON:
            return _json(tokens, form)
        case media.NPY:
            file = io.BytesIO()
            np.save(file, tokens.embeddings)
            return [file.getvalue()]
        case media.NPZ:
            return npz.pack(None, [("embeddings", tokens.embeddings), ("tokens", np.array(tokens.names))])
        case _:
            metadata = orjson.dumps({"tokens": tokens.names})
            return safetensors.pack(metadata, [("embeddings", tokens.embeddings)])


def _json(tokens: Tokens, form: Form) -> Iterator[Any]:
    yield b'{"embeddings":'
    yield from (base64.encode if form == "base64" else json.encode_array)(tokens.embeddings)
    yield b',"tokens":' + orjson.dumps(tokens.names) + b"}"
