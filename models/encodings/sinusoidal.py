"""The original Transformer's fixed waves."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from models.encodings.absolute import TERMS, Absolute
from models.encodings.card import Card, Paper, Parameter
from models.encodings.encoding import Positions, Tables


class Sinusoidal(Absolute):
    """p_{m,2t} = sin(m / base^(2t/d)), p_{m,2t+1} = cos(m / base^(2t/d)), d the width of the embeddings."""

    card = Card(
        id="sinusoidal",
        title="Sinusoidal",
        summary="Interleaved sines and cosines of the position, one frequency for each pair of components, added to"
        " the embedding.",
        plain="S(m,n) = c (W_q(x_m + p_m)).(W_k(x_n + p_n)), p_{m,2t} = sin(m / base^(2t/d)), p_{m,2t+1} = cos(m /"
        " base^(2t/d))",
        latex=r"S(m,n) = \frac{\left(W_q(x_m+p_m)\right)^\top W_k(x_n+p_n)}{\sqrt{d_h}},\quad"
        r" p_{m,2t}=\sin\frac{m}{b^{2t/d}},\; p_{m,2t+1}=\cos\frac{m}{b^{2t/d}}",
        paper=Paper("Attention Is All You Need", "Vaswani et al.", 2017, "1706.03762"),
        terms=TERMS,
        parameters=(
            Parameter(
                "base",
                "number",
                "base of the geometric sequence of wavelengths",
                default=10000.0,
                minimum=1.0,
                maximum=1e12,
            ),
        ),
        conventions={
            "scale": "c = 1/sqrt(head_dim)",
            "layout": "interleaved: even components are sines, odd ones cosines",
            "width": "d is the width of the whole embedding, not of a head; identity splits p into heads as it splits"
            " x",
            "values": "the position is added to the value too (output only)",
        },
        seed_article="'How Positional Encoding Evolved' writes sin(k/10000^...); the angle is the position's:"
        " sin(pos/10000^(2t/d)).",
    )

    def vectors(
        self, positions: Float64[Tensor, " tokens"], at: Positions, parameters: Tables
    ) -> Float[Tensor, "tokens width"]:
        j = torch.arange(at.width, dtype=torch.float64)
        t = torch.floor(j / 2)
        inverse_frequency = parameters["base"] ** (-2 * t / at.width)
        quarter = (j - 2 * t) * (
            math.pi / 2
        )  # cos(a) = sin(a + pi/2), so that one expression fills both kinds of component
        return torch.sin(positions[:, None] * inverse_frequency + quarter)
