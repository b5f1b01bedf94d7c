"""Request bodies in every format, built once so that no task spends its time encoding."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import safetensors.numpy
from jaxtyping import Float

LENGTHS = (8, 16, 32, 64, 128)
WIDTH = 64

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


def build(seed: int) -> list[Body]:
    """Every length in every format, the same numbers for the same seed."""
    random = np.random.default_rng(seed)
    bodies = []
    for length in LENGTHS:
        embeddings = random.standard_normal((length, WIDTH), dtype=np.float32)
        for name, (media_type, encode) in FORMATS.items():
            bodies.append(Body(name, media_type, length, encode(embeddings)))
    return bodies


# What a client can get wrong, each with the status it has to meet.
BAD_BODIES = (
    (Body("json", "application/json", 0, b'{"embeddings": [[1, 2], [3]]}'), 422),
    (Body("json", "application/json", 0, b'{"embeddings": [[1, NaN]]}'), 422),
    (Body("json", "application/json", 0, b'{"embeddings": [[1, 2]'), 400),
    (Body("npy", "application/x-npy", 0, b"\x93NUMPY\x01\x00"), 400),
    (Body("text", "text/csv", 0, b"1,2\n3,4\n"), 415),
)
