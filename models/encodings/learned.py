"""A learned vector for each position, as in GPT-2 and BERT."""

from __future__ import annotations

from jaxtyping import Float, Float64
from torch import Tensor

from models.encodings.absolute import TERMS, Absolute
from models.encodings.card import Card, Initial, Paper, Parameter, PositionRule, Size
from models.encodings.encoding import Positions, Tables


class Learned(Absolute):
    """p_m = table[m]; a position beyond the table is an error, never wrapped."""

    card = Card(
        id="learned",
        title="Learned absolute",
        summary="One trained vector for each position, added to the embedding; nothing is defined beyond the last row"
        " of the table.",
        plain="S(m,n) = c (W_q(x_m + p_m)).(W_k(x_n + p_n)), p_m = table[m]",
        latex=r"S(m,n) = \frac{\left(W_q(x_m+p_m)\right)^\top W_k(x_n+p_n)}{\sqrt{d_h}},\quad p_m = T_{m}",
        paper=Paper("Convolutional Sequence to Sequence Learning", "Gehring et al.", 2017, "1705.03122"),
        terms=TERMS,
        parameters=(
            Parameter(
                "table",
                "array",
                "one vector of the embeddings' width for each position",
                shape=("positions", "width"),
                sizes={"positions": Size(default=0, minimum=1, maximum=8192)},
                initial=Initial("normal", deviation=0.02),
            ),
        ),
        conventions={
            "scale": "c = 1/sqrt(head_dim)",
            "table": "N(0, 0.02) unless the request brings its own; BERT and GPT-2 start so",
            "values": "the position is added to the value too (output only)",
        },
        positions=PositionRule(integer=True, minimum=0, rows_of="table"),
    )

    def vectors(
        self, positions: Float64[Tensor, " tokens"], at: Positions, parameters: Tables
    ) -> Float[Tensor, "tokens width"]:
        return parameters["table"][positions.long()]
