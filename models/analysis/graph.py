"""The statistics as graphs: their inputs, outputs and axes, traced like encodings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import torch
from torch import Tensor, nn

from models.analysis import pairs, rows
from models.analysis.sample import Sample
from models.trace import Axes, Signature, TraceError, trace

PAIRS: Axes = ("batch", "heads", "queries", "keys")
ROWS: Axes = ("batch", "heads", "queries")
DIAGONALS: Axes = ("batch", "heads", "queries + keys + 1")
RELAXED: Mapping[str, Axes] = {
    "visible": ("visible_batch", "visible_heads", "queries", "keys"),
    "query_tokens": ("token_batch", "queries"),
    "key_tokens": ("token_batch", "keys"),
    "tokens_before": ("token_batch", "keys"),
    "profiled": ("profiled_batch", "queries"),
}
"""Inputs whose first axes may be 1."""


@dataclass(frozen=True)
class Analysis:
    """One graph to export. Sizes are read off the input `anchor`."""

    name: str
    title: str
    statistics: nn.Module
    inputs: Mapping[str, Axes]
    outputs: Mapping[str, str]
    anchor: str

    @property
    def switches(self) -> list[str]:
        return [name.removeprefix("switch.") for name in self.inputs if name.startswith("switch.")]

    def axes(self, output: str) -> Axes:
        return DIAGONALS if output.endswith("diagonals") else ROWS

    def run(self, sample: Sample, dtype: torch.dtype) -> dict[str, Tensor]:
        """The statistics in PyTorch, by name."""
        feeds = sample.feeds(self.inputs)
        single = {name: value.to(dtype) if value.dtype == torch.float32 else value for name, value in feeds.items()}
        answer: dict[str, Tensor] = self.statistics(*single.values())
        return answer


ROW_STATISTICS = Analysis(
    "rows",
    "Statistics of one attention matrix, row by row",
    rows.RowStatistics(),
    {
        "visible": PAIRS,
        "query_tokens": ("batch", "queries"),
        "key_tokens": ("batch", "keys"),
        "tokens_before": ("batch", "keys"),
        "distances": ("queries", "keys"),
        "query_places": ("queries",),
        "own_cells": ("queries",),
        "previous_cells": ("queries",),
        "profiled": ("batch", "queries"),
        "tolerance": (),
        "switch.exact": (),
        "switch.sinks": (),
        "scores": PAIRS,
        "weights": PAIRS,
    },
    rows.DESCRIPTIONS,
    "weights",
)
PAIR_STATISTICS = Analysis(
    "pairs",
    "Statistics of two attention matrices, row by row",
    pairs.PairStatistics(),
    {
        "visible": PAIRS,
        "tolerance": (),
        "top": ("top",),
        "real_keys": ("batch", "keys"),
        "switch.exact": (),
        "switch.padded": (),
        "switch.sinks_a": (),
        "switch.sinks_b": (),
        "scores_a": PAIRS,
        "scores_b": PAIRS,
        "weights_a": PAIRS,
        "weights_b": PAIRS,
    },
    pairs.DESCRIPTIONS,
    "weights_a",
)
ANALYSES = (ROW_STATISTICS, PAIR_STATISTICS)


def build(analysis: Analysis) -> onnx.ModelProto:
    """Raises `models.trace.TraceError` rather than return a graph that is right for the sample only."""
    # No two sizes alike, and none of them 1: the trace specialises on 0 and 1, and would merge equal sizes.
    sample = Sample.random(batch=2, heads=3, queries=17, keys=19, top=5, seed=0)
    signature = Signature(analysis.inputs, {name: analysis.axes(name) for name in analysis.outputs})
    graph = trace(_Ordered(analysis), list(sample.feeds(analysis.inputs).values()), signature)
    _read_sizes_off(graph, analysis)
    _relax(graph)
    _number(graph)
    return graph


class _Ordered(nn.Module):
    """The statistics as a function of their inputs in order."""

    def __init__(self, analysis: Analysis) -> None:
        super().__init__()
        self.statistics, self.outputs = analysis.statistics, list(analysis.outputs)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        answer = self.statistics(*tensors)
        return tuple(answer[name] for name in self.outputs)


def _read_sizes_off(graph: onnx.ModelProto, analysis: Analysis) -> None:
    """Where several inputs have an axis, the trace takes its size from any of them. A pruned graph would need that
    input for no other reason; and one that broadcasts has another size.
    """
    anchored = analysis.inputs[analysis.anchor]
    for node in graph.graph.node:
        if node.op_type == "Shape" and node.input[0] in analysis.inputs:
            span = {attribute.name: attribute for attribute in node.attribute}
            axes = analysis.inputs[node.input[0]][span["start"].i : span["end"].i]
            if len(axes) == 1 and axes[0] in anchored:
                start = anchored.index(axes[0])
                node.input[0], span["start"].i, span["end"].i = analysis.anchor, start, start + 1


def _relax(graph: onnx.ModelProto) -> None:
    measured = [n.input[0] for n in graph.graph.node if n.op_type in ("Shape", "Size") and n.input[0] in RELAXED]
    if measured:
        raise TraceError(f"the graph reads sizes off axes that may broadcast: {', '.join(measured)}")
    for value in graph.graph.input:
        if value.name in RELAXED:
            for dim, axis in zip(value.type.tensor_type.shape.dim, RELAXED[value.name], strict=True):
                dim.dim_param = str(axis)


def _number(graph: onnx.ModelProto) -> None:
    """Name inner values by their order: the exporter's names count symbols, which another process counts otherwise."""
    kept = {value.name for value in (*graph.graph.input, *graph.graph.output)} | {""}
    names: dict[str, str] = {name: name for name in kept}
    for node in graph.graph.node:
        for values in (node.input, node.output):
            for name in values:
                names.setdefault(name, f"v{len(names) - len(kept)}")
            values[:] = [names[name] for name in values]
    constants = sorted(graph.graph.initializer, key=lambda tensor: list(names).index(tensor.name))
    for tensor in constants:
        tensor.name = names[tensor.name]
    ordered = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in constants]
    del graph.graph.initializer[:]
    graph.graph.initializer.extend(ordered)
