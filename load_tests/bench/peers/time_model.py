# mypy: disable-error-code="import-not-found"
"""Prints the microseconds of a run of the model in this environment, alone and in a batch of 16: the same for all?"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import numpy as np
from model import TOKENS, WIDTH, Model


def microseconds(model: Model, batch: int, seconds: float = 0.4) -> float:
    embeddings = np.random.default_rng(0).standard_normal((batch, TOKENS, WIDTH), dtype=np.float32)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        model(embeddings)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    ready = Model(Path(sys.argv[1]))
    print(microseconds(ready, 1), microseconds(ready, 16))
