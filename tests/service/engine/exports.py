"""Jobs for the encodings in exported/identity, as far as their parameters need nothing that a request must bring."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx

from service.engine.job import Graph, Job, Tables, digest
from service.engine.session import Sessions

IDENTITY = Path(__file__).parents[3] / "exported" / "identity"
KINDS = {"number": np.float64, "integer": np.int64, "flag": np.bool_}


def exported() -> list[str]:
    """The exported encodings whose parameters all have a default in the file."""
    return sorted(path.stem for path in IDENTITY.glob("*.onnx") if "." not in path.stem and _defaults(path) is not None)


def _defaults(path: Path) -> dict[str, np.ndarray] | None:
    parameters = json.loads(onnx.load(path).metadata_props[0].value)["parameters"]
    values: dict[str, np.ndarray] = {}
    for one in parameters:
        if one["kind"] == "choice":
            values[one["name"]] = np.array(one["choices"].index(one["default"]), np.int64)
        elif one["kind"] in KINDS and one["default"] is None:
            values[one["name"]] = np.array(np.nan)
        elif one["kind"] == "array" and one["initial"] is None and one["shape"] == ["heads"]:
            values[one["name"]] = np.zeros(2, np.float32)
        elif one["kind"] in KINDS:
            values[one["name"]] = np.array(one["default"], KINDS[one["kind"]])
        else:
            return None
    return {f"parameter.{name}": value for name, value in values.items()}


def exported_job(sessions: Sessions, encoding: str, outputs: tuple[str, ...], tokens: int, seed: int) -> Job:
    """Random embeddings of 2 heads of 4, under a real exported encoding at positions 0, 1, 2, ..."""
    path = IDENTITY / f"{encoding}.onnx"
    session = sessions.positions(path.with_suffix(".positions.onnx"))
    positions = np.arange(tokens, dtype=np.float64)
    feeds = {
        "query_positions": positions,
        "key_positions": positions,
        "causal": np.array(False),
        "heads_like": np.zeros((2, 4), np.float32),
        **(_defaults(path) or {}),
    }
    tables = dict(zip(session.outputs, session.run(session.outputs, feeds), strict=True))
    x = np.random.default_rng(seed).standard_normal((1, tokens, 2, 4), dtype=np.float32)
    cells = 2 * tokens * tokens * len(outputs)
    return Job(
        Graph(f"identity.{encoding}", path, digest(path.read_bytes())),
        Tables(f"{encoding}/{tokens}", tables),
        outputs,
        x,
        x,
        None,
        cells,
    )
