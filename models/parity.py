"""How far an exported encoding is from float64: both graphs run in onnxruntime, at many shapes, beside the same
formulas in float64 PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor

from models.attention import PositionTables, ScoredAttention
from models.encodings.encoding import Encoding
from models.family import Family, sample_of

TOLERANCE = 5e-6
CASES = (
    # batch, queries, keys, heads, head_dim, causal, masked
    (1, 1, 1, 1, 2, False, False),
    (1, 2, 2, 2, 4, True, False),
    (3, 40, 40, 4, 16, False, True),
    (2, 1, 500, 2, 8, True, True),
    (1, 9, 9, 6, 2, False, True),
    (2, 257, 257, 2, 8, True, False),
    (1, 1, 4096, 1, 64, False, False),
)


class ParityError(RuntimeError):
    """An export whose numbers are not those of its formula."""


@dataclass(frozen=True)
class Parity:
    """Largest errors over all cases: scores, terms and output relative to the largest score (value) of the case;
    weights against the float64 softmax of the served scores, absolute.
    """

    scores: float
    weights: float
    output: float
    terms: float
    cases: int


def parity(
    family: Family, encoding: Encoding, scores_graph: onnx.ModelProto, positions_graph: onnx.ModelProto
) -> Parity:
    """Measure, and raise `ParityError` above 5e-6."""
    scores_session, positions_session = (_session(graph) for graph in (scores_graph, positions_graph))
    worst: dict[str, float] = dict.fromkeys(("scores", "weights", "output", "terms"), 0.0)
    generator = torch.Generator().manual_seed(0)
    for batch, queries, keys, heads, head_dim, causal, masked in CASES:
        if family.sizes:
            heads, head_dim, _ = family.sizes
        causal = causal or encoding.card.causal == "required"
        features = (heads, head_dim) if family.sizes is None else (family.sizes[2],)
        x_q = torch.randn((batch, queries, *features), generator=generator)
        x_k = torch.randn((batch, keys, *features), generator=generator)
        m, n = torch.arange(keys - queries, keys).double(), torch.arange(keys).double()
        visible = (n <= m[:, None]) if causal else torch.ones(queries, keys, dtype=torch.bool)
        visible = visible.expand(batch, 1, -1, -1)
        if masked:
            visible = visible & (torch.rand((batch, 1, queries, keys), generator=generator) > 0.2)
            visible[0, 0, 0] = False
        fixed = family.fixed.get(encoding.card.id, {})
        parameters = {
            p.name: fixed[p.name] if p.name in fixed else sample_of(p, heads, head_dim, keys, generator)
            for p in encoding.card.parameters
        }
        feeds = {
            "query_positions": m,
            "key_positions": n,
            "causal": torch.tensor(causal),
            "heads_like": torch.zeros(heads, head_dim),
        }
        feeds |= {f"parameter.{name}": value for name, value in parameters.items() if name not in fixed}
        tables = _run(positions_session, feeds)
        served = _run(scores_session, {"queries": x_q, "keys": x_k, "visible": visible, **tables})
        position_tables = PositionTables(family.projections.double(), encoding, family.sizes, torch.float64)
        at = position_tables.at(m, n, torch.tensor(causal), torch.zeros(heads, head_dim))
        tables64 = position_tables(at, {name: _double(value) for name, value in parameters.items()})
        exact = ScoredAttention(family.projections.double(), encoding)(x_q.double(), x_k.double(), visible, tables64)
        family.projections.float()
        largest = float(exact.scores.abs().max())
        worst["scores"] = max(worst["scores"], _error(served["scores"], exact.scores) / largest)
        for name, term in exact.terms.items():
            worst["terms"] = max(worst["terms"], _error(served[f"term.{name}"], term) / largest)
        softmax = torch.softmax(
            torch.where(visible, torch.from_numpy(served["scores"]).double(), float("-inf")), -1
        ).nan_to_num(0.0)
        worst["weights"] = max(worst["weights"], _error(served["weights"], softmax))
        with_served_weights = encoding.output(
            softmax, family.projections.double().value(x_k.double()), tables64
        ).transpose(1, 2)
        family.projections.float()
        size = max(1.0, float(with_served_weights.abs().max()))
        worst["output"] = max(worst["output"], _error(served["output"], with_served_weights) / size)
    if max(worst.values()) > TOLERANCE:
        raise ParityError(f"{family.name}/{encoding.card.id}: errors {worst} exceed {TOLERANCE}")
    return Parity(**{name: float(f"{error:.1e}") for name, error in worst.items()}, cases=len(CASES))


def _session(graph: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _run(session: onnxruntime.InferenceSession, feeds: Mapping[str, Tensor | np.ndarray]) -> dict[str, np.ndarray]:
    wanted = {entry.name for entry in session.get_inputs()}
    outputs = [entry.name for entry in session.get_outputs()]
    return dict(
        zip(
            outputs,
            session.run(outputs, {name: np.asarray(value) for name, value in feeds.items() if name in wanted}),
            strict=True,
        )
    )


def _double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _error(served: np.ndarray, exact: Tensor) -> float:
    return float(np.abs(served - exact.numpy()).max())
