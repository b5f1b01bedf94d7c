"""A graph that reads no more sizes than it must: the exporter works out shapes, operator by operator, that `Reshape`
knows by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from service.engine.pruning import reachable

_KEPT, _REST = 0, -1
"""Sizes that `Reshape` works out: that of the same axis before, and whatever remains."""


def reshape_simply(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model, where shapes of known sizes and one other are constants, and flat inputs are not made flat.

    No size is 0. Small runs consist of what each operator costs whatever its size: a summary of 32 tokens takes a
    tenth less.
    """
    graph = model.graph
    made = {name: node for node in graph.node for name in node.output}
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.dims == [1]}
    flat = {value.name for value in graph.input if len(value.type.tensor_type.shape.dim) == 1}
    outputs = [value.name for value in graph.output]
    shapes: dict[tuple[int, ...], str] = {}
    renamed: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for original in graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        node.input[:] = [renamed.get(name, name) for name in node.input]
        if node.op_type == "Reshape":
            data, shape = original.input
            if data in flat and shape in values and values[shape] == [_REST] and node.output[0] not in outputs:
                renamed[node.output[0]] = data
                continue
            known = tuple(_sizes(data, made.get(shape), made))
            if known and known.count(_REST) <= 1:
                shapes.setdefault(known, f"reshaping.{len(shapes)}")
                node = helper.make_node("Reshape", [node.input[0], shapes[known]], list(node.output), name=node.name)
        nodes.append(node)
    if not shapes and not renamed:
        return model
    kept, needed = reachable(nodes, outputs)
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    for field in ("node", "initializer", "value_info"):
        graph.ClearField(field)
    graph.node.extend(kept)
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    graph.initializer.extend(numpy_helper.from_array(np.array(sizes), name) for sizes, name in shapes.items())
    return found


def _sizes(data: str, shape: onnx.NodeProto | None, made: Mapping[str, onnx.NodeProto]) -> Iterator[int]:
    """What `Reshape` would be told: nothing where the shape is not put together of sizes."""
    if shape is None or shape.op_type != "Concat":
        return
    for axis, name in enumerate(shape.input):
        size = made.get(name)
        span = {} if size is None else {attribute.name: attribute.i for attribute in size.attribute}
        same = size is not None and size.op_type == "Shape" and size.input[0] == data
        yield _KEPT if same and (span.get("start", 0), span.get("end")) == (axis, axis + 1) else _REST
