"""The model that everyone runs: a scores graph pruned as the service prunes it, and the tables it is fed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from jaxtyping import Float

from service.engine.job import Graph, digest
from service.engine.session import Sessions
from service.settings import EXPORTED

ENCODING = "rope"
FOLDER = EXPORTED / "identity"

Array = np.ndarray[Any, np.dtype[Any]]


def session(model: bytes | str) -> Any:
    """One thread, no spinning: what the service and every peer use."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def scores_graph(*outputs: str) -> bytes:
    """The graph with these outputs only, nothing masked, in the form that the service gives it for the CPU."""
    path = FOLDER / f"{ENCODING}.onnx"
    graph = Graph(f"{FOLDER.name}.{ENCODING}", path, digest(path.read_bytes()))
    found = Sessions("cpu").model(graph, outputs, masked=False, switches=(), narrow=True)
    assert found is not None
    return bytes(found[0].SerializeToString())


def tables(queries: int, keys: int, heads: int, head_dim: int) -> dict[str, Array]:
    """The position tables of the encoding's defaults; queries are the last tokens of the keys."""
    path = FOLDER / f"{ENCODING}.positions.onnx"
    positions = session(str(path))
    values: dict[str, Array] = {
        "query_positions": np.arange(keys - queries, keys, dtype=np.float64),
        "key_positions": np.arange(keys, dtype=np.float64),
        "causal": np.array(False),
        "heads_like": np.zeros((heads, head_dim), dtype=np.float32),
    }
    about = {card["name"]: card for card in _metadata(FOLDER / f"{ENCODING}.onnx")["parameters"]}
    sizes = {"heads": heads, "head_dim": head_dim}
    for entry in positions.get_inputs():
        if entry.name.startswith("parameter."):
            values[entry.name] = _default(about[entry.name.removeprefix("parameter.")], sizes)
    names = [output.name for output in positions.get_outputs() if output.name.startswith("table.")]
    fed = {entry.name: values[entry.name] for entry in positions.get_inputs()}
    return dict(zip(names, positions.run(names, fed), strict=True))


def feeds(
    model: Any, vectors: Float[np.ndarray, "tokens width"], heads: int, rows: int | None = None
) -> dict[str, Array]:
    """What `model`, a session, needs to score these vectors, or only the last `rows` of them, against all of them."""
    tokens, width = vectors.shape
    split = vectors.reshape(1, tokens, heads, width // heads)
    queries = split if rows is None else split[:, tokens - rows :]
    given = {"queries": queries, "keys": split, **tables(queries.shape[1], tokens, heads, width // heads)}
    return {entry.name: given[entry.name] for entry in model.get_inputs()}


def _default(card: dict[str, Any], sizes: dict[str, int]) -> Array:
    match card["kind"]:
        case "number":
            return np.array(np.nan if card["default"] is None else card["default"], dtype=np.float64)
        case "choice":
            return np.array(card["choices"].index(card["default"]), dtype=np.int64)
        case "integer":
            return np.array(card["default"], dtype=np.int64)
        case "flag":
            return np.array(card["default"], dtype=bool)
        case "array" if card["initial"] is None:
            return np.zeros(
                [sizes[axis] if isinstance(axis, str) else axis for axis in card["shape"]], dtype=np.float32
            )
        case kind:
            raise ValueError(f"no default for the parameter {card['name']} of kind {kind}")


def _metadata(path: Path) -> dict[str, Any]:
    model = onnx.load(path, load_external_data=False)
    (entry,) = (entry.value for entry in model.metadata_props if entry.key == "attention")
    document: dict[str, Any] = json.loads(entry)
    return document
