"""The smallest exported encodings, for tests of what reads them: no torch, nothing to download."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from service.encoding import Encoding, Parameter, PositionRules, PositionsGraph
from service.engine.job import Graph

Change = Callable[[onnx.ModelProto, dict[str, Any]], None]


def metadata(encoding: str, graph: str, **more: Any) -> dict[str, Any]:
    """What `docs/architecture.md` asks for, of an encoding S = scale q.k + strength."""
    document: dict[str, Any] = {
        "format": 1,
        "model": "identity",
        "encoding": encoding,
        "graph": graph,
        "opset": 18,
        "tables": {"scale": []},
        "weights": None,
    }
    if graph == "scores":
        document |= {
            "title": encoding.title(),
            "aliases": [],
            "summary": "A test.",
            "formula": {"plain": "S = c q.k", "latex": "S"},
            "paper": None,
            "conventions": {"scale": "1"},
            "terms": [{"name": "content", "description": "q.k"}],
            "invariants": {"shift": True},
            "seed_article": None,
            "parameters": [
                {
                    "name": "strength",
                    "kind": "number",
                    "description": "how strong",
                    "default": 1.0,
                    "minimum": 0,
                    "maximum": 9,
                }
            ],
            "positions": {"integer": False, "minimum": None, "rows_of": None},
            "causal": "either",
            "default_causal": False,
            "even_head_dim": False,
            "queries": ["batch", "queries", "heads", "head_dim"],
            "heads": None,
            "head_dim": None,
            "width": None,
            "outputs": ["scores", "weights", "output", "term.content"],
            "parity": {"scores": 0.0},
        }
    return document | more


def write(folder: Path, encoding: str = "plain", *, model: str = "identity", **more: Any) -> tuple[Path, Path]:
    """Writes both files of one encoding; gives their paths, scores first. `more` replaces entries of the metadata."""
    home = folder / model
    home.mkdir(parents=True, exist_ok=True)
    scores, positions = home / f"{encoding}.onnx", home / f"{encoding}.positions.onnx"
    _save(scores, _scores_graph(), metadata(encoding, "scores", model=model, **more))
    shared = {name: value for name, value in more.items() if name in ("opset", "tables", "weights")}
    _save(positions, _positions_graph(), metadata(encoding, "positions", model=model, **shared))
    return scores, positions


def change(path: Path, how: Change) -> None:
    """Changes a file: `how` gets the model and its metadata, both to be changed in place."""
    model = onnx.load(path)
    document = json.loads(model.metadata_props[0].value)
    how(model, document)
    _save(path, model, document)


def _save(path: Path, model: onnx.ModelProto, document: dict[str, Any]) -> None:
    del model.metadata_props[:]
    helper.set_model_props(model, {"attention": json.dumps(document, sort_keys=True)})
    path.write_bytes(model.SerializeToString())


def _scores_graph() -> onnx.ModelProto:
    float32, heads = TensorProto.FLOAT, ["batch", "heads", "queries", "keys"]
    inputs = [
        helper.make_tensor_value_info("queries", float32, ["batch", "queries", "heads", "head_dim"]),
        helper.make_tensor_value_info("keys", float32, ["batch", "keys", "heads", "head_dim"]),
        helper.make_tensor_value_info("table.scale", float32, []),
        helper.make_tensor_value_info("visible", TensorProto.BOOL, heads),
    ]
    nodes = [
        helper.make_node("Einsum", ["queries", "keys"], ["products"], equation="bqhd,bkhd->bhqk"),
        helper.make_node("Mul", ["products", "table.scale"], ["scores"]),
        helper.make_node("Identity", ["scores"], ["term.content"]),
        helper.make_node("Softmax", ["scores"], ["everywhere"]),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Where", ["visible", "everywhere", "zero"], ["weights"]),
        helper.make_node("Einsum", ["weights", "keys"], ["output"], equation="bhqk,bkhd->bqhd"),
    ]
    outputs = [
        helper.make_tensor_value_info(name, float32, None) for name in ("scores", "weights", "output", "term.content")
    ]
    return _model(helper.make_graph(nodes, "scores", inputs, outputs))


def _positions_graph() -> onnx.ModelProto:
    """table.scale = strength + the first query position."""
    inputs = [
        helper.make_tensor_value_info("query_positions", TensorProto.DOUBLE, ["queries"]),
        helper.make_tensor_value_info("causal", TensorProto.BOOL, []),
        helper.make_tensor_value_info("parameter.strength", TensorProto.DOUBLE, []),
    ]
    nodes = [
        helper.make_node("Constant", [], ["first"], value=helper.make_tensor("first", TensorProto.INT64, [], [0])),
        helper.make_node("Gather", ["query_positions", "first"], ["position"]),
        helper.make_node("Add", ["parameter.strength", "position"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["table.scale"], to=TensorProto.FLOAT),
    ]
    return _model(
        helper.make_graph(
            nodes, "positions", inputs, [helper.make_tensor_value_info("table.scale", TensorProto.FLOAT, [])]
        )
    )


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def encoding(
    name: str = "plain",
    *parameters: Parameter,
    positions: PositionRules | None = None,
    reads: tuple[str, ...] = ("query_positions", "key_positions"),
    **more: Any,
) -> Encoding:
    """An encoding without files."""
    inputs = tuple(dict.fromkeys((*reads, *(f"parameter.{parameter.name}" for parameter in parameters))))
    return Encoding(
        id=name,
        model="identity",
        title=name,
        outputs=("scores", "weights", "output", "term.content"),
        queries=("batch", "queries", "heads", "head_dim"),
        tables=more.pop("tables", {"scale": ()}),
        graph=Graph(f"identity.{name}", Path(f"{name}.onnx"), "d1"),
        positions_graph=PositionsGraph(
            Path(f"{name}.positions.onnx"), "d2", inputs, frozenset(inputs), ("table.scale",)
        ),
        document={},
        parameters=parameters,
        positions=positions or PositionRules(),
        **more,
    )
