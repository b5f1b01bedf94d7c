from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from service.engine.assembly import assemble
from service.engine.pruning import prune
from service.engine.session import Sessions
from service.engine.uncopied import uncopied
from tests.service.engine.exports import IDENTITY, exported, exported_job

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
X = np.array([3.0, -2.0, 0.5], dtype=np.float32)
OUTPUTS = ("scores", "weights")


def copy(source: str, target: str) -> onnx.NodeProto:
    return helper.make_node("Identity", [source], [target])


def value(name: str, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [None] if kind == FLOAT else [])


def model(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> onnx.ModelProto:
    """Of the inputs x and on, and the initializer c."""
    graph = helper.make_graph(
        nodes,
        "copying",
        [value("x"), value("on", BOOL)],
        [value(name) for name in outputs],
        [numpy_helper.from_array(np.array([2.0], np.float32), "c")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def run(tested: onnx.ModelProto, optimised: Path | None = None, *, on: bool = True) -> list[np.ndarray]:
    onnx.checker.check_model(tested, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    session = onnxruntime.InferenceSession(tested.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {"x": X, "on": np.array(on)}
    found: list[np.ndarray] = session.run(None, {entry.name: given[entry.name] for entry in session.get_inputs()})
    return found


def copies(tested: onnx.ModelProto) -> int:
    return sum(node.op_type == "Identity" for node in tested.graph.node)


DOUBLED = helper.make_node("Mul", ["x", "c"], ["doubled"])


@pytest.mark.parametrize(
    ("nodes", "outputs", "left"),
    [
        ([DOUBLED, copy("doubled", "y"), helper.make_node("Abs", ["y"], ["z"])], ["y", "z"], 0),
        ([DOUBLED, copy("doubled", "y"), helper.make_node("Abs", ["doubled"], ["z"])], ["z", "y"], 0),
        ([DOUBLED, copy("doubled", "a"), copy("a", "b"), copy("b", "y")], ["y"], 0),
        ([DOUBLED, copy("doubled", "a"), helper.make_node("Add", ["a", "doubled"], ["y"])], ["y"], 0),
        # Two outputs of one value: the first has it, the other is a copy of that.
        ([DOUBLED, copy("doubled", "y"), copy("doubled", "z")], ["y", "z"], 1),
        ([DOUBLED, copy("doubled", "z"), copy("z", "y")], ["y", "z"], 1),
        ([DOUBLED, copy("doubled", "y")], ["doubled", "y"], 1),
        # What a caller hands in keeps its name.
        ([copy("x", "y")], ["y"], 1),
        ([copy("c", "y"), helper.make_node("Abs", ["y"], ["z"])], ["y", "z"], 1),
        ([copy("x", "a"), helper.make_node("Abs", ["a"], ["y"])], ["y"], 0),
    ],
)
def test_a_value_has_one_name(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], left: int) -> None:
    before = model(nodes, outputs)
    after = uncopied(before)
    assert [entry.name for entry in after.graph.output] == list(outputs)
    assert copies(after) == left
    for expected, found in zip(run(before), run(after), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("on", [True, False])
def test_branches_read_the_name_that_stays(on: bool) -> None:
    """Both read a value that has another name now."""
    negated = helper.make_graph([helper.make_node("Neg", ["doubled"], ["n"])], "then", [], [value("n")])
    handed = helper.make_graph([copy("doubled", "same")], "else", [], [value("same")])
    branch = helper.make_node("If", ["on"], ["z"], then_branch=negated, else_branch=handed)
    inner = model([DOUBLED, copy("doubled", "y"), branch], ["y", "z"])
    after = uncopied(inner)
    assert copies(after) == 0
    for expected, found in zip([X * 2, -X * 2 if on else X * 2], run(after, on=on), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_model_given_is_left_as_it_was_and_one_without_copies_is_the_same() -> None:
    before = model([DOUBLED, copy("doubled", "y")], ["y"])
    bytes_before = before.SerializeToString(deterministic=True)
    after = uncopied(before)
    assert before.SerializeToString(deterministic=True) == bytes_before
    assert uncopied(after) is after


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Copies, sums and outputs in any order."""
    known, nodes = ["x", "c"], []
    for i in range(draw(st.integers(1, 8))):
        one, other = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        name = f"v{i}"
        nodes.append(copy(one, name) if draw(st.booleans()) else helper.make_node("Add", [one, other], [name]))
        known.append(name)
    outputs = draw(st.lists(st.sampled_from(known[2:]), min_size=1, unique=True))
    return model(nodes, outputs)


@given(models())
def test_any_model_gives_the_same_outputs(before: onnx.ModelProto) -> None:
    for expected, found in zip(run(before), run(uncopied(before)), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("encoding", exported())
def test_no_run_of_an_encoding_copies_its_scores_to_return_them(encoding: str, tmp_path: Path) -> None:
    whole = onnx.load(IDENTITY / f"{encoding}.onnx")
    before = prune(whole, OUTPUTS, masked=False)
    after = uncopied(before)
    feeds = assemble([exported_job(Sessions("cpu"), encoding, OUTPUTS, 5, seed=3)])
    results = []
    for tested, name in [(before, "before"), (after, "after")]:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = str(tmp_path / name)
        session = onnxruntime.InferenceSession(tested.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results.append(session.run(list(OUTPUTS), {entry.name: feeds[entry.name] for entry in session.get_inputs()}))
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert copies(onnx.load(tmp_path / "after")) == 0
