from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from service.engine.assembly import assemble
from service.engine.permuting import WIDEST, permute
from service.engine.pruning import prune
from service.engine.session import Sessions
from tests.service.engine.exports import IDENTITY, exported, exported_job
from tests.service.engine.fakes import scores_model

OUTPUTS = ("scores", "weights", "output")


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})
    return found


def gathering(axis: int, kind: int = TensorProto.FLOAT, rank: int = 1) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Gather", ["y", "places"], ["z"], axis=axis)],
        "gathering",
        [
            helper.make_tensor_value_info("x", kind, ["a", "b", "c"]),
            helper.make_tensor_value_info("places", TensorProto.INT64, ["n"] * rank),
        ],
        [helper.make_tensor_value_info("z", kind, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize("axis", [-1, 2])
@pytest.mark.parametrize("places", [[2, 0, 1], [0], [1, 1, -1, 0, 2]])
def test_numbers_that_change_places_within_rows_are_the_same_to_the_last_bit(axis: int, places: list[int]) -> None:
    model = gathering(axis)
    permuted = permute(model)
    assert permuted is not None
    assert "Gather" not in {node.op_type for node in permuted.graph.node}
    x = np.random.default_rng(0).standard_normal((4, 5, 3)).astype(np.float32)
    feeds = {"x": x, "places": np.array(places)}
    np.testing.assert_array_equal(run(permuted, feeds)[0], run(model, feeds)[0])
    np.testing.assert_array_equal(run(permuted, feeds)[0], x[..., places])


@pytest.mark.parametrize(
    "model",
    [
        gathering(0),
        gathering(1),
        gathering(-1, TensorProto.INT64),
        gathering(-1, rank=2),
        prune(scores_model(), ["weights"], False),
    ],
)
def test_other_graphs_have_no_other_form(model: onnx.ModelProto) -> None:
    assert permute(model) is None


def test_the_rotary_encodings_have_one() -> None:
    for encoding, rotates in {"rope": True, "rope-yarn": True, "xpos": True, "none": False, "alibi": False}.items():
        pruned = prune(onnx.load(IDENTITY / f"{encoding}.onnx"), ("weights",), False)
        assert (permute(pruned) is not None) is rotates


@pytest.mark.parametrize("encoding", exported())
def test_every_encoding_is_the_same_to_the_last_bit(encoding: str) -> None:
    sessions = Sessions("cpu")
    job = exported_job(sessions, encoding, OUTPUTS, 7, 0)
    feeds = assemble([job])
    forms = [sessions.session(job.graph, OUTPUTS, False, (), narrow) for narrow in (True, False)]
    for one, other in zip(*(form.run(OUTPUTS, feeds) for form in forms), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (forms[0] is forms[1]) == (permute(prune(onnx.load(job.graph.path), OUTPUTS, False)) is None)


def test_rows_that_are_too_long_are_left_as_they_are() -> None:
    sessions = Sessions("cpu")
    job = exported_job(sessions, "rope", ("weights",), 3, 0)
    narrow, wide = (
        sessions.session(job.graph, ("weights",), False, (), width <= WIDEST) for width in (WIDEST, WIDEST + 1)
    )
    assert narrow is not wide
    for width, session in ((WIDEST, narrow), (WIDEST + 1, wide)):
        x = np.zeros((1, 3, 1, width), np.float32)
        built = len(sessions)
        with pytest.raises(Exception, match=r"(?i)dimension|shape|broadcast"):  # its tables are those of 4
            sessions.run(job.graph, ("weights",), False, {**job.tables.arrays, "queries": x, "keys": x})
        assert len(sessions) == built, session
