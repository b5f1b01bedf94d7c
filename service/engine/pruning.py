"""Makes a graph smaller before a session is built: onnxruntime computes every output, even those nobody fetches."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

import onnx

SWITCH = "switch."
HALF = "half."
"""Before an output's name: the same in float16. What is too large for it becomes infinite."""


def whole(output: str) -> str:
    """The graph's own name of an output."""
    return output.removeprefix(HALF)


def prune(
    model: onnx.ModelProto, outputs: Iterable[str], masked: bool, switches: Container[str] = ()
) -> onnx.ModelProto:
    """A model with these outputs only, and with the nodes, initializers and inputs they need. One that is asked for as
    `half.<name>` is cast to float16, under that name.

    Conditions that are known now are resolved: every `Where(condition, a, b)` becomes `a` or `b`, and the input is
    gone. Without a mask `visible` is all true; `switch.<name>` is true for the names in `switches` and else false.
    Raises ValueError for an output that the graph lacks, and where it uses a known condition for more than that.
    """
    wanted = list(outputs)
    available = [output.name for output in model.graph.output]
    if missing := [whole(name) for name in wanted if whole(name) not in available]:
        raise ValueError(f"the graph has no output {', '.join(missing)}; it has {', '.join(available)}")
    known = {value.name: value.name.removeprefix(SWITCH) in switches for value in model.graph.input}
    known = {name: on for name, on in known.items() if name.startswith(SWITCH)} | ({} if masked else {"visible": True})
    nodes = [*_resolved(model.graph.node, known, set(available)), *map(_cast, filter(_is_half, wanted))]
    kept, needed = reachable(nodes, wanted)
    if unresolved := needed.intersection(known):
        names = ", ".join(sorted(unresolved))
        raise ValueError(f"the graph uses {names} for more than the condition of a Where: it has no form without")
    pruned = onnx.ModelProto()
    pruned.CopyFrom(model)
    graph = pruned.graph
    for field in ("node", "initializer", "input", "output", "value_info"):
        graph.ClearField(field)
    graph.node.extend(kept)
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    graph.input.extend(value for value in model.graph.input if value.name in needed)
    graph.output.extend(_value(model.graph.output[available.index(whole(name))], name) for name in wanted)
    return pruned


def _is_half(output: str) -> bool:
    return output.startswith(HALF)


def _cast(output: str) -> onnx.NodeProto:
    return onnx.helper.make_node("Cast", [whole(output)], [output], to=onnx.TensorProto.FLOAT16)


def _value(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    if not _is_half(name):
        return value
    half = onnx.ValueInfoProto()
    half.CopyFrom(value)
    half.name, half.type.tensor_type.elem_type = name, onnx.TensorProto.FLOAT16
    return half


def _resolved(
    nodes: Iterable[onnx.NodeProto], known: Mapping[str, bool], outputs: Container[str]
) -> Iterator[onnx.NodeProto]:
    renamed: dict[str, str] = {}
    for original in nodes:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
        if node.op_type == "Where" and node.input[0] in known:
            chosen, name = node.input[1 if known[node.input[0]] else 2], node.output[0]
            if name not in outputs:
                renamed[name] = chosen
                continue
            # An output keeps its name.
            node = onnx.helper.make_node("Identity", [chosen], [name])
        yield node


def reachable(nodes: list[onnx.NodeProto], outputs: list[str]) -> tuple[list[onnx.NodeProto], set[str]]:
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
