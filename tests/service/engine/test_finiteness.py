"""Whether all numbers are finite, where the CPU computes: it looks at one number of a row where that tells of all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.engine.assembly import assemble
from service.engine.device import CPU, Provider
from service.engine.finiteness import FINITE, flag, implied, softmaxes
from service.engine.pruning import prune
from service.engine.session import Session, Sessions
from service.finite import all_finite
from tests.service.engine.exports import exported, exported_job

SHAPES = arrays.array_shapes(min_dims=4, max_dims=4, max_side=5)


def floats(*names: str) -> st.SearchStrategy[np.ndarray]:
    return st.one_of([arrays.arrays(np.dtype(name), SHAPES) for name in names])


@given(floats("f2", "f4", "f8"), st.booleans())
def test_an_array_is_finite_where_each_of_its_numbers_is(array: np.ndarray, turned: bool) -> None:
    array = array.T if turned else array
    assert all_finite(array) == all(np.isfinite(number) for number in array.flat)


@given(st.lists(floats("f4"), min_size=1, max_size=3))
def test_the_flag_tells_of_each_item_of_the_batch(matrices: list[np.ndarray]) -> None:
    batch = min(map(len, matrices))
    outputs = {str(i): np.ascontiguousarray(array[:batch]) for i, array in enumerate(matrices)}
    found = flag(outputs)
    assert found is not None
    wanted = [all(np.isfinite(array[i]).all() for array in outputs.values()) for i in range(batch)]
    assert np.isfinite(found).tolist() == wanted


def test_without_matrices_there_is_no_flag() -> None:
    assert flag({"output": np.zeros((2, 3, 4), np.float32)}) is None


@pytest.mark.parametrize("encoding", exported())
def test_the_weights_of_every_encoding_are_rows_of_a_softmax_unless_masked(encoding: str) -> None:
    graph = exported_job(Sessions("cpu"), encoding, ("weights",), 4, 0).graph
    model = onnx.load(graph.path)
    outputs = ("weights", "scores")
    assert softmaxes(prune(model, outputs, masked=False)) == {"weights"}
    assert softmaxes(prune(model, outputs, masked=True)) == frozenset()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("encoding", exported())
def test_weights_need_no_look_where_the_scores_they_are_made_of_have_one(encoding: str, masked: bool) -> None:
    graph = exported_job(Sessions("cpu"), encoding, ("weights",), 4, 0).graph
    model = onnx.load(graph.path)
    assert implied(prune(model, ("weights", "scores"), masked=masked)) == {"weights"}
    assert implied(prune(model, ("weights",), masked=masked)) == frozenset()
    assert "half.weights" not in implied(prune(model, ("half.weights", "half.scores", "scores"), masked=masked))


@pytest.mark.parametrize(
    ("low", "filled", "conditions", "expected"),
    [
        (-np.inf, 0.0, "cc", {"w"}),
        (-1e30, 0.0, "cd", {"w"}),
        (-np.inf, 0.0, "cd", set()),  # a row that c hides and d does not
        (np.inf, 0.0, "cc", set()),
        (np.nan, 0.0, "cc", set()),
        (-np.inf, np.nan, "cc", set()),
    ],
)
def test_what_a_mask_hides_must_be_hidden_again(low: float, filled: float, conditions: str, expected: set[str]) -> None:
    value, node, dims = onnx.helper.make_tensor_value_info, onnx.helper.make_node, ["a", "b", "c", "d"]
    nodes = [
        node("Where", [conditions[0], "s", "low"], ["t"]),
        node("Softmax", ["t"], ["u"], axis=-1),
        node("Where", [conditions[1], "u", "filled"], ["w"]),
        node("Neg", ["x"], ["s"]),
    ]
    constants = [
        onnx.numpy_helper.from_array(np.array([one], np.float32), name)
        for name, one in [("low", low), ("filled", filled)]
    ]
    graph = onnx.helper.make_graph(
        [nodes[3], *nodes[:3]],
        "masked",
        [value("x", onnx.TensorProto.FLOAT, dims), *(value(c, onnx.TensorProto.BOOL, dims) for c in "cd")],
        [value(name, onnx.TensorProto.FLOAT, dims) for name in "ws"],
        constants,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    assert implied(model) == expected


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(["rope", "alibi", "none"]),
    st.booleans(),
    st.sampled_from([1e18, 9e18, 3e19, 1e30]),
    st.integers(0, 99),
)
def test_what_exceeds_float32_is_found_whatever_is_not_looked_at(
    encoding: str, masked: bool, size: float, seed: int
) -> None:
    """Scores of -inf too, of which the weights show nothing."""
    sessions, outputs = Sessions("cpu"), ("weights", "scores")
    job = exported_job(sessions, encoding, outputs, 6, seed)
    numbers = (job.queries * np.float32(size)).astype(np.float32)
    visible = np.tri(6, dtype=bool)[None, None] if masked else None
    feeds = assemble([replace(job, queries=numbers, keys=numbers, visible=visible)])
    found = sessions.run(job.graph, outputs, masked, feeds)
    finite = all(np.isfinite(found[name]).all() for name in outputs)
    assert bool(np.isfinite(found[FINITE]).all()) == finite


@pytest.mark.parametrize("axis", [2, 3])
def test_one_number_tells_of_a_row_only_where_the_softmax_is_over_rows(axis: int) -> None:
    assert softmaxes(_softmax(axis)) == ({"w"} if axis == 3 else set())


@settings(deadline=None)
@given(SHAPES, st.integers(1, 70), st.data())
def test_a_row_of_a_softmax_is_damaged_as_a_whole(shape: tuple[int, ...], width: int, data: st.DataObject) -> None:
    """On which the look at one number rests: by NaN, and by infinity, wherever in the row it is."""
    session = _session()
    scores = np.random.default_rng(width).standard_normal((*shape[:-1], width), dtype=np.float32)
    for _ in range(data.draw(st.integers(1, 3))):
        place = tuple(data.draw(st.integers(0, size - 1)) for size in scores.shape)
        scores[place] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.0]))
    (weights,) = session.run(["w"], {"s": scores})
    finite = np.isfinite(weights)
    assert (finite.all(axis=-1) == finite[..., 0]).all()
    found = flag({"w": weights}, session.rows)
    assert found is not None
    assert np.isfinite(found).tolist() == finite.all(axis=(1, 2, 3)).tolist()


def _softmax(axis: int) -> onnx.ModelProto:
    value = onnx.helper.make_tensor_value_info
    dims = ["a", "b", "c", "d"]
    nodes = [
        onnx.helper.make_node("Softmax", ["s"], ["t"], axis=axis),
        onnx.helper.make_node("Identity", ["t"], ["w"]),
    ]
    inputs, outputs = ([value(name, onnx.TensorProto.FLOAT, dims)] for name in "sw")
    graph = onnx.helper.make_graph(nodes, "softmax", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def _session() -> Session:
    model = _softmax(3)
    return Session(model.SerializeToString(), Provider(CPU), rows=softmaxes(model))
