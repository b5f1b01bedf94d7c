"""Whether all numbers are finite, where the CPU computes: it looks at one number of a row where that tells of all."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.engine.device import CPU, Provider
from service.engine.finiteness import flag, softmaxes
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
