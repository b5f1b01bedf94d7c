from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from service.engine.pruning import prune
from tests.service.engine.fakes import OUTPUTS, scores_model

MODEL = scores_model()


def names(values: object) -> set[str]:
    return {value.name for value in values}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("output", "inputs"),
    [
        ("term.content", {"queries", "keys", "table.scale"}),
        ("scores", {"queries", "keys", "table.scale", "table.bias"}),
        ("weights", {"queries", "keys", "table.scale", "table.bias", "visible"}),
    ],
)
def test_only_what_an_output_needs_remains(output: str, inputs: set[str]) -> None:
    pruned = prune(MODEL, [output], masked=True)
    onnx.checker.check_model(pruned, full_check=True)
    assert names(pruned.graph.output) == {output}
    assert names(pruned.graph.input) == inputs
    read = {name for node in pruned.graph.node for name in node.input}
    assert names(pruned.graph.initializer) <= read


@pytest.mark.parametrize("output", OUTPUTS)
def test_without_a_mask_nothing_reads_visible(output: str) -> None:
    pruned = prune(MODEL, [output], masked=False)
    onnx.checker.check_model(pruned, full_check=True)
    assert "visible" not in names(pruned.graph.input)
    assert not [node for node in pruned.graph.node if node.op_type == "Where"]
    assert names(pruned.graph.output) == {output}
    assert "lowest" not in names(pruned.graph.initializer)


def test_outputs_come_in_the_order_asked_for() -> None:
    pruned = prune(MODEL, ["weights", "scores"], masked=True)
    assert [value.name for value in pruned.graph.output] == ["weights", "scores"]


def test_the_model_given_is_left_as_it_was() -> None:
    before = MODEL.SerializeToString(deterministic=True)
    prune(MODEL, ["weights"], masked=False)
    assert MODEL.SerializeToString(deterministic=True) == before


def test_an_output_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"no output term\.other; it has scores, weights"):
        prune(MODEL, ["scores", "term.other"], masked=True)


def test_a_graph_that_counts_with_visible_has_no_form_without() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    model.graph.node.append(helper.make_node("Not", ["visible"], ["hidden"]))
    model.graph.node.append(helper.make_node("Cast", ["hidden"], ["mask"], to=TensorProto.FLOAT))
    model.graph.output.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, None))
    prune(model, ["weights"], masked=False)
    with pytest.raises(ValueError, match="visible for more than"):
        prune(model, ["mask"], masked=False)


def test_a_graph_that_counts_with_a_switch_has_no_form_without() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    model.graph.input.append(helper.make_tensor_value_info("switch.cap", TensorProto.BOOL, []))
    model.graph.node.append(helper.make_node("Cast", ["switch.cap"], ["on"], to=TensorProto.FLOAT))
    model.graph.output.append(helper.make_tensor_value_info("on", TensorProto.FLOAT, None))
    prune(model, ["weights"], masked=False)
    with pytest.raises(ValueError, match=r"switch\.cap for more than"):
        prune(model, ["on"], masked=False)


def test_a_branch_keeps_what_it_reads_from_outside() -> None:
    def branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])

    then, other = (
        branch("then", helper.make_node("Add", ["x", "one"], ["y"])),
        branch("else", helper.make_node("Mul", ["doubled", "one"], ["y"])),
    )
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "x"], ["doubled"]),
            helper.make_node("Neg", ["x"], ["unused"]),
            helper.make_node("If", ["flag"], ["result"], then_branch=then, else_branch=other),
        ],
        "branches",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    pruned = prune(helper.make_model(graph), ["result"], masked=True)
    assert [node.op_type for node in pruned.graph.node] == ["Add", "If"]
    assert names(pruned.graph.initializer) == {"one"}
    assert names(pruned.graph.input) == {"x", "flag"}


def test_a_switch_chooses_its_branch_and_is_gone() -> None:
    def value(name: str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, [] if kind == TensorProto.BOOL else [2])

    graph = helper.make_graph(
        [
            helper.make_node("Tanh", ["x"], ["capped"]),
            helper.make_node("Mul", ["capped", "cap"], ["grown"]),
            helper.make_node("Where", ["switch.cap", "grown", "x"], ["scores"]),
        ],
        "switched",
        [value("x"), value("cap"), value("switch.cap", TensorProto.BOOL)],
        [value("scores")],
    )
    model = helper.make_model(graph)
    off, on = prune(model, ["scores"], masked=False), prune(model, ["scores"], masked=False, switches=("cap",))
    assert [entry.name for entry in off.graph.input] == ["x"]
    assert [entry.name for entry in on.graph.input] == ["x", "cap"]
    assert [node.op_type for node in off.graph.node] == ["Identity"]
    assert [node.op_type for node in on.graph.node] == ["Tanh", "Mul", "Identity"]
