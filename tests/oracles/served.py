"""The exported graphs, run as a service runs them: the positions graph, then the scores graph."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from tests.oracles.answer import Answer
from tests.oracles.case import Case

EXPORTED = Path(__file__).parents[2] / "exported" / "identity"


class Served:
    """One encoding of the identity family. `about` is its metadata."""

    def __init__(self, encoding: str, folder: Path = EXPORTED) -> None:
        self.scores_path, self.positions_path = folder / f"{encoding}.onnx", folder / f"{encoding}.positions.onnx"
        self.about: dict[str, Any] = metadata(self.scores_path)
        self.kinds = {p["name"]: p for p in self.about["parameters"]}
        self.positions, self.scores = session(self.positions_path), session(self.scores_path)

    def tables(self, case: Case) -> dict[str, np.ndarray]:
        """What the positions graph says of the case."""
        feeds = {
            "query_positions": case.m,
            "key_positions": case.n,
            "causal": np.array(case.causal),
            "heads_like": np.zeros((case.heads, case.head_dim), np.float32),
        }
        feeds |= {f"parameter.{name}": self.feed(name, value, case) for name, value in case.parameters.items()}
        return run(self.positions, feeds)

    def answer(self, case: Case) -> Answer:
        """Both graphs, as float64 arrays of the float32 they gave."""
        feeds = {
            "queries": case.queries.astype(np.float32),
            "keys": case.keys.astype(np.float32),
            "visible": case.visible,
        }
        feeds |= {f"switch.{name}": np.array(value is not None) for name, value in case.parameters.items()}
        got = {name: value.astype(np.float64) for name, value in run(self.scores, feeds | self.tables(case)).items()}
        terms = {name.removeprefix("term."): value for name, value in got.items() if name.startswith("term.")}
        return Answer(got["scores"], got["weights"], got["output"], terms)

    def feed(self, name: str, value: Any, of: Case) -> np.ndarray:
        """A parameter's value as its graph input: NaN, or zeros that a switch leaves out, where it is not given."""
        match self.kinds[name]["kind"]:
            case "array" if value is None:
                return np.zeros([getattr(of, size) for size in self.kinds[name]["shape"]], np.float32)
            case "number" if value is None:
                return np.array(np.nan)
            case "choice":
                return np.array(self.kinds[name]["choices"].index(value), np.int64)
            case "array":
                return np.asarray(value, np.float32)
            case "integer":
                return np.array(value, np.int64)
            case "flag":
                return np.array(value, bool)
            case _:
                return np.asarray(value, np.float64)


@cache
def served(encoding: str) -> Served:
    """Sessions are dear, so one for each encoding."""
    return Served(encoding)


def metadata(path: Path) -> dict[str, Any]:
    """The `attention` entry of a file."""
    props = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    about: dict[str, Any] = json.loads(props["attention"])
    return about


def session(graph: Path | bytes) -> onnxruntime.InferenceSession:
    """On one thread of the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    source = graph if isinstance(graph, bytes) else str(graph)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output by name; feeds that the graph does not take are left out."""
    wanted = {entry.name for entry in session.get_inputs()}
    outputs = [entry.name for entry in session.get_outputs()]
    answers = session.run(outputs, {name: value for name, value in feeds.items() if name in wanted})
    return dict(zip(outputs, answers, strict=True))
