"""Write a family's encodings as ONNX files that say everything needed to serve them (see docs/architecture.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from models.attention import PositionTables, ScoredAttention
from models.encodings.encoding import Encoding
from models.family import Family, sample_of, seed_of
from models.parity import Parity, parity
from models.trace import OPSET, Axes, Signature, trace

FORMAT = 1
PAIRS = ("batch", "heads", "queries", "keys")


@dataclass(frozen=True)
class Exported:
    """One encoding written to disk."""

    encoding: str
    scores_path: Path
    positions_path: Path
    parity: Parity

    @property
    def bytes(self) -> int:
        """Size of both files."""
        return self.scores_path.stat().st_size + self.positions_path.stat().st_size


def export_family(
    family: Family, encodings: Iterable[Encoding], folder: Path, progress: Callable[[str], None] = lambda _: None
) -> Iterable[Exported]:
    """Export each encoding into `folder/<family>/`, yielding as each is done. Existing files are replaced whole."""
    for encoding in encodings:
        progress(encoding.card.id)
        yield export_encoding(family, encoding, folder)


def export_encoding(family: Family, encoding: Encoding, folder: Path) -> Exported:
    """Trace both halves, measure their parity with float64, and write them with their metadata.

    Raises `models.trace.TraceError` or `models.parity.ParityError` rather than write a graph that is wrong somewhere.
    """
    scores_graph, positions_graph = build(family, encoding)
    measured = parity(family, encoding, scores_graph, positions_graph)
    about = metadata(family, encoding)
    _attach(scores_graph, {**about, "graph": "scores", "parity": asdict(measured)})
    shared = ("format", "model", "encoding", "opset", "tables", "weights")
    _attach(positions_graph, {**{key: about[key] for key in shared}, "graph": "positions"})
    target = folder / family.name
    target.mkdir(parents=True, exist_ok=True)
    scores_path, positions_path = target / f"{encoding.card.id}.onnx", target / f"{encoding.card.id}.positions.onnx"
    for path, graph in ((scores_path, scores_graph), (positions_path, positions_graph)):
        onnx.checker.check_model(graph)
        path.write_bytes(graph.SerializeToString(deterministic=True))
    return Exported(encoding.card.id, scores_path, positions_path, measured)


def build(family: Family, encoding: Encoding) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The scores graph and the positions graph, without metadata."""
    batch, queries, keys, heads, head_dim = (
        2,
        17,
        19,
        3,
        6,
    )  # no two alike, none of them 1: the trace specialises on 0 and 1
    if family.sizes:
        heads, head_dim, _ = family.sizes
    generator = torch.Generator().manual_seed(0)
    fixed = family.fixed.get(encoding.card.id, {})
    free = [p for p in encoding.card.parameters if p.name not in fixed]
    samples = [sample_of(p, heads, head_dim, 23, generator) for p in free]
    features: Axes = ("heads", "head_dim") if family.sizes is None else (family.sizes[2],)
    sizes = None if family.sizes is None else {"heads": heads, "head_dim": head_dim, "width": family.sizes[2]}

    positions_module = PositionTables(family.projections, encoding, family.sizes)
    where = (
        torch.arange(queries).double(),
        torch.arange(keys).double(),
        torch.tensor(False),
        torch.zeros(heads, head_dim),
    )
    parameters = dict(fixed) | dict(zip([p.name for p in free], samples, strict=True))
    at = positions_module.at(*where)
    tables, expected = positions_module(at, parameters), encoding.expected(at, parameters)
    table_axes = {f"table.{name}": _bind(encoding.dims[name], sizes, table) for name, table in tables.items()}
    positions_inputs: dict[str, Axes] = {
        "query_positions": ("queries",),
        "key_positions": ("keys",),
        "causal": (),
        "heads_like": ("heads", "head_dim"),
    }
    if sizes:
        positions_inputs["heads_like"] = (heads, head_dim)
    positions_inputs |= {f"parameter.{p.name}": _parameter_axes(p.kind, p.shape, p.name) for p in free}
    positions_graph = trace(
        _Positions(positions_module, [p.name for p in free], fixed),
        (*where, *samples),
        Signature(positions_inputs, table_axes | {f"expected.{name}": () for name in expected}, {}),
    )

    embedding = (heads, head_dim) if family.sizes is None else (family.sizes[2],)
    content = (
        torch.randn((batch, queries, *embedding), generator=generator),
        torch.randn((batch, keys, *embedding), generator=generator),
    )
    visible = torch.ones(batch, heads, queries, keys, dtype=torch.bool)
    pairs = _bind(PAIRS, sizes, None)
    scores_inputs: dict[str, Axes] = {
        "visible": pairs,
        "queries": ("batch", "queries", *features),
        "keys": ("batch", "keys", *features),
        **table_axes,
    }
    outputs: dict[str, Axes] = {
        "scores": pairs,
        "weights": pairs,
        "output": _bind(("batch", "queries", "heads", "head_dim"), sizes, None),
    }
    outputs |= {f"term.{term.name}": pairs for term in encoding.card.terms}
    relaxed: dict[str, Axes] = {"visible": ("visible_batch", "visible_heads", "queries", "keys")}
    scores_graph = trace(
        _Scores(
            ScoredAttention(family.projections, encoding), list(tables), [term.name for term in encoding.card.terms]
        ),
        (visible, *content, *(table.clone() for table in tables.values())),
        Signature(scores_inputs, outputs, relaxed),
    )
    return scores_graph, positions_graph


