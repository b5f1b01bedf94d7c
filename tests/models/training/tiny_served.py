"""The exported graphs of `tiny`, run as a service runs them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.oracles.served import metadata, run, session

TINY = Path(__file__).parents[3] / "exported" / "tiny"


class Tiny:
    """One encoding, under a causal mask, at its defaults or at `changed` numbers."""

    def __init__(self, encoding: str) -> None:
        self.about: dict[str, Any] = metadata(TINY / f"{encoding}.onnx")
        self.scores = session(TINY / f"{encoding}.onnx")
        self.positions = session(TINY / f"{encoding}.positions.onnx")

    def answer(
        self, x: np.ndarray, positions: np.ndarray | None = None, **changed: float | list[float]
    ) -> dict[str, np.ndarray]:
        """Every output for embeddings [batch, tokens, width]."""
        n = np.arange(x.shape[1], dtype=np.float64) if positions is None else positions
        feeds = {"query_positions": n, "key_positions": n, "causal": np.array(True)}
        feeds |= {"heads_like": np.zeros((4, 16), np.float32), "queries": x, "keys": x}
        feeds |= {"visible": (n[None, :] <= n[:, None])[None, None]}
        feeds |= {f"switch.{name}": np.array(False) for name in self.about["switches"]}
        for parameter in self.about["parameters"]:
            feeds[f"parameter.{parameter['name']}"] = self._feed(parameter, changed.get(parameter["name"]))
        return run(self.scores, feeds | run(self.positions, feeds))

    @staticmethod
    def _feed(parameter: dict[str, Any], value: float | list[float] | None) -> np.ndarray:
        value = parameter["default"] if value is None else value
        match parameter["kind"]:
            case "array":
                sizes = {"heads": 4, "head_dim": 16, "width": 64}
                return np.ones([sizes[size] for size in parameter["shape"]], np.float32)
            case "choice":
                return np.array(parameter["choices"].index(value))
            case "integer" | "flag":
                return np.array(value)
            case _:
                return np.array(np.nan if value is None else value, np.float64)


@cache
def tiny(encoding: str) -> Tiny:
    return Tiny(encoding)
