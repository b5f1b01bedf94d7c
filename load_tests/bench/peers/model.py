"""The model, as every peer runs it: read from what `BENCH_*` variables name. Needs NumPy and onnxruntime only."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

HEADS, TOKENS, WIDTH = 4, 32, 64


@dataclass(frozen=True)
class Settings:
    """How the server is to be set up."""

    folder: Path = field(default_factory=lambda: Path(os.environ["BENCH_FOLDER"]))
    port: int = field(default_factory=lambda: int(os.environ["BENCH_PORT"]))
    format: str = field(default_factory=lambda: os.environ["BENCH_FORMAT"])
    workers: int = field(default_factory=lambda: int(os.environ["BENCH_WORKERS"]))
    batch: int = field(default_factory=lambda: int(os.environ["BENCH_BATCH"]))
    wait_ms: float = field(default_factory=lambda: float(os.environ["BENCH_WAIT_MS"]))


class Model:
    """Attention weights of a batch of embeddings. One thread, no spinning: workers are the parallelism."""

    def __init__(self, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        with np.load(folder / "tables.npz") as tables:
            self.tables = dict(tables)

    def __call__(self, embeddings: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """float32 [batch, tokens, width] -> float32 [batch, heads, tokens, tokens]."""
        split = embeddings.reshape(len(embeddings), TOKENS, HEADS, WIDTH // HEADS)
        weights: np.ndarray[Any, Any] = self.session.run(["weights"], {"queries": split, "keys": split, **self.tables})[
            0
        ]
        return weights


def array(body: bytes) -> np.ndarray[Any, Any]:
    """The embeddings in a binary body: float32 and nothing else."""
    return np.frombuffer(body, dtype=np.float32).reshape(TOKENS, WIDTH)
