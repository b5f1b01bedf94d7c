from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from service.engine.device import quiet_options
from service.engine.picking import pick_less
from service.engine.pruning import prune
from tests.service.engine.exports import IDENTITY

ROWS, HEADS, WIDTH = 40, 3, 4


def picking(
    perm: tuple[int, ...] = (0, 2, 1), axis: int = -1, kind: int = TensorProto.INT64, keys: int = 7
) -> onnx.ModelProto:
    """x [batch, heads, queries, width] by a table of each head's rows, of which an index [queries, keys] picks."""
    nodes = [
        helper.make_node("Transpose", ["table"], ["turned"], perm=perm),
        helper.make_node("MatMul", ["x", "turned"], ["product"]),
        helper.make_node("Expand", ["index", "shape"], ["expanded"]),
        helper.make_node("GatherElements", ["product", "expanded"], ["y"], axis=axis),
    ]
    axes = {"x": (2, HEADS, 5, WIDTH), "table": (HEADS, ROWS, WIDTH), "index": (5, keys)}
    inputs = [
        helper.make_tensor_value_info(name, kind if name == "index" else TensorProto.FLOAT, shape)
        for name, shape in axes.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, HEADS, 5, keys])
    shape = numpy_helper.from_array(np.array([2, HEADS, 5, keys]), "shape")
    graph = helper.make_graph(nodes, "picking", inputs, [output], [shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize(("first", "beyond"), [(0, ROWS), (0, 1), (ROWS - 1, ROWS), (7, 19), (0, 9), (30, ROWS)])
@pytest.mark.parametrize("keys", [1, 4, 5, 7])
def test_what_is_picked_is_the_same_from_any_part_of_the_table(first: int, beyond: int, keys: int) -> None:
    """Also where few are picked: up to 4 of all 40 rows."""
    generator = np.random.default_rng(first)
    x = generator.standard_normal((2, HEADS, 5, WIDTH), dtype=np.float32)
    table = generator.standard_normal((HEADS, ROWS, WIDTH), dtype=np.float32)
    index = generator.integers(first, beyond, (5, keys))
    index[0, 0], index[-1, -1] = first, beyond - 1
    less = pick_less(picking(keys=keys))
    assert less is not None
    onnx.checker.check_model(less, full_check=True)
    session = onnxruntime.InferenceSession(
        less.SerializeToString(), quiet_options(1), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"x": x, "table": table, "index": index})
    expected = np.empty((2, HEADS, 5, keys))
    for batch, head, query, key in np.ndindex(expected.shape):
        expected[batch, head, query, key] = x[batch, head, query].astype(float) @ table[head, index[query, key]]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_no_more_rows_are_multiplied_than_lie_between_those_that_are_picked() -> None:
    less = pick_less(picking())
    assert less is not None
    found = replace_output(less, "picking.0.table")
    session = onnxruntime.InferenceSession(
        found.SerializeToString(), quiet_options(1), providers=["CPUExecutionProvider"]
    )
    feeds = {
        "x": np.ones((2, HEADS, 5, WIDTH), np.float32),
        "table": np.ones((HEADS, ROWS, WIDTH), np.float32),
        "index": np.arange(35).reshape(5, 7) % 6 + 20,
    }
    assert session.run(None, feeds)[0].shape == (HEADS, 6, WIDTH)


def replace_output(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.output[:]
    found.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return found


@pytest.mark.parametrize(
    "model",
    [picking(axis=2), picking(kind=TensorProto.INT32), prune(onnx.load(IDENTITY / "t5.onnx"), ["scores"], True)],
)
def test_other_graphs_have_no_other_form(model: onnx.ModelProto) -> None:
    assert pick_less(model) is None


def test_deberta_picks_twice() -> None:
    less = pick_less(prune(onnx.load(IDENTITY / "deberta.onnx"), ["weights"], masked=False))
    assert less is not None
    assert sum(node.op_type == "Slice" for node in less.graph.node) == 2
