"""How far an exported encoding is from float64.

Both graphs run in onnxruntime, at many shapes, beside the same formulas in float64 PyTorch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from models.attention import PositionTables, ScoredAttention
from models.encodings.encoding import Encoding
from models.family import Family, sample_of
from models.graphs import Graphs, fixed_parameters, free_parameters, rows
from models.modifiers import SWITCHES, masked_softmax

TOLERANCE = 5e-6
FEW = 257
CELLS, NUMBERS = 1 << 19, 1 << 20
"""At most, of a projected model: numbers of one matrix of all heads, and of all keys. The terms of a wide model would
take gigabytes.
"""


class ParityError(RuntimeError):
    """An export whose numbers are not those of its formula."""


@dataclass(frozen=True)
class Case:
    """One shape to compare at; `modified` gives every modifier a value."""

    batch: int
    queries: int
    keys: int
    heads: int
    head_dim: int
    causal: bool = False
    masked: bool = False
    modified: bool = False


MODIFIED = {"scale": torch.tensor(0.3, dtype=torch.float64), "softcap": torch.tensor(30.0, dtype=torch.float64)}
CASES = (
    Case(1, 1, 1, heads=1, head_dim=2),
    Case(1, 2, 2, heads=2, head_dim=4, causal=True),
    Case(3, 40, 40, heads=4, head_dim=16, masked=True, modified=True),
    Case(2, 1, 500, heads=2, head_dim=8, causal=True, masked=True),
    Case(1, 9, 9, heads=6, head_dim=2, masked=True),
    Case(2, 257, 257, heads=2, head_dim=8, causal=True),
    Case(1, 1, 4096, heads=1, head_dim=64),
)


@dataclass(frozen=True)
class Parity:
    """Largest errors over all cases: scores, terms and output relative to the largest score (value) of the case;
    weights against the float64 softmax of the served scores, absolute.
    """

    scores: float = 0.0
    weights: float = 0.0
    output: float = 0.0
    terms: float = 0.0
    cases: int = 0

    def __or__(self, other: Parity) -> Parity:
        """The worse of both in each figure."""
        return Parity(
            max(self.scores, other.scores),
            max(self.weights, other.weights),
            max(self.output, other.output),
            max(self.terms, other.terms),
            self.cases + other.cases,
        )


def parity(family: Family, encoding: Encoding, graphs: Graphs) -> Parity:
    """Measure at every case. Raises `ParityError` above 5e-6."""
    scores, positions = _session(graphs.scores), _session(graphs.positions)
    generator = torch.Generator().manual_seed(0)
    measured = Parity()
    for case in CASES:
        measured |= _compare(
            _fitting(case, family, rows(family, encoding)), family, encoding, scores, positions, generator
        )
    if max(measured.scores, measured.weights, measured.output, measured.terms) > TOLERANCE:
        raise ParityError(f"{family.name}/{encoding.card.id}: {measured} exceeds {TOLERANCE:g}")
    return measured


def _fitting(case: Case, family: Family, most: int | None) -> Case:
    """The case as a model takes it: no more keys than it has positions, and fewer tokens where it is wide."""
    if family.sizes is None:
        return case
    heads, head_dim, _ = family.sizes
    keys = min(case.keys, case.keys if most is None else most, max(FEW, NUMBERS // (heads * head_dim)))
    return replace(case, queries=min(case.queries, keys, max(1, CELLS // (case.batch * heads * keys))), keys=keys)


def _compare(
    case: Case,
    family: Family,
    encoding: Encoding,
    scores_session: onnxruntime.InferenceSession,
    positions_session: onnxruntime.InferenceSession,
    generator: torch.Generator,
) -> Parity:
    heads, head_dim, width = family.sizes or (case.heads, case.head_dim, case.heads * case.head_dim)
    causal = case.causal or encoding.card.causal == "required"
    embedding = (heads, head_dim) if family.sizes is None else (width,)
    queries = torch.randn((case.batch, case.queries, *embedding), generator=generator)
    keys = torch.randn((case.batch, case.keys, *embedding), generator=generator)
    m, n = torch.arange(case.keys - case.queries, case.keys).double(), torch.arange(case.keys).double()
    visible = (n <= m[:, None]) if causal else torch.ones(case.queries, case.keys, dtype=torch.bool)
    visible = visible.expand(case.batch, 1, -1, -1)
    if case.masked:
        visible = visible & (torch.rand(visible.shape, generator=generator) > 0.2)
        visible[0, 0, 0] = False

    fixed = fixed_parameters(family, encoding)
    parameters = {
        p.name: sample_of(p, heads, head_dim, case.keys, generator) for p in free_parameters(family, encoding)
    }
    parameters |= (MODIFIED if case.modified else {}) | dict(fixed)
    switches = {name: torch.tensor(name in fixed or case.modified) for name in SWITCHES}

    where = (m, n, torch.tensor(causal), torch.zeros(heads, head_dim))
    feeds = dict(zip(("query_positions", "key_positions", "causal", "heads_like"), where, strict=True))
    tables = _run(positions_session, feeds | {f"parameter.{name}": value for name, value in parameters.items()})
    content = {"queries": queries, "keys": keys, "visible": visible}
    served = _run(scores_session, content | tables | {f"switch.{name}": value for name, value in switches.items()})

    exact_parameters = {name: _double(value) for name, value in parameters.items()}
    projections = copy.deepcopy(family.projections)
    assert isinstance(projections, nn.Module)
    projections.double()
    position_tables = PositionTables(projections, encoding, family.sizes, torch.float64)
    exact_tables = position_tables(position_tables.at(*where, exact_parameters["scale"]), exact_parameters)
    attention = ScoredAttention(projections, encoding)
    exact = attention(queries.double(), keys.double(), visible, exact_tables, switches)

    largest = float(exact.scores.abs().max())
    served_scores = torch.from_numpy(served["scores"]).double()
    weights = masked_softmax(served_scores, visible, exact_tables["sinks"], switches["sinks"])
    _, _, v, value_tables = encoding.projected(projections, queries.double(), keys.double(), exact_tables)
    output = encoding.output(weights, v, value_tables).transpose(1, 2)
    return Parity(
        scores=_error(served["scores"], exact.scores) / largest,
        weights=_error(served["weights"], weights),
        output=_error(served["output"], output) / max(1.0, float(output.abs().max())),
        terms=max(_error(served[f"term.{name}"], term) for name, term in exact.terms.items())
        / max(float(term.abs().max()) for term in exact.terms.values()),
        cases=1,
    )


def _session(graph: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _run(session: onnxruntime.InferenceSession, feeds: Mapping[str, Tensor | np.ndarray]) -> dict[str, np.ndarray]:
    wanted = {entry.name for entry in session.get_inputs()}
    outputs = [entry.name for entry in session.get_outputs()]
    needed = {name: np.asarray(value) for name, value in feeds.items() if name in wanted}
    return dict(zip(outputs, session.run(outputs, needed), strict=True))


def _double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _error(served: np.ndarray, exact: Tensor) -> float:
    return float(np.abs(served - exact.numpy()).max())
