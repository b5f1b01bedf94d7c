"""Makes a graph smaller before a session is built: onnxruntime computes every output, even those nobody fetches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx


def prune(model: onnx.ModelProto, outputs: Iterable[str], masked: bool) -> onnx.ModelProto:
    """A model with these outputs only, and with the nodes, initializers and inputs they need.

    Without a mask the input `visible` is all true: every `Where(visible, a, b)` becomes `a`, and `visible` is gone.
    Raises ValueError for an output that the graph lacks, and for a graph that needs `visible` for more than that.
    """
    wanted = list(outputs)
    known = [output.name for output in model.graph.output]
    if missing := [name for name in wanted if name not in known]:
        raise ValueError(f"the graph has no output {', '.join(missing)}; it has {', '.join(known)}")
    nodes = list(model.graph.node) if masked else list(_without_mask(model.graph.node, set(known)))
    kept, needed = _reachable(nodes, wanted)
    if not masked and "visible" in needed:
        raise ValueError("the graph uses `visible` for more than the condition of a Where: it has no unmasked form")
    pruned = onnx.ModelProto()
    pruned.CopyFrom(model)
    graph = pruned.graph
    for field in ("node", "initializer", "input", "output", "value_info"):
        graph.ClearField(field)
    graph.node.extend(kept)
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    graph.input.extend(value for value in model.graph.input if value.name in needed)
    graph.output.extend(model.graph.output[known.index(name)] for name in wanted)
    return pruned


def _without_mask(nodes: Iterable[onnx.NodeProto], outputs: set[str]) -> Iterator[onnx.NodeProto]:
    renamed: dict[str, str] = {}
    for original in nodes:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
        if node.op_type == "Where" and node.input[0] == "visible":
            first, name = node.input[1], node.output[0]
            if name not in outputs:
                renamed[name] = first
                continue
            # An output keeps its name. onnxruntime removes the copy.
            node = onnx.helper.make_node("Identity", [first], [name])
        yield node


def _reachable(nodes: list[onnx.NodeProto], outputs: list[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes these outputs depend on, in their order, and every name that they read."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):  # sorted topologically, as ONNX demands
        if needed.intersection(node.output):
            needed.update(_reads(node))
            kept.append(node)
    return kept[::-1], needed


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, the branches and bodies inside it included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (value.name for value in graph.output)  # a branch may hand an outer value straight through
            for inner in graph.node:
                yield from _reads(inner)