def metadata(family: Family, encoding: Encoding) -> dict[str, Any]:
    """Everything a service needs to know of an encoding, JSON-able."""
    about = encoding.card.metadata()
    fixed = family.fixed.get(encoding.card.id, {})
    about["parameters"] = [p for p in about["parameters"] if p["name"] not in fixed]
    for parameter in about["parameters"]:
        if parameter["initial"] is not None:
            parameter["initial"]["seed"] = seed_of(encoding.card.id, parameter["name"])
    heads, head_dim, width = family.sizes or (None, None, None)
    return about | {
        "format": FORMAT,
        "model": family.name,
        "opset": OPSET,
        "default_causal": family.default_causal,
        "queries": ["batch", "queries", *(family.projections.features)],
        "heads": heads,
        "head_dim": head_dim,
        "width": width,
        "tables": {name: list(axes) for name, axes in encoding.dims.items()},
        "outputs": ["scores", "weights", "output", *(f"term.{term.name}" for term in encoding.card.terms)],
        "weights": None,
        **family.details,
    }


class _Positions(nn.Module):
    def __init__(self, tables: PositionTables, names: list[str], fixed: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.tables, self.names, self.fixed = tables, names, dict(fixed)

    def forward(
        self, query_positions: Tensor, key_positions: Tensor, causal: Tensor, heads_like: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        named = self.fixed | dict(zip(self.names, parameters, strict=True))
        at = self.tables.at(query_positions, key_positions, causal, heads_like)
        return (*self.tables(at, named).values(), *self.tables.encoding.expected(at, named).values())


class _Scores(nn.Module):
    def __init__(self, attention: ScoredAttention, tables: list[str], terms: list[str]) -> None:
        super().__init__()
        self.attention, self.tables, self.terms = attention, tables, terms

    def forward(self, visible: Tensor, queries: Tensor, keys: Tensor, *tables: Tensor) -> tuple[Tensor, ...]:
        attended = self.attention(queries, keys, visible, dict(zip(self.tables, tables, strict=True)))
        return (attended.scores, attended.weights, attended.output, *(attended.terms[name] for name in self.terms))


def _bind(axes: Axes, sizes: Mapping[str, int] | None, sample: Tensor | None) -> Axes:
    """Axes with the sizes that a projected model fixes put in as numbers; of a table, all but queries and keys are
    fixed then.
    """
    if sizes is None:
        return axes
    if sample is None:
        return tuple(sizes.get(axis, axis) if isinstance(axis, str) else axis for axis in axes)
    return tuple(axis if axis in ("queries", "keys") else sample.shape[i] for i, axis in enumerate(axes))


def _parameter_axes(kind: str, shape: Axes, name: str) -> Axes:
    if kind == "array":
        return tuple("rows" if size == "positions" else size for size in shape)
    return (f"{name}_entries",) if kind == "numbers" else ()


def _attach(graph: onnx.ModelProto, about: Mapping[str, Any]) -> None:
    onnx.helper.set_model_props(graph, {"attention": json.dumps(about, sort_keys=True, ensure_ascii=False)})
