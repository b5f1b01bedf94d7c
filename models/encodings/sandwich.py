"""Sandwich (Chi et al. 2022): the dot product of two sinusoidal positions, as a bias without parameters to learn."""

from __future__ import annotations

import torch
from torch import Tensor

from models.encodings.card import Card, Invariants, Paper, Parameter, Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot


class Sandwich(Encoding):
    """S(m, n) = c q_m.k_n + (sum_{i=1}^{w/2} cos((m-n) / 10000^(2i/w)) - w/2) / (8h/H), h = 1 .. H.

    The sum is p_m.p_n, sines and cosines of both positions, so all pairs are one matrix product.
    """

    card = Card(
        id="sandwich",
        title="Sandwich",
        summary="The part of sinusoidal attention in which positions meet positions, kept as a bias of its own: it"
        " falls like a logarithm, with ripples, and less steeply from head to head.",
        plain="S(m,n) = c q_m.k_n + (sum_{i=1}^{w/2} cos((m-n)/10000^(2i/w)) - w/2)/(8h/H), h = 1..H",
        latex=r"S(m,n) = \frac{q_m^\top k_n}{\sqrt{d_h}} + \frac{H}{8h}\left(\sum_{i=1}^{w/2}"
        r" \cos\frac{m-n}{10000^{2i/w}} - \frac{w}{2}\right),\quad h = 1,\dots,H",
        paper=Paper(
            "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis",
            "Chi, Fan, Rudnicky, Ramadge",
            2022,
            "2212.10356",
        ),
        terms=(
            Term("content", "c q_m.k_n"),
            Term("bias", "(sum_i cos((m-n)/10000^(2i/w)) - w/2)/(8h/H): 0 at distance 0, negative elsewhere"),
        ),
        parameters=(
            Parameter(
                "w",
                "integer",
                "width of the sinusoidal vectors, twice the number of waves; an odd one is rounded down",
                default=128,
                minimum=2,
                maximum=1024,
            ),
        ),
        conventions={
            "scale": "c = 1/sqrt(head_dim); the bias is added after scaling",
            "compression": "head h of H divides the bias by 8h/H, h = 1..H: the first head is the most local",
            "waves": "i runs from 1 to w/2; w is a width of its own, not the embeddings'",
            "offset": "w/2 is subtracted, so a token's bias to itself is 0; the weights do not depend on it",
            "causal": "the bias is symmetric: a future key is penalised like a past one",
        },
        invariants=Invariants(shift=True, toeplitz=True, diagonal=True),
    )
    dims = {"scale": (), "bias": ("heads", "queries", "keys")}

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        waves = parameters["w"] // 2
        i = torch.arange(1, waves.item() + 1, dtype=torch.float64)
        frequency = 10000.0 ** (-i / waves)
        m, n = at.query[:, None] * frequency, at.key[:, None] * frequency
        p_m, p_n = torch.cat([m.sin(), m.cos()], dim=-1), torch.cat([n.sin(), n.cos()], dim=-1)
        h = torch.arange(1, at.heads + 1, dtype=torch.float64)[:, None, None]
        bias = (dot(p_m, p_n) - waves) / (8 * h / at.heads)
        return {"scale": at.scale(), "bias": bias.to(at.dtype)}

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        return {"content": dot(q, k), "bias": table["bias"]}
