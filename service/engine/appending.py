"""A graph that reads the outputs of another, put behind it: what lies between stays where it was computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

Dimension = onnx.TensorShapeProto.Dimension

APPENDED = "summary."
"""Before every name of the graph behind, but for those that both have."""
SHARED = ("weights", "scores", "visible")
EXACT = "exact"
"""The switch of the graph behind that says that weights are 0 where they are not visible: the one before makes them
so."""


def appended(output: str) -> bool:
    """Whether it is an output of the graph behind."""
    return output.startswith(APPENDED)


def summed(output: str) -> bool:
    """Whether it is [batch, heads, queries + keys + 1], sums along the diagonals of a matrix."""
    return output.endswith("diagonals")


def matrices(outputs: Sequence[str]) -> int:
    """How many matrices a run with these outputs makes: the weights, if no other, for their rows' numbers."""
    return max(1, sum(not appended(output) for output in outputs))


def append(before: onnx.ModelProto, behind: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """One model with these outputs, those of the graph behind under `summary.<name>`. It reads `weights` and `scores`
    of the graph before, and shares its `visible`. Neither may have subgraphs that read outer values of those names.
    """
    renamed = {name: name for name in (*SHARED, "")}
    model = onnx.ModelProto()
    model.CopyFrom(before)
    graph = model.graph
    for original in behind.graph.node:
        node = graph.node.add()
        node.CopyFrom(original)
        node.name = APPENDED + original.name
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, APPENDED + name) for name in names]
    for tensor in behind.graph.initializer:
        added = graph.initializer.add()
        added.CopyFrom(tensor)
        added.name = APPENDED + tensor.name
    known = {value.name for value in graph.input} | {"weights", "scores"}
    values = {value.name: value for value in before.graph.output}
    sizes = _sizes(values, behind)
    graph.input.extend(_renamed(value, sizes) for value in behind.graph.input if value.name not in known)
    values |= {APPENDED + value.name: _renamed(value, sizes) for value in behind.graph.output}
    del graph.output[:]
    graph.output.extend(values[name] for name in outputs)
    return model


def _sizes(before: Mapping[str, onnx.ValueInfoProto], behind: onnx.ModelProto) -> dict[str, Dimension]:
    """What the graph before says, if it does, of the sizes that the one behind names: of heads perhaps the number."""
    return {
        theirs.dim_param: ours
        for value in behind.graph.input
        if value.name in before
        for theirs, ours in zip(_axes(value), _axes(before[value.name]), strict=False)
    }


def _axes(value: onnx.ValueInfoProto) -> Sequence[Dimension]:
    axes: Sequence[Dimension] = value.type.tensor_type.shape.dim
    return axes


def _renamed(value: onnx.ValueInfoProto, sizes: Mapping[str, Dimension]) -> onnx.ValueInfoProto:
    other = onnx.ValueInfoProto()
    other.CopyFrom(value)
    other.name = value.name if value.name in SHARED else APPENDED + value.name
    for axis in _axes(other):
        if axis.dim_param in sizes:
            axis.CopyFrom(sizes[axis.dim_param])
    return other
