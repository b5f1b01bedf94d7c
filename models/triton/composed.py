"""One graph out of an encoding's two, for servers that have none of our code: its tables are computed inside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from models.opset import OPSET
from models.triton.front import EMBEDDINGS, MASK, Front
from service.encoding import Encoding
from service.engine.pruning import prune
from service.engine.uncopied import uncopied
from service.parameters import ResolvedParameters

INSIDE = "tables."
"""Before every name inside the positions graph, so that it meets none of the scores graph."""
BATCH, TOKENS = "batch", "tokens"


@dataclass(frozen=True)
class Tensor:
    """An input or output; `kind` is one of `onnx.TensorProto`'s, a size that is a string is the request's."""

    name: str
    kind: int
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Choice:
    """What a request would have said, and is part of the graph instead."""

    heads: int
    head_dim: int
    causal: bool
    masked: bool
    outputs: tuple[str, ...]
    longest: int | None
    """The most tokens for which the encoding has positions; None where nothing bounds them."""


@dataclass(frozen=True)
class Composed:
    """A graph and what it takes and gives: `embeddings` [batch, tokens, width], with a mask also `mask`
    [batch, tokens], true where a key may be seen.
    """

    model: onnx.ModelProto
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def compose(encoding: Encoding, parameters: ResolvedParameters, choice: Choice) -> Composed:
    """Both graphs of the encoding behind a `Front`. Parameters are constants of it.

    Raises ValueError for an output that the encoding does not have.
    """
    split = (choice.heads, choice.head_dim)
    width = encoding.width or choice.heads * choice.head_dim
    by_head = split if encoding.width is None else None
    before = Front(width, by_head, choice.causal, encoding.window, choice.masked, choice.longest)
    front = before.graph()
    scores = uncopied(prune(onnx.load(encoding.graph.path), choice.outputs, not before.sees_all, parameters.switches))
    needed = [value.name for value in scores.graph.input if value.name.startswith("table.")]
    tables = prune(onnx.load(encoding.positions_graph.path), needed, masked=True)
    constants = {
        "causal": np.array(choice.causal),
        "heads_like": np.zeros(split, np.float32),
        **parameters.feeds(),
    }
    read = [value.name for value in tables.graph.input if value.name in constants]
    stored = {tensor.name for tensor in tables.graph.initializer}.intersection(needed)
    tables = onnx.compose.add_prefix(tables, INSIDE, rename_inputs=False, rename_outputs=False)
    # A table that is part of the model is an initializer, and has the prefix now: scores read it without.
    named = [helper.make_node("Identity", [INSIDE + name], [name]) for name in sorted(stored)]

    inputs = [Tensor(EMBEDDINGS, onnx.TensorProto.FLOAT, (BATCH, TOKENS, width))]
    if choice.masked:
        inputs.append(Tensor(MASK, onnx.TensorProto.BOOL, (BATCH, TOKENS)))
    sizes: dict[str, int | str] = {
        "heads": choice.heads,
        "head_dim": choice.head_dim,
        "queries": TOKENS,
        "keys": TOKENS,
    }
    outputs = [_tensor(value, sizes) for value in scores.graph.output]
    graph = helper.make_graph(
        [*front.node, *tables.graph.node, *named, *scores.graph.node],
        encoding.name,
        [_declared(tensor) for tensor in inputs],
        [_declared(tensor) for tensor in outputs],
        [
            *(tensor for part in (front, tables.graph, scores.graph) for tensor in part.initializer),
            *(numpy_helper.from_array(constants[name], name) for name in read),
        ],
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=scores.ir_version, producer_name="")
    helper.set_model_props(model, {"attention": json.dumps(_about(encoding, parameters, choice), sort_keys=True)})
    onnx.checker.check_model(model, full_check=True)
    return Composed(model, tuple(inputs), tuple(outputs))


def _about(encoding: Encoding, parameters: ResolvedParameters, choice: Choice) -> dict[str, object]:
    return {
        "format": 1,
        "graph": "composed",
        "model": encoding.model,
        "encoding": encoding.id,
        "causal": choice.causal,
        "heads": choice.heads,
        "parameters": parameters.report,
    }


def _tensor(value: onnx.ValueInfoProto, sizes: Mapping[str, int | str]) -> Tensor:
    tensor = value.type.tensor_type
    shape = (sizes.get(dim.dim_param, dim.dim_param) if dim.dim_param else dim.dim_value for dim in tensor.shape.dim)
    return Tensor(value.name, tensor.elem_type, tuple(shape))


def _declared(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, tensor.kind, tensor.shape)
