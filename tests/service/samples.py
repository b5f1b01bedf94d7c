"""Bodies and results for tests of the wire formats."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import safetensors.numpy

from service.records import EncodingResult, ScoringResult, Timings
from service.wire import body

Array = np.ndarray[Any, np.dtype[Any]]


def npy(array: Array, *, allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def npz(compressed: bool = False, /, **arrays: Array) -> bytes:
    file = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    save(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def tensors(**arrays: Array) -> bytes:
    return safetensors.numpy.save(arrays)


def result(*shape: int, batch: int | None = None, **changes: Any) -> ScoringResult:
    """Two encodings over [*batch, heads, queries, keys] of numbers that all differ."""
    heads, queries, keys = shape
    full = shape if batch is None else (batch, *shape)
    count = int(np.prod(full))
    matrices = [np.arange(i * count, (i + 1) * count, dtype=np.float32).reshape(full) / 7 for i in range(6)]
    results = [
        EncodingResult("rope", {"theta": 10000.0}, {"scale": "1/sqrt(head_dim)"}, matrices[0], matrices[1]),
        EncodingResult(
            "t5", {}, {"scale": "1"}, matrices[2], matrices[3], None, {"content": matrices[4], "bias": matrices[5]}
        ),
    ]
    document = ScoringResult("identity", batch, heads, queries, keys, 8, False, results, None, Timings(compute=0.001))
    for name, value in changes.items():
        setattr(document, name, value)
    return document


def encoded(kind: str, answer: ScoringResult, dtype: body.DType = "float32") -> bytes:
    return b"".join(bytes(part) for part in body.encode(kind, answer, dtype))
