"""Whether all numbers of a run are finite, found out where they were computed.

On a device it is a further output of the graph, so that one number comes back instead of all. Where the CPU computes, a
look at every number takes up to a quarter of the time of the run itself (8 heads, 512 tokens), so it looks at no more
than it must.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from service.finite import all_finite

FINITE = "finite"
"""A further output [batch]: not finite where a matrix of that item has a number that is not. The reverse need not be
so: a sum may exceed what float32 holds."""
_AXES = f"{FINITE}.axes"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def flagged(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with that output, the last one, over all outputs of floats with four axes that are not `implied`;
    without it where there are none.

    A sum of numbers of which one is NaN or infinite is either of these, in whatever order they are added.
    """
    passed = implied(model)
    matrices = [one for one in model.graph.output if _covered(one.type.tensor_type) and one.name not in passed]
    if not matrices:
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    graph.initializer.append(numpy_helper.from_array(np.array([1, 2, 3], np.int64), _AXES))
    total = ""
    for i, value in enumerate(matrices):
        summed, sum_ = value.name, f"{FINITE}.{i}"
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:  # in which many sums would be too large
            summed = f"{sum_}.whole"
            graph.node.append(helper.make_node("Cast", [value.name], [summed], to=TensorProto.FLOAT))
        graph.node.append(helper.make_node("ReduceSum", [summed, _AXES], [sum_], keepdims=0))
        if total:
            graph.node.append(helper.make_node("Add", [total, sum_], [f"{sum_}.total"]))
        total = f"{sum_}.total" if total else sum_
    graph.node.append(helper.make_node("Identity", [total], [FINITE]))
    flag = helper.make_tensor_value_info(FINITE, TensorProto.FLOAT, [None])
    flag.type.tensor_type.shape.dim[0].CopyFrom(matrices[0].type.tensor_type.shape.dim[0])
    graph.output.append(flag)
    return found


def softmaxes(model: onnx.ModelProto) -> frozenset[str]:
    """The outputs that are a softmax over their last axis and nothing else.

    Where a score is NaN or +inf, its whole row is NaN: the first number of a row tells of all of it.
    """
    made = {name: node for node in model.graph.node for name in node.output}
    return frozenset(value.name for value in model.graph.output if _is_softmax(made.get(value.name), made))


def implied(model: onnx.ModelProto) -> frozenset[str]:
    """The outputs that are finite where another one is: softmaxes of that, masked or not."""
    made = {name: node for node in model.graph.node for name in node.output}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    outputs = {value.name for value in model.graph.output if _covered(value.type.tensor_type)}

    def follows(name: str, others: Collection[str], mask: str | None = None) -> bool:
        """`mask`: what it hides is replaced afterwards."""
        if name in others:
            return True
        node = made.get(name)
        match None if node is None else (node.op_type, *node.input):
            case "Identity" | "Softmax", source:
                return follows(source, others, mask)
            case "Where", condition, seen, hidden if hidden in constants:
                # A softmax may have been told by -inf what weighs nothing: that is NaN only where all of a row is.
                least = -np.inf if condition == mask else np.finfo(np.float32).min
                within = bool(((constants[hidden] >= least) & (constants[hidden] < np.inf)).all())
                return within and follows(seen, others, condition)
        return False

    return frozenset(name for name in outputs if follows(name, outputs - {name}))


def flag(
    outputs: Mapping[str, np.ndarray], rows: Collection[str] = (), passed: Collection[str] = ()
) -> np.ndarray | None:
    """What `flagged` adds to a model's outputs, found out from these, C-contiguous, of which those of `rows` are
    `softmaxes` and those of `passed` are `implied`. None where it would add nothing.
    """
    every = [name for name, array in outputs.items() if covered(array)]
    if not every:
        return None
    looked_at = [outputs[name][..., 0] if name in rows else outputs[name] for name in every if name not in passed]
    found = np.zeros(len(looked_at[0]), np.float32)
    if not all(map(all_finite, looked_at)):
        bad = [i for i in range(len(found)) if not all(all_finite(array[i]) for array in looked_at)]
        found[bad] = np.nan
    return found


def covered(array: np.ndarray) -> bool:
    """Whether an output like this is looked at."""
    return array.ndim == 4 and array.dtype.kind == "f"


def _is_softmax(node: onnx.NodeProto | None, made: Mapping[str, onnx.NodeProto]) -> bool:
    while node is not None and node.op_type == "Identity":
        node = made.get(node.input[0])
    if node is None or node.op_type != "Softmax":
        return False
    # The exporter writes the last of four axes as either.
    return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1) in (-1, 3)


def _covered(tensor: onnx.TypeProto.Tensor) -> bool:
    return len(tensor.shape.dim) == 4 and tensor.elem_type in _FLOATS
