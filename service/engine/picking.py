"""A graph that picks from a table's products, in a form that multiplies by no row which none of them is picked from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

_SHAPE, _ONE, _ROWS = "picking.shape", "picking.one", "picking.rows"


class Pick(NamedTuple):
    """The nodes of `gather(x @ transposed(table), expanded(index))`, along the last axis."""

    transpose: onnx.NodeProto
    expand: onnx.NodeProto


def pick_less(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The same model, where the tables of each head's own rows are cut to those from the least index to the largest
    before they are multiplied; None where there are none.

    A table of 1,024 distances is multiplied whole else, though 32 tokens have 63. Indices are inputs, and count rows
    from the first. In 32 bits they are expanded in half the time.
    """
    picks = list(_picks(model.graph))
    if not picks:
        return None
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    graph.ClearField("node")
    graph.initializer.extend(
        numpy_helper.from_array(np.array([value], kind), name)
        for name, value, kind in ((_SHAPE, 1, np.int64), (_ONE, 1, np.int32), (_ROWS, -2, np.int32))
    )
    cut: dict[str, str] = {}
    picked: dict[str, str] = {}
    for i, pick in enumerate(picks):
        index, own = pick.expand.input[0], f"picking.{i}"
        cut[pick.transpose.output[0]], picked[pick.expand.output[0]] = f"{own}.table", f"{own}.index"
        graph.node.extend(
            [
                helper.make_node("Cast", [index], [f"{own}.narrow"], to=onnx.TensorProto.INT32),
                helper.make_node("ReduceMin", [f"{own}.narrow"], [f"{own}.first"], keepdims=0),
                helper.make_node("ReduceMax", [f"{own}.narrow"], [f"{own}.last"], keepdims=0),
                helper.make_node("Reshape", [f"{own}.first", _SHAPE], [f"{own}.start"]),
                helper.make_node("Add", [f"{own}.last", _ONE], [f"{own}.beyond"]),
                helper.make_node("Sub", [f"{own}.narrow", f"{own}.first"], [f"{own}.index"]),
            ]
        )
    for original in model.graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        name = node.output[0]
        if name in cut:
            own = cut[name].removesuffix(".table")
            bounds = [f"{own}.start", f"{own}.beyond", _ROWS]
            graph.node.append(helper.make_node("Slice", [node.input[0], *bounds], [cut[name]]))
            node.input[0] = cut[name]
        elif name in picked:
            node.input[0] = picked[name]
        graph.node.append(node)
    return found


def _picks(graph: onnx.GraphProto) -> Iterator[Pick]:
    made = {name: node for node in graph.node for name in node.output}
    readers: dict[str, int] = {}
    for name in (name for node in graph.node for name in node.input):
        readers[name] = readers.get(name, 0) + 1
    inputs = {value.name: value.type.tensor_type for value in graph.input}
    for node in graph.node:
        if node.op_type != "GatherElements" or _attribute(node, "axis").i != -1:
            continue
        product, expand = (made.get(name) for name in node.input)
        if product is None or product.op_type != "MatMul" or expand is None or expand.op_type != "Expand":
            continue
        transpose = made.get(product.input[1])
        if (
            transpose is not None
            and transpose.op_type == "Transpose"
            and list(_attribute(transpose, "perm").ints) == [0, 2, 1]
            and expand.input[0] in inputs
            and inputs[expand.input[0]].elem_type == onnx.TensorProto.INT64
            and all(readers[one.output[0]] == 1 for one in (product, expand, transpose))
        ):
            yield Pick(transpose, expand)


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    return next((one for one in node.attribute if one.name == name), onnx.AttributeProto())
