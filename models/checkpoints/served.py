"""What an exported layer answers, computed from its two files alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from jaxtyping import Float32
from torch import Tensor


class Exported:
    """One encoding of an imported layer, under its default parameters."""

    def __init__(self, scores: Path, positions: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        self._scores = onnxruntime.InferenceSession(scores, options, providers=providers)
        self._positions = onnxruntime.InferenceSession(positions, options, providers=providers)
        properties = onnx.load(scores, load_external_data=False).metadata_props
        self.metadata: Mapping[str, Any] = json.loads(next(one.value for one in properties if one.key == "attention"))

    def weights(self, hidden: Float32[Tensor, "batch tokens width"]) -> Float32[Tensor, "batch heads tokens tokens"]:
        """Attention of hidden states to themselves, under the layer's own mask."""
        about, tokens = self.metadata, hidden.shape[1]
        positions = np.arange(tokens, dtype=np.float64)
        r = positions[:, None] - positions
        causal = about["default_causal"] or about["causal"] == "required"
        visible = r >= 0 if causal else np.ones_like(r, dtype=bool)
        if window := about.get("window"):
            visible &= (r <= window["before"]) & (-r <= window["after"])
        feeds = {
            "query_positions": positions,
            "key_positions": positions,
            "causal": np.array(causal),
            "heads_like": np.zeros((about["heads"], about["head_dim"]), np.float32),
            "queries": hidden.numpy(),
            "keys": hidden.numpy(),
            "visible": visible[None, None],
        }
        for parameter in about["parameters"]:
            feeds[f"parameter.{parameter['name']}"] = _default(parameter, about)
        for name in about["switches"]:
            given = next(one for one in about["parameters"] if one["name"] == name)["default"] is not None
            feeds[f"switch.{name}"] = np.array(given)
        tables = _run(self._positions, feeds, None)
        return torch.from_numpy(_run(self._scores, {**feeds, **tables}, ["weights"])["weights"])


def _default(parameter: Mapping[str, Any], about: Mapping[str, Any]) -> np.ndarray:
    value, kind = parameter["default"], parameter["kind"]
    match kind:
        case "choice":
            return np.array(parameter["choices"].index(value), np.int64)
        case "integer":
            return np.array(value, np.int64)
        case "flag":
            return np.array(value)
        case "array":
            sizes = {name: about[name] for name in ("heads", "head_dim", "width")}
            return np.zeros([sizes[axis] if isinstance(axis, str) else axis for axis in parameter["shape"]], np.float32)
        case _:
            return np.array(np.nan if value is None else value, np.float64)


def _run(
    session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray], outputs: list[str] | None
) -> dict[str, np.ndarray]:
    names = outputs or [entry.name for entry in session.get_outputs()]
    wanted = {entry.name for entry in session.get_inputs()}
    answers = session.run(names, {name: value for name, value in feeds.items() if name in wanted})
    return dict(zip(names, answers, strict=True))
