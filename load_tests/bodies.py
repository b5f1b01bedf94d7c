"""Request bodies in every format, built once so that no task spends its time encoding."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import safetensors.numpy
from jaxtyping import Float

Embeddings = Float[np.ndarray, "tokens width"]


@dataclass(frozen=True)
class Body:
    """One request body and what it is."""

    format: str
    media_type: str
    length: int
    data: bytes


def as_json(embeddings: Embeddings) -> bytes:
    return json.dumps({"embeddings": embeddings.round(4).tolist()}).encode()


def as_npy(embeddings: Embeddings) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, embeddings)
    return buffer.getvalue()


def as_npz(embeddings: Embeddings) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, embeddings=embeddings)
    return buffer.getvalue()


def as_safetensors(embeddings: Embeddings) -> bytes:
    return safetensors.numpy.save({"embeddings": embeddings})


FORMATS: dict[str, tuple[str, Callable[[Embeddings], bytes]]] = {
    "json": ("application/json", as_json),
    "npy": ("application/x-npy", as_npy),
    "npz": ("application/x-npz", as_npz),
    "safetensors": ("application/vnd.safetensors", as_safetensors),
}


def build(seed: int, wanted: Iterable[tuple[int, int, str]]) -> dict[tuple[int, int, str], Body]:
    """Every (tokens, width, format) that is wanted, the same numbers for the same seed."""
    bodies = {}
    for length, width, name in sorted(set(wanted)):
        embeddings = np.random.default_rng((seed, length)).standard_normal((length, width), dtype=np.float32)
        media_type, encode = FORMATS[name]
        bodies[length, width, name] = Body(name, media_type, length, encode(embeddings))
    return bodies


_RIGHT = as_json(np.ones((2, 4), np.float32))
BAD_REQUESTS = (
    ("/attention", Body("json", "application/json", 0, b'{"embeddings": [[1, 2], [3]]}'), 422),
    ("/attention", Body("json", "application/json", 0, b'{"embeddings": [[1, NaN]]}'), 422),
    ("/attention", Body("json", "application/json", 0, b'{"embeddings": [[1, 2]'), 400),
    ("/attention", Body("npy", "application/x-npy", 0, b"\x93NUMPY\x01\x00"), 400),
    ("/attention", Body("npy", "application/x-npy", 0, as_npy(np.zeros((200_000, 1), np.float32))), 413),
    ("/attention", Body("text", "text/csv", 0, b"1,2\n3,4\n"), 415),
    ("/attention?encoding=rpoe", Body("json", "application/json", 2, _RIGHT), 422),
    ("/attention?heads=3", Body("json", "application/json", 2, _RIGHT), 422),
)
"""What a client can get wrong, each with the status it has to meet."""
