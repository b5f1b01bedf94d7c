"""Position interpolation: RoPE with positions divided by a factor."""

from __future__ import annotations

from jaxtyping import Float64
from torch import Tensor

from models.encodings.card import Card, Invariants, Paper
from models.encodings.encoding import Positions, Tables
from models.encodings.rotary import CONVENTIONS, FACTOR, LAYOUT, ROTARY_FRACTION, TERMS, THETA, Pairs, Rotary


class LinearRoPE(Rotary):
    """theta_i = b^(-2i/D) / s: position m turns like m/s."""

    card = Card(
        id="rope-linear",
        title="RoPE, linear position interpolation",
        summary="Positions are divided by a factor, so that a longer text spans the angles of the trained length.",
        plain="S(m,n) = c Re sum_i q_i conj(k_i) e^{i (m-n) theta_i / s}, theta_i = b^(-2i/D)",
        latex=r"S(m,n) = \frac{1}{\sqrt{d_h}}\,\mathrm{Re}\sum_i q_i\,\overline{k_i}\,e^{\mathrm{i}(m-n)\theta_i/s},"
        r"\quad \theta_i = b^{-2i/D}",
        paper=Paper(
            "Extending Context Window of Large Language Models via Positional Interpolation",
            "Chen et al.",
            2023,
            "2306.15595",
        ),
        terms=TERMS,
        parameters=(FACTOR, THETA, LAYOUT, ROTARY_FRACTION),
        conventions=CONVENTIONS | {"factor": "1 is plain RoPE"},
        invariants=Invariants(shift=True, toeplitz=True, diagonal=True),
        even_head_dim=True,
    )

    def frequencies(self, pairs: Pairs, at: Positions, parameters: Tables) -> Float64[Tensor, " head_dim"]:
        return self.geometric(parameters["theta"], pairs) / parameters["factor"]
