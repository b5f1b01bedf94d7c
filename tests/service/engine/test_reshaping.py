from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from service.analysis.analyst import analysis_folder
from service.engine.device import quiet_options
from service.engine.pruning import prune
from service.engine.reshaping import reshape_simply
from tests.service.engine.exports import IDENTITY, exported


def model(nodes: Sequence[onnx.NodeProto], axes: int) -> onnx.ModelProto:
    """From x [a, b, c] and the flat `places` to y, of so many axes."""
    value = helper.make_tensor_value_info
    constants = {"rest": [-1], "four": [4], "two": [2]}
    graph = helper.make_graph(
        nodes,
        "reshaping",
        [value("x", TensorProto.FLOAT, ["a", "b", "c"]), value("places", TensorProto.INT64, ["n"])],
        [value("y", TensorProto.FLOAT, [None] * axes)],
        [numpy_helper.from_array(np.array(given), name) for name, given in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def size(name: str, axis: int) -> onnx.NodeProto:
    return helper.make_node("Shape", ["x"], [name], start=axis, end=axis + 1)


def run(tested: onnx.ModelProto) -> np.ndarray:
    onnx.checker.check_model(tested, full_check=True)
    session = onnxruntime.InferenceSession(
        tested.SerializeToString(), quiet_options(1), providers=["CPUExecutionProvider"]
    )
    found: np.ndarray = session.run(None, {"x": X, "places": PLACES})[0]
    return found


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
PLACES = np.array([1, 0])
SHAPED = [size("a", 0), size("b", 1), size("c", 2), helper.make_node("Mul", ["b", "c"], ["bc"])]
DIVIDED = [helper.make_node("Div", ["c", "two"], ["half"])]


@pytest.mark.parametrize(
    ("parts", "simpler"),
    [
        (["a", "bc"], True),
        (["a", "b", "four"], True),
        (["a", "b", "half", "two"], False),  # two sizes that it would have to work out
        (["b", "a", "c"], False),
        (["a", "c", "b"], False),
    ],
)
def test_a_shape_of_known_sizes_and_one_other_becomes_a_constant(parts: list[str], simpler: bool) -> None:
    before = model(
        [
            *SHAPED,
            *DIVIDED,
            helper.make_node("Concat", parts, ["shape"], axis=0),
            helper.make_node("Reshape", ["x", "shape"], ["y"], allowzero=1),
        ],
        len(parts),
    )
    after = reshape_simply(before)
    assert (not any(node.op_type == "Shape" for node in after.graph.node)) is simpler
    np.testing.assert_array_equal(run(after), run(before), strict=True)


def test_an_input_of_one_axis_is_not_made_flat() -> None:
    before = model(
        [
            helper.make_node("Reshape", ["places", "rest"], ["flat"]),
            helper.make_node("Gather", ["x", "flat"], ["y"], axis=2),
        ],
        3,
    )
    after = reshape_simply(before)
    assert [node.op_type for node in after.graph.node] == ["Gather"]
    np.testing.assert_array_equal(run(after), X[..., PLACES])


def test_one_of_more_axes_is() -> None:
    before = model([helper.make_node("Reshape", ["x", "rest"], ["y"])], 1)
    np.testing.assert_array_equal(run(reshape_simply(before)), X.reshape(-1))


def test_numbers_of_rows_read_no_size() -> None:
    rows = prune(onnx.load(analysis_folder(()) / "rows.onnx"), ["row_sum", "self_token", "previous_token"], False)
    assert any(node.op_type == "Shape" for node in rows.graph.node)
    assert not any(node.op_type == "Shape" for node in reshape_simply(rows).graph.node)


@pytest.mark.parametrize("encoding", exported())
def test_every_encoding_stays_a_valid_graph(encoding: str) -> None:
    whole = onnx.load(IDENTITY / f"{encoding}.onnx")
    onnx.checker.check_model(reshape_simply(whole), full_check=True)
