"""The two graphs of an encoding in a family, traced: their inputs, outputs and axes (see docs/architecture.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import onnx
import torch
from torch import Tensor, nn

from models.attention import PositionTables, ScoredAttention
from models.encodings.card import Parameter
from models.encodings.encoding import Encoding
from models.family import Family, sample_of
from models.modifiers import MODIFIERS, SWITCHES
from models.trace import Axes, Signature, TraceError, trace

# No two sizes alike, and none of them 1: the trace specialises on 0 and 1, and would merge equal sizes.
BATCH, QUERIES, KEYS, HEADS, HEAD_DIM, ROWS = 2, 17, 19, 3, 6, 23
# A projected model's own sizes may be like these. Those that divide none of them are tried first, then larger ones.
STEPS = (0, 8, 30)
MODIFIER_TABLES: Mapping[str, Axes] = {"softcap": (), "sinks": ("heads",)}


class Graphs(NamedTuple):
    """Both halves of an exported encoding."""

    scores: onnx.ModelProto
    positions: onnx.ModelProto


class Lengths(NamedTuple):
    """The sizes of the sample that a request will decide."""

    batch: int = BATCH
    queries: int = QUERIES
    keys: int = KEYS
    rows: int = ROWS

    @classmethod
    def beside(cls, sizes: Collection[int], step: int) -> Lengths:
        """Larger by `step` at least, each unlike the others and no divisor of a model's own sizes."""
        chosen: list[int] = []
        for smallest in cls():
            fitting = (
                n for n in count(smallest + step) if n not in chosen and all(n != size and size % n for size in sizes)
            )
            chosen.append(next(fitting))
        return cls(*chosen)


def build(family: Family, encoding: Encoding) -> Graphs:
    """Trace both graphs. Raises `models.trace.TraceError` rather than return one that is right for the sample only."""
    if family.sizes is None:
        return _build(family, encoding, Lengths())
    for step in STEPS[:-1]:
        with suppress(TraceError):
            return _build(family, encoding, Lengths.beside(family.sizes, step))
    return _build(family, encoding, Lengths.beside(family.sizes, STEPS[-1]))


def _build(family: Family, encoding: Encoding, lengths: Lengths) -> Graphs:
    heads, head_dim, width = family.sizes or (HEADS, HEAD_DIM, HEADS * HEAD_DIM)
    generator = torch.Generator().manual_seed(0)
    free, fixed = free_parameters(family, encoding), fixed_parameters(family, encoding)
    samples = [sample_of(p, heads, head_dim, lengths.rows, generator) for p in free]

    halves = _Positions(PositionTables(family.projections, encoding, family.sizes), [p.name for p in free], fixed)
    last = (rows(family, encoding) or lengths.keys) - 1
    where = (
        torch.arange(lengths.queries).clamp(max=last).double(),
        torch.arange(lengths.keys).clamp(max=last).double(),
        torch.tensor(False),
        torch.ones(heads, head_dim),
    )
    tables, expected = halves.named(*where, *samples)
    open_axes = {"queries", "keys", *(axis for p in free for axis in _parameter_axes(p, family))}
    table_axes = {
        f"table.{name}": _table_axes(axes, family, tables[name], open_axes)
        for name, axes in {**encoding.dims, **MODIFIER_TABLES}.items()
    }
    positions = trace(
        halves,
        (*where, *samples),
        Signature(
            {
                "query_positions": ("queries",),
                "key_positions": ("keys",),
                "causal": (),
                "heads_like": ("heads", "head_dim") if family.sizes is None else (heads, head_dim),
                **{f"parameter.{p.name}": _parameter_axes(p, family) for p in free},
            },
            table_axes | {f"expected.{name}": () for name in expected},
        ),
    )

    switches = [name for name in SWITCHES if name not in fixed]
    features: Axes = ("heads", "head_dim") if family.sizes is None else (width,)
    pairs = _bound(("batch", "heads", "queries", "keys"), family)
    embedding = (heads, head_dim) if family.sizes is None else (width,)
    terms = [term.name for term in encoding.card.terms]
    scores = trace(
        _Scores(ScoredAttention(family.projections, encoding), list(tables), switches, terms),
        (
            torch.ones(lengths.batch, heads, lengths.queries, lengths.keys, dtype=torch.bool),
            torch.randn((lengths.batch, lengths.queries, *embedding), generator=generator),
            torch.randn((lengths.batch, lengths.keys, *embedding), generator=generator),
            *(table.clone() for table in tables.values()),
            *(torch.tensor(True) for _ in switches),
        ),
        Signature(
            {
                "visible": pairs,
                "queries": ("batch", "queries", *features),
                "keys": ("batch", "keys", *features),
                **{f"table.{name}": table_axes[f"table.{name}"] for name in tables},
                **{f"switch.{name}": () for name in switches},
            },
            {
                "scores": pairs,
                "weights": pairs,
                "output": _bound(("batch", "queries", "heads", "head_dim"), family),
                **{f"term.{name}": pairs for name in terms},
            },
            relaxed={"visible": ("visible_batch", "visible_heads", "queries", "keys")},
        ),
    )
    return Graphs(scores, positions)


