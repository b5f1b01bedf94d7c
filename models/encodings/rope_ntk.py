"""NTK-aware scaling: RoPE with a larger base, so that slow pairs stretch and fast ones hardly change."""

from __future__ import annotations

from jaxtyping import Float64
from torch import Tensor

from models.encodings.card import Card, Invariants, Paper
from models.encodings.encoding import Positions, Tables
from models.encodings.rotary import CONVENTIONS, FACTOR, LAYOUT, ROTARY_FRACTION, TERMS, THETA, Pairs, Rotary


class NTKRoPE(Rotary):
    """theta_i = b'^(-2i/D), b' = b s^(D/(D-2)): the slowest pair is interpolated by exactly s, the fastest not at
    all.
    """

    card = Card(
        id="rope-ntk",
        title="RoPE, NTK-aware base",
        summary="The base grows with the factor: slow pairs stretch by it, fast ones keep their resolution.",
        plain="theta_i = b'^(-2i/D), b' = b s^(D/(D-2)); then as rope",
        latex=r"\theta_i = b'^{-2i/D},\quad b' = b\,s^{D/(D-2)}",
        paper=Paper(
            "YaRN: Efficient Context Window Extension of Large Language Models",
            "Peng et al. (section 3.1)",
            2023,
            "2309.00071",
        ),
        terms=TERMS,
        parameters=(FACTOR, THETA, LAYOUT, ROTARY_FRACTION),
        conventions=CONVENTIONS | {"factor": "1 is plain RoPE; with a single pair (D = 2) there is nothing to stretch"},
        invariants=Invariants(shift=True, toeplitz=True, diagonal=True),
        even_head_dim=True,
    )

    def frequencies(self, pairs: Pairs, at: Positions, parameters: Tables) -> Float64[Tensor, " head_dim"]:
        return self.geometric(stretched(parameters["theta"], parameters["factor"], pairs), pairs)


def stretched(base: Tensor, factor: Tensor, pairs: Pairs) -> Float64[Tensor, ""]:
    """b s^(D/(D-2)), with D = 2 count; where D = 2 the exponent is irrelevant, since the only pair has index 0."""
    return base * factor ** (pairs.count / (pairs.count - 1).clamp(min=0.5))
