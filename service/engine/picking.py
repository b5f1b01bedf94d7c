"""A graph that picks from a table's products, in a form that multiplies by no row which none of them is picked from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

_SHAPE, _ONE, _ROWS, _LAST, _WIDE = (f"picking.{name}" for name in ("shape", "one", "rows", "last", "wide"))
_TWICE = "picking.twice"


class Pick(NamedTuple):
    """The nodes of `gather(x @ transposed(table), expanded(index))`, along the last axis."""

    transpose: onnx.NodeProto
    product: onnx.NodeProto
    expand: onnx.NodeProto
    gather: onnx.NodeProto


def pick_less(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The same model, where the tables of each head's own rows are cut to those from the least index to the largest
    before they are multiplied; None where there are none. Where few are picked for each row of `x`, those are picked
    before they are multiplied, each with its own row.

    A table of 1,024 distances is multiplied whole else, though 32 tokens have 63, and so it is for one query before
    32,768 keys, whose products take a gigabyte. Indices are inputs, and count rows from the first. In 32 bits they are
    expanded in half the time.
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
        for name, value, kind in (
            (_SHAPE, 1, np.int64),
            (_ONE, 1, np.int32),
            (_ROWS, -2, np.int32),
            (_LAST, -1, np.int64),
            (_WIDE, -2, np.int64),
            (_TWICE, 2, np.int64),  # picking first has two arrays for one of the other
        )
    )
    replaced = {id(node): i for i, pick in enumerate(picks) for node in pick}
    for node in model.graph.node:
        i = replaced.get(id(node))
        if i is None:
            graph.node.append(node)
        elif node is picks[i].gather:
            graph.node.extend(_picking(picks[i], f"picking.{i}"))
    return found


def _picking(pick: Pick, own: str) -> Iterator[onnx.NodeProto]:
    """In the place of its nodes."""
    index, table = pick.expand.input[0], pick.transpose.input[0]
    yield helper.make_node("Cast", [index], [f"{own}.narrow"], to=onnx.TensorProto.INT32)
    yield helper.make_node("ReduceMin", [f"{own}.narrow"], [f"{own}.first"], keepdims=0)
    yield helper.make_node("ReduceMax", [f"{own}.narrow"], [f"{own}.last"], keepdims=0)
    yield helper.make_node("Reshape", [f"{own}.first", _SHAPE], [f"{own}.start"])
    yield helper.make_node("Add", [f"{own}.last", _ONE], [f"{own}.beyond"])
    yield helper.make_node("Sub", [f"{own}.narrow", f"{own}.first"], [f"{own}.index"])
    yield helper.make_node("Slice", [table, f"{own}.start", f"{own}.beyond", _ROWS], [f"{own}.table"])
    # Whether the rows that are picked for one of x, as often as they are, are fewer than those of the table.
    yield helper.make_node("Shape", [index], [f"{own}.picked"], start=1, end=2)
    yield helper.make_node("Shape", [f"{own}.table"], [f"{own}.width"], start=2, end=3)
    yield helper.make_node("Mul", [f"{own}.picked", f"{own}.width"], [f"{own}.numbers"])
    yield helper.make_node("Shape", [f"{own}.table"], [f"{own}.height"], start=1, end=2)
    yield helper.make_node("Div", [f"{own}.height", _TWICE], [f"{own}.half"])
    yield helper.make_node("Less", [f"{own}.numbers", f"{own}.half"], [f"{own}.few"])
    branches = {"then_branch": _first(pick, own), "else_branch": _then(pick, own)}
    yield helper.make_node("If", [f"{own}.few"], list(pick.gather.output), name=pick.gather.name, **branches)


def _first(pick: Pick, own: str) -> onnx.GraphProto:
    """Picks, and multiplies what was picked."""
    nodes = [
        helper.make_node("Gather", [f"{own}.table", f"{own}.index"], [f"{own}.rows"], axis=1),
        helper.make_node("Unsqueeze", [pick.product.input[0], _WIDE], [f"{own}.x"]),
        helper.make_node("Mul", [f"{own}.x", f"{own}.rows"], [f"{own}.products"]),
        helper.make_node("ReduceSum", [f"{own}.products", _LAST], [f"{own}.sums"], keepdims=0),
    ]
    return helper.make_graph(nodes, f"{own}.first", [], [_matrices(f"{own}.sums")])


def _then(pick: Pick, own: str) -> onnx.GraphProto:
    """Multiplies, and picks of the products."""
    transpose, product, expand, gather = (_copied(node) for node in pick)
    transpose.input[0], expand.input[0] = f"{own}.table", f"{own}.index"
    gather.output[0] = f"{own}.gathered"
    return helper.make_graph([transpose, product, expand, gather], f"{own}.then", [], [_matrices(f"{own}.gathered")])


def _matrices(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None] * 4)


def _copied(node: onnx.NodeProto) -> onnx.NodeProto:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    return copied


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
            yield Pick(transpose, product, expand, node)


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    return next((one for one in node.attribute if one.name == name), onnx.AttributeProto())