def free_parameters(family: Family, encoding: Encoding) -> list[Parameter]:
    """The parameters that are inputs of the graph: those that the family does not fix, modifiers included, each with
    the family's default.
    """
    fixed, defaults = fixed_parameters(family, encoding), family.defaults.get(encoding.card.id, {})
    free = [p for p in (*encoding.card.parameters, *MODIFIERS) if p.name not in fixed]
    return [replace(p, default=defaults[p.name]) if p.name in defaults else p for p in free]


def fixed_parameters(family: Family, encoding: Encoding) -> Mapping[str, Tensor]:
    """The parameters that are part of the model under this encoding."""
    return family.fixed.get(encoding.card.id, {})


def rows(family: Family, encoding: Encoding) -> int | None:
    """How many positions the encoding's table has where it is part of the model; None where nothing bounds them."""
    name = encoding.card.positions.rows_of
    table = None if name is None else fixed_parameters(family, encoding).get(name)
    return None if table is None else table.shape[0]


class _Positions(nn.Module):
    """The positions graph as a function of its inputs in order."""

    def __init__(self, tables: PositionTables, names: Sequence[str], fixed: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.tables, self.names, self.fixed = tables, names, dict(fixed)

    def named(
        self, query: Tensor, key: Tensor, causal: Tensor, heads_like: Tensor, *parameters: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        values = self.fixed | dict(zip(self.names, parameters, strict=True))
        at = self.tables.at(query, key, causal, heads_like, values["scale"])
        return self.tables(at, values), self.tables.encoding.expected(at, values)

    def forward(
        self, query: Tensor, key: Tensor, causal: Tensor, heads_like: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        tables, expected = self.named(query, key, causal, heads_like, *parameters)
        return (*tables.values(), *expected.values())


class _Scores(nn.Module):
    """The scores graph as a function of its inputs in order."""

    def __init__(
        self, attention: ScoredAttention, tables: Sequence[str], switches: Sequence[str], terms: Sequence[str]
    ) -> None:
        super().__init__()
        self.attention, self.tables, self.switches, self.terms = attention, tables, switches, terms

    def forward(self, visible: Tensor, queries: Tensor, keys: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        tables = dict(zip(self.tables, rest[: len(self.tables)], strict=True))
        switches = dict.fromkeys(SWITCHES, torch.tensor(True))
        switches |= dict(zip(self.switches, rest[len(self.tables) :], strict=True))
        attended = self.attention(queries, keys, visible, tables, switches)
        return (attended.scores, attended.weights, attended.output, *(attended.terms[name] for name in self.terms))


def _bound(axes: Axes, family: Family) -> Axes:
    """Axes with the sizes that a projected model fixes put in as numbers."""
    if family.sizes is None:
        return axes
    sizes = dict(zip(("heads", "head_dim", "width"), family.sizes, strict=True))
    return tuple(sizes.get(axis, axis) if isinstance(axis, str) else axis for axis in axes)


def _table_axes(axes: Axes, family: Family, table: Tensor, open_axes: Collection[str | int]) -> Axes:
    """Of a projected model's table only those stay names whose size a request decides."""
    if family.sizes is None:
        return axes
    bound = enumerate(_bound(axes, family))
    return tuple(axis if isinstance(axis, int) or axis in open_axes else table.shape[i] for i, axis in bound)


def _parameter_axes(parameter: Parameter, family: Family) -> Axes:
    if parameter.kind == "array":
        return _bound(tuple("rows" if size == "positions" else size for size in parameter.shape), family)
    return (f"{parameter.name}_entries",) if parameter.kind == "numbers" else ()
