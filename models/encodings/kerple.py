"""KERPLE (Chi et al. 2022): a learned penalty that grows with the logarithm, or a power, of the distance."""

from __future__ import annotations

import torch
from torch import Tensor

from models.encodings.card import Card, Initial, Invariants, Paper, Parameter, Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot

SMALLEST = 0.01


class KERPLE(Encoding):
    """S(m, n) = c q_m.k_n - p_h ln(1 + a_h |m-n|) (logarithmic), - a_h |m-n|^p_h (power).

    Both are conditionally positive definite kernels of m and n for p, a > 0 and, in the power, p <= 2.
    """

    card = Card(
        id="kerple",
        title="KERPLE",
        summary="Each head learns how strongly and how fast distance counts; under the logarithmic kernel far keys"
        " differ little from farther ones.",
        plain="S(m,n) = c q_m.k_n - p_h ln(1 + a_h |m-n|) (logarithmic), or - a_h |m-n|^p_h (power)",
        latex=r"S(m,n) = \frac{q_m^\top k_n}{\sqrt{d_h}} - p_h\ln\left(1 + a_h|m-n|\right)\ \text{(logarithmic)},\quad"
        r" -a_h|m-n|^{p_h}\ \text{(power)}",
        paper=Paper(
            "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
            "Chi, Fan, Ramadge, Rudnicky",
            2022,
            "2205.09921",
        ),
        terms=(Term("content", "c q_m.k_n"), Term("bias", "-p_h ln(1 + a_h |m-n|), or -a_h |m-n|^p_h")),
        parameters=(
            Parameter(
                "kernel",
                "choice",
                "how the penalty grows with distance",
                choices=("logarithmic", "power"),
                default="logarithmic",
            ),
            Parameter(
                "p",
                "array",
                "the penalty's factor (logarithmic) or exponent (power); positive",
                shape=("heads",),
                initial=Initial("uniform", low=0.0, high=2.0),
            ),
            Parameter(
                "a",
                "array",
                "the distance's factor (logarithmic) or the penalty's (power); positive",
                shape=("heads",),
                initial=Initial("uniform", low=0.0, high=1.0),
            ),
        ),
        conventions={
            "scale": "c = 1/sqrt(head_dim); the bias is added after scaling, as in the released code",
            "p and a": "p is U(0, 2) and a is U(0, 1) unless the request brings trained ones: how the released code"
            " starts",
            "range": "values of p and a below 0.01 count as 0.01, and exponents above 2 as 2, as in the released code",
            "letters": "the paper's r_1 and r_2 are p and a (logarithmic), a and p (power): the released code's names",
            "causal": "the kernel is symmetric: a future key is penalised like a past one",
        },
        invariants=Invariants(shift=True, toeplitz=True, diagonal=True),
    )
    dims = {"scale": (), "bias": ("heads", "queries", "keys")}

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        p, a = (parameters[name].double().clamp(min=SMALLEST)[:, None, None] for name in ("p", "a"))
        r = at.r.abs()
        logarithmic, power = p * torch.log1p(a * r), a * r ** p.clamp(max=2)
        bias = -torch.where(parameters["kernel"] == 1, power, logarithmic)
        return {"scale": at.scale(), "bias": bias.to(at.dtype)}

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        return {"content": dot(q, k), "bias": table["bias"]}
