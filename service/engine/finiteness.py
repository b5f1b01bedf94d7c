"""Whether all numbers of a run are finite, found out where they were computed: few numbers come back instead of all."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FINITE = "finite"
"""A further output [batch]: not finite where a matrix of that item has a number that is not. The reverse need not be
so: a sum may exceed what float32 holds."""
_AXES = f"{FINITE}.axes"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def flagged(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with that output, the last one, over all outputs of floats with four axes; without it where there
    are none.

    A sum of numbers of which one is NaN or infinite is either of these, in whatever order they are added.
    """
    matrices = [value for value in model.graph.output if _covered(value.type.tensor_type)]
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


def covered(array: np.ndarray) -> bool:
    """Whether an output like this is looked at."""
    return array.ndim == 4 and array.dtype.kind == "f"


def _covered(tensor: onnx.TypeProto.Tensor) -> bool:
    return len(tensor.shape.dim) == 4 and tensor.elem_type in _FLOATS
