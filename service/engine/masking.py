"""A masked graph in a form that the CPU runs faster, as long as all is finite and every row sees a key."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

VISIBLE = "visible"
BIAS = "masking.bias"
_SHOWN, _HIDDEN = "masking.shown", "masking.hidden"


def add_mask(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The same model with the mask added to scores, as 0 and -inf, in place of both `Where` around the softmax; None
    where it has none.

    onnxruntime's `Where` takes twice as long as its `Add`, and the second is needed by rows alone that see no key,
    whose softmax is 0/0. So where a score that is not visible is NaN or +inf, or a row sees nothing, weights are NaN
    that would be numbers; all others are the same to the last bit. A NaN among weights, or among sums of rows of them,
    tells.
    """
    graph = model.graph
    scalars = {tensor.name: float(numpy_helper.to_array(tensor)) for tensor in graph.initializer if _scalar(tensor)}
    made = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    masks = {node.output[0]: node for node in graph.node if _hides(node, scalars, -np.inf)}
    if not masks:
        return None
    renamed = {
        node.input[1]: node.output[0]
        for node in graph.node
        if _hides(node, scalars, 0.0) and _sees(made.get(node.input[1]), made, masks)
    }
    masked = {node.input[1]: name for name, node in masks.items()}
    kept = {value.name for value in graph.output}
    replaced: dict[str, str] = {}
    nodes = [helper.make_node("Where", [VISIBLE, _SHOWN, _HIDDEN], [BIAS])]
    for original in graph.node:
        name = original.output[0]
        if name in masks:
            nodes.append(helper.make_node("Add", [original.input[1], BIAS], [name], name=original.name))
        elif _hides(original, scalars, 0.0) and original.input[1] in renamed:
            continue
        elif (
            original.op_type == "Where"
            and original.input[0] == VISIBLE
            and original.input[1] in masked
            and scalars.get(original.input[2], 0.0) < 0
            and name not in kept
            and all(reader.op_type == "ReduceMax" for reader in readers.get(name, ()))
        ):
            replaced[name] = masked[original.input[1]]  # the largest of a row is the same
        else:
            node = onnx.NodeProto()
            node.CopyFrom(original)
            for names in (node.input, node.output):
                names[:] = [replaced.get(renamed.get(one, one), renamed.get(one, one)) for one in names]
            nodes.append(node)
    found = onnx.ModelProto()
    found.CopyFrom(model)
    found.graph.ClearField("node")
    found.graph.node.extend(nodes)
    for name, value in ((_SHOWN, 0.0), (_HIDDEN, -np.inf)):
        found.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    return found


def _scalar(tensor: onnx.TensorProto) -> bool:
    return not tensor.dims and tensor.data_type == onnx.TensorProto.FLOAT


def _hides(node: onnx.NodeProto, scalars: Mapping[str, float], value: float) -> bool:
    """Whether it puts this value where nothing is visible."""
    return node.op_type == "Where" and node.input[0] == VISIBLE and scalars.get(node.input[2]) == value


def _sees(node: onnx.NodeProto | None, made: Mapping[str, onnx.NodeProto], masks: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether this is the softmax of scores that are hidden already, with sinks beside them or without."""
    while node is not None and node.op_type in ("Slice", "Softmax", "Concat"):
        if node.input[0] in masks:
            return True
        node = made.get(node.input[0])
    return False
