"""The small request that the documentation sends, in every format."""

from __future__ import annotations

import io
from base64 import b64encode
from typing import Any

import numpy as np
from safetensors.numpy import save

TOKENS = ["the", "cat", "sat", "down"]
EMBEDDINGS = [[0.9, 0.1, -0.3, 0.4], [0.2, 0.8, 0.5, -0.1], [-0.4, 0.6, 0.7, 0.2], [0.1, -0.5, 0.3, 0.9]]


def array() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(EMBEDDINGS, dtype=np.float32)


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, array())
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, embeddings=array(), tokens=np.array(TOKENS))
    return file.getvalue()


def safetensors() -> bytes:
    return save({"embeddings": array()})


def requests() -> dict[str, dict[str, Any]]:
    """JSON bodies by name, as OpenAPI examples; each works as it is, under the default encoding."""
    base64 = {"base64": b64encode(array().data).decode(), "dtype": "float32", "shape": [4, 4]}
    return {
        "sentence": {"summary": "Four tokens", "value": {"embeddings": EMBEDDINGS, "tokens": TOKENS}},
        "positions": {
            "summary": "Tokens further apart, the last one hidden",
            "value": {"embeddings": EMBEDDINGS, "positions": [0, 10, 20, 30], "mask": [1, 1, 1, 0]},
        },
        "base64": {"summary": "The same as base64", "value": {"embeddings": base64, "tokens": TOKENS}},
        "batch": {"summary": "A batch of two", "value": {"embeddings": [EMBEDDINGS, EMBEDDINGS[::-1]]}},
        "cross": {
            "summary": "One query against four keys",
            "value": {
                "queries": EMBEDDINGS[3:],
                "keys": EMBEDDINGS,
                "query_positions": [3],
                "key_positions": [0, 1, 2, 3],
            },
        },
    }


QUERY = "metrics=effective_keys,mean_distance_ratio"


def answer() -> dict[str, Any]:
    """What the first of `requests` is answered with under `rope` and `QUERY`; a test asks for it again."""
    return {
        "model": "identity",
        "shape": {"heads": 1, "queries": 4, "keys": 4, "head_dim": 4},
        "causal": False,
        "tokens": TOKENS,
        "results": [
            {
                "encoding": "rope",
                "label": None,
                "name": "rope",
                "parameters": {"theta": 10000.0, "layout": "interleaved", "rotary_fraction": 1.0},
                "conventions": {
                    "bands": "fast, medium, slow: thirds of the frequency pairs by index",
                    "layout": "interleaved unless asked otherwise; the two layouts give different scores for the same "
                    "vectors",
                    "scale": "c = 1/sqrt(head_dim)",
                    "sign": "q and k turn by +position * theta; the score depends on the signed difference m - n",
                    "where": "after projection: q and k are rotated, never the embeddings",
                },
                "summary": {
                    "rows_counted": [4],
                    "rows_forced": [0],
                    "rows_invalid": [0],
                    "rows_padding": [0],
                    "effective_keys": {
                        "mean": [3.8402038],
                        "p10": [3.7821834],
                        "p50": [3.846849],
                        "p90": [3.8929079],
                        "uniform": [4.0],
                        "layer": 3.8402038,
                        "rows": [4],
                    },
                    "mean_distance_ratio": {"mean": [0.87385356], "layer": 0.87385356, "rows": [4]},
                },
                "weights": [
                    [
                        [0.39077064, 0.16645084, 0.17596047, 0.26681805],
                        [0.15732767, 0.3461082, 0.2359996, 0.2605645],
                        [0.1674123, 0.23755512, 0.36808768, 0.22694485],
                        [0.22425793, 0.23170145, 0.20048444, 0.3435562],
                    ]
                ],
                "scores": [
                    [
                        [0.535, -0.3184208, -0.2628615, 0.15344612],
                        [-0.3184208, 0.47, 0.08707863, 0.18609898],
                        [-0.2628615, 0.08707863, 0.525, 0.04138595],
                        [0.15344612, 0.18609898, 0.04138595, 0.58],
                    ]
                ],
                "nonfinite_cells": 0,
            }
        ],
        "timings": {
            "decode_ms": 0.1,
            "queue_ms": 0.05,
            "batch_assembly_ms": 0.01,
            "compute_ms": 0.06,
            "postprocess_ms": 0.02,
            "batch_jobs": 1,
        },
    }
