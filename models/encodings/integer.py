"""The naive scheme: add the position's number to every component."""

from __future__ import annotations

from jaxtyping import Float, Float64
from torch import Tensor

from models.encodings.absolute import TERMS, Absolute
from models.encodings.card import Card
from models.encodings.encoding import Positions, Tables


class Integer(Absolute):
    """p_m = m (1, 1, ..., 1)."""

    card = Card(
        id="integer",
        title="Integer positions",
        summary="The position's number added to every component: values explode with length, and for long inputs"
        " every row becomes one-hot.",
        plain="S(m,n) = c (W_q(x_m + m 1)).(W_k(x_n + n 1))",
        latex=r"S(m,n) = \frac{\left(W_q(x_m + m\mathbf{1})\right)^\top W_k(x_n + n\mathbf{1})}{\sqrt{d_h}}",
        paper=None,
        terms=TERMS,
        conventions={"scale": "c = 1/sqrt(head_dim)", "values": "the position is added to the value too (output only)"},
        seed_article="'Positional Embeddings Explained' starts from this scheme to show why it fails; served so that"
        " the failure can be seen.",
    )

    def vectors(
        self, positions: Float64[Tensor, " tokens"], at: Positions, parameters: Tables
    ) -> Float[Tensor, "tokens width"]:
        return positions[:, None].expand(-1, at.width)
