"""FIRE (Li et al. 2024): a small network of the distance, measured on a scale that grows with the query's position."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from models.encodings.card import Card, Initial, Paper, Parameter, PositionRule, Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot

HIDDEN = 32
STEP = 8
BOUND = HIDDEN**-0.5


class FIRE(Encoding):
    """S(m, n) = c q_m.k_n + f_h(psi(m-n) / psi(max(m, L))), psi(x) = ln(c x + 1), f = W_2 relu(W_1 x + b_1) + b_2.

    In psi, c is a parameter, not the scale. Where m >= L, f sees 0 at the query and 1 at position 0, whatever m is.
    """

    card = Card(
        id="fire",
        title="FIRE: functional interpolation of relative positions",
        summary="A learned function of the distance relative to how far the query has come, so that positions beyond"
        " the trained length are interpolated instead of new.",
        plain="S(m,n) = c_0 q_m.k_n + f_h(psi(m-n)/psi(max(m, L))), psi(x) = ln(c x + 1),"
        " f(x) = W_2 relu(W_1 x + b_1) + b_2, c_0 = 1/sqrt(d_h)",
        latex=r"S(m,n) = \frac{q_m^\top k_n}{\sqrt{d_h}} + f_h\left(\frac{\psi(m-n)}{\psi(\max(m, L))}\right),\quad"
        r" \psi(x) = \ln(cx+1),\quad f(x) = W_2\,\mathrm{relu}(W_1 x + b_1) + b_2",
        paper=Paper(
            "Functional Interpolation for Relative Positions Improves Long Context Transformers",
            "Li et al.",
            2024,
            "2310.04418",
        ),
        terms=(Term("content", "q_m.k_n / sqrt(d_h)"), Term("bias", "f_h(psi(m-n)/psi(max(m, L)))")),
        parameters=(
            Parameter("c", "number", "how much psi magnifies near distances", default=0.1, minimum=1e-6, maximum=1e6),
            Parameter(
                "L",
                "number",
                "threshold: queries before it share one scale, so short inputs are not stretched",
                default=512.0,
                minimum=1.0,
                maximum=1e9,
            ),
            Parameter(
                "w_1", "array", "W_1: distance to hidden units", shape=(HIDDEN,), initial=Initial("uniform", low=-1.0)
            ),
            Parameter("b_1", "array", "b_1 of the hidden units", shape=(HIDDEN,), initial=Initial("uniform", low=-1.0)),
            Parameter(
                "w_2",
                "array",
                "W_2: hidden units to heads",
                shape=("heads", HIDDEN),
                initial=Initial("uniform", low=-BOUND, high=BOUND),
            ),
            Parameter(
                "b_2", "array", "b_2 of the heads", shape=("heads",), initial=Initial("uniform", low=-BOUND, high=BOUND)
            ),
        ),
        conventions={
            "scale": "1/sqrt(head_dim); the bias is added after scaling",
            "network": "1 -> 32 -> heads with one relu, shared by the heads but for its last layer; weights and biases"
            " start U(-1/sqrt(n), 1/sqrt(n)), n the layer's inputs (1 and 32), as PyTorch's linear layers do",
            "c and L": "0.1 and 512: where the paper's learned scalars start, shared by the heads",
            "positions": "counted from the start of the sequence: the query's own position sets the scale",
            "future": "causal only; a future key, which causal attention does not see, is scored by |m-n|",
        },
        positions=PositionRule(minimum=0),
        causal="required",
    )
    dims = {"scale": (), "bias": ("heads", "queries", "keys")}

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        c, L = parameters["c"], parameters["L"]
        scale = torch.log(c * torch.maximum(at.query, L) + 1)
        x = torch.log(c * at.r.abs() + 1) / scale[:, None]
        return {"scale": at.scale(), "bias": f(x.to(at.dtype), parameters)}

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        return {"content": dot(q, k), "bias": table["bias"]}


def f(x: Float[Tensor, "queries keys"], parameters: Tables) -> Float[Tensor, "heads queries keys"]:
    """The network. A few hidden units at a time: all of them, for all pairs at once, would be 32 times the scores."""
    w_1, b_1, w_2 = parameters["w_1"][:, None, None], parameters["b_1"][:, None, None], parameters["w_2"]
    y = parameters["b_2"][:, None, None]
    for some in (slice(first, first + STEP) for first in range(0, HIDDEN, STEP)):
        y = y + torch.tensordot(w_2[:, some], torch.relu(w_1[some] * x + b_1[some]), dims=1)
    return y
