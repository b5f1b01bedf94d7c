"""A graph that reads the outputs of another, put behind it: what lies between stays where it was computed."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

APPENDED = "summary."
"""Before every name of the graph behind, but for those that both have."""
SHARED = ("weights", "scores", "visible")
EXACT = "exact"
"""The switch of the graph behind that says that weights are 0 where they are not visible: the one before makes them
so."""


def appended(output: str) -> bool:
    """Whether it is an output of the graph behind."""
    return output.startswith(APPENDED)


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
    graph.input.extend(_renamed(value) for value in behind.graph.input if value.name not in known)
    values = {value.name: value for value in before.graph.output}
    values |= {APPENDED + value.name: _renamed(value) for value in behind.graph.output}
    del graph.output[:]
    graph.output.extend(values[name] for name in outputs)
    return model


def _renamed(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    other = onnx.ValueInfoProto()
    other.CopyFrom(value)
    other.name = value.name if value.name in SHARED else APPENDED + value.name
    return other
