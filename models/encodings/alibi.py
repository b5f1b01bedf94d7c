"""ALiBi (Press et al. 2022): a penalty linear in the distance."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from models.encodings.card import Card, Invariants, Paper, Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot


class ALiBi(Encoding):
    """S(m, n) = c q_m.k_n - s_h (m - n) (causal), - s_h |m - n| (bidirectional)."""

    card = Card(
        id="alibi",
        title="ALiBi: attention with linear biases",
        summary="Each head subtracts its own slope times the distance; nothing is learned and nothing is added to the"
        " embeddings.",
        plain="S(m,n) = c q_m.k_n - s_h (m-n) if causal, - s_h |m-n| if bidirectional; s_h = 2^(-8h/H), h = 1..H",
        latex=r"S(m,n) = \frac{q_m^\top k_n}{\sqrt{d_h}} - s_h\,(m-n)\ \text{(causal)},\quad -s_h\,|m-n|"
        r"\ \text{(bidirectional)},\quad s_h = 2^{-8h/H}",
        paper=Paper(
            "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
            "Press, Smith, Lewis",
            2022,
            "2108.12409",
        ),
        terms=(Term("content", "c q_m.k_n"), Term("bias", "-s_h (m-n), or -s_h |m-n|")),
        conventions={
            "scale": "c = 1/sqrt(head_dim); the bias is added after scaling",
            "slopes": "2^(-8h/H) for H a power of two; else those of the power of two below, then every second one of"
            " the next: the published, unsorted order",
            "causal": "signed distance under a causal mask, absolute otherwise",
        },
        invariants=Invariants(shift=True, toeplitz=True, diagonal=True),
    )
    dims = {"scale": (), "bias": ("heads", "queries", "keys")}

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        distance = torch.where(at.causal, at.r, at.r.abs())
        return {"scale": at.scale(), "bias": (-slopes(at.heads)[:, None, None] * distance).to(at.dtype)}

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        return {"content": dot(q, k), "bias": table["bias"]}


def slopes(heads: int) -> Float64[Tensor, " heads"]:
    """s_h for any number of heads, as published; in tensor form because the number of heads is dynamic."""
    h = torch.arange(heads, dtype=torch.float64)
    powers = 2.0 ** torch.arange(31, dtype=torch.float64)
    power = torch.where(powers <= heads, powers, 1.0).max()
    return torch.where(h < power, -8 * (h + 1) / power, -8 * (2 * (h - power) + 1) / (2 * power)).exp2()
