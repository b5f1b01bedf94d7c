"""A PyTorch module as an ONNX graph that is what it claims to be.

The exporter's silent failures are gates here: a size that the trace turned into a constant or bounded, two sizes that
it merged, an operator set other than the one asked for. What depends on the machine (source paths, doc strings,
inferred shapes) is removed, so the same code gives the same bytes.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from models.opset import OPSET

SMALLEST = 4  # torch.export takes a size to be 2 or more, hence an even one, or a product of two, to be 4 or more

Axes = tuple[str | int, ...]


class TraceError(RuntimeError):
    """The traced graph is not the one asked for."""


@dataclass(frozen=True)
class Signature:
    """Names of a graph's inputs and outputs, in order, each with its axes: a string is a size that stays free, a
    number a fixed one.
    """

    inputs: Mapping[str, Axes]
    outputs: Mapping[str, Axes]
    relaxed: Mapping[str, Axes] = field(default_factory=dict)
    """Inputs that may broadcast, or be absent, when served: traced with the axes in `inputs`, declared with these."""


def trace(module: nn.Module, sample: Sequence[Tensor], signature: Signature) -> onnx.ModelProto:
    """Export `module(*sample) -> tuple of tensors` at opset 18, with every named size dynamic.

    Raises `TraceError` where the graph would be right for the sample only.
    """
    shapes = tuple(
        {axis: Dim.AUTO for axis, size in enumerate(axes) if isinstance(size, str)}
        for axes in signature.inputs.values()
    )
    exported = torch.export.export(_Flat(module), tuple(sample), dynamic_shapes=(shapes,), strict=False)
    _check_sizes(exported, signature)
    with warnings.catch_warnings(), _Quiet():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(exported, opset_version=OPSET, dynamo=True, verbose=False)
    assert program is not None
    return _clean(program.model_proto, signature)


class _Flat(nn.Module):
    """Gives every graph the same kind of signature: tensors in, tensors out, in order."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.module(*tensors))


def _check_sizes(exported: ExportedProgram, signature: Signature) -> None:
    """Every named size is a free symbol: not a constant, not bounded above, and not the same as another name's."""
    user_inputs = [
        node
        for node in exported.graph.nodes
        if node.op == "placeholder" and node.name in exported.graph_signature.user_inputs
    ]
    if len(user_inputs) != len(signature.inputs):
        raise TraceError(f"{len(user_inputs)} inputs were traced, {len(signature.inputs)} are named")
    symbol_of: dict[str, str] = {}
    for node, (name, axes) in zip(user_inputs, signature.inputs.items(), strict=True):
        shape = node.meta["val"].shape
        for axis, size in enumerate(axes):
            traced = shape[axis]
            if isinstance(size, int):
                continue
            if isinstance(traced, int):
                raise TraceError(f"{name} axis {axis} ({size}) became the constant {traced}")
            symbol_of.setdefault(size, str(traced))
    merged = {size: symbol for size, symbol in symbol_of.items() if list(symbol_of.values()).count(symbol) > 1}
    if merged:
        raise TraceError(f"sizes that must be independent were merged: {merged}")
    for symbol, bounds in exported.range_constraints.items():
        if str(bounds.upper) not in ("int_oo", "oo") or bounds.lower > SMALLEST:
            raise TraceError(f"a size was bounded: {symbol} in {bounds}")


def _clean(model: onnx.ModelProto, signature: Signature) -> onnx.ModelProto:
    """Names, axes and operator set as asked for; nothing else."""
    opsets = {entry.domain: entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")}
    if list(opsets.values()) != [OPSET]:
        raise TraceError(f"asked for opset {OPSET}, got {opsets}")
    domains = sorted({node.domain for node in model.graph.node} - {"", "ai.onnx"})
    if domains:
        raise TraceError(f"operators of other domains: {domains}")
    graph = model.graph
    if len(graph.input) != len(signature.inputs) or len(graph.output) != len(signature.outputs):
        raise TraceError(f"{len(graph.input)} inputs and {len(graph.output)} outputs in the graph")
    _read_sizes_elsewhere(graph, signature)
    renamed = {value.name: name for value, name in zip(graph.input, signature.inputs, strict=True)}
    renamed |= {value.name: name for value, name in zip(graph.output, signature.outputs, strict=True)}
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
        node.doc_string = ""
        del node.metadata_props[:]
    for value, (name, axes) in zip(graph.input, {**signature.inputs, **signature.relaxed}.items(), strict=True):
        if name in signature.relaxed:
            for dim in value.type.tensor_type.shape.dim:
                dim.ClearField("dim_value")  # a model's own number of heads, say: a mask may have one for all
        _declare(value, name, axes)
    for value, (name, axes) in zip(graph.output, signature.outputs.items(), strict=True):
        _declare(value, name, axes)
    for index, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{index}"
    for initializer in graph.initializer:
        initializer.name = renamed.get(initializer.name, initializer.name)
        initializer.doc_string = ""
        del initializer.metadata_props[:]
    del graph.value_info[:], graph.metadata_props[:], model.metadata_props[:], model.functions[:], model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", OPSET))
    graph.name, graph.doc_string, model.doc_string = "attention", "", ""
    model.producer_name, model.producer_version = "attention-scoring-service", ""
    return model


def _read_sizes_elsewhere(graph: onnx.GraphProto, signature: Signature) -> None:
    """Reads every size that the graph takes off a relaxed input off another input instead.

    The relaxed input may have another size there when served, or be absent altogether.
    """
    exported_name = {name: value.name for value, name in zip(graph.input, signature.inputs, strict=True)}
    relaxed = {exported_name[name]: signature.inputs[name] for name in signature.relaxed}
    home = {
        size: (exported_name[name], axis)
        for name, axes in signature.inputs.items()
        if name not in signature.relaxed
        for axis, size in enumerate(axes)
    }
    for node in graph.node:
        if node.op_type not in ("Shape", "Size") or node.input[0] not in relaxed:
            continue
        axes = relaxed[node.input[0]]
        span = {attribute.name: attribute.i for attribute in node.attribute}
        start, end = span.get("start", 0), span.get("end", len(axes))
        if node.op_type == "Size" or end != start + 1 or axes[start] not in home:
            raise TraceError(f"the graph reads {list(axes[start:end])} off an input that may broadcast or be absent")
        node.input[0], axis = home[axes[start]]
        del node.attribute[:]
        node.attribute.extend(onnx.helper.make_attribute(key, at) for key, at in (("start", axis), ("end", axis + 1)))


def _declare(value: onnx.ValueInfoProto, name: str, axes: Axes) -> None:
    value.name, value.doc_string = name, ""
    del value.metadata_props[:]
    dims = value.type.tensor_type.shape.dim
    if len(dims) != len(axes):
        raise TraceError(f"{name} has {len(dims)} axes, {len(axes)} are named: {axes}")
    for dim, size in zip(dims, axes, strict=True):
        if isinstance(size, int):
            if dim.dim_value != size:
                raise TraceError(f"{name}: an axis of {size} was traced as {dim.dim_value or dim.dim_param}")
        elif dim.HasField("dim_value"):
            raise TraceError(f"{name}: the axis {size} became the constant {dim.dim_value}")
        else:
            dim.dim_param = size


class _Quiet:
    """The exporter logs what it skips (torchvision's operators, for one) at warning level for every export."""

    def __enter__(self) -> None:
        self.before = logging.root.manager.disable
        logging.disable(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        logging.disable(self.before)
