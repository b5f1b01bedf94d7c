"""Dynamic NTK scaling: the base grows with the request's own length."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from models.encodings.card import Card, Invariants
from models.encodings.encoding import Positions, Tables
from models.encodings.rope_ntk import stretched
from models.encodings.rotary import (
    CONVENTIONS,
    FACTOR,
    LAYOUT,
    ORIGINAL_LENGTH,
    ROTARY_FRACTION,
    TERMS,
    THETA,
    Pairs,
    Rotary,
)


class DynamicRoPE(Rotary):
    """theta_i = b'^(-2i/D), b' = b (s n/L - (s - 1))^(D/(D-2)) for a request of length n > L; plain RoPE up to L."""

    card = Card(
        id="rope-dynamic",
        title="RoPE, dynamic NTK",
        summary="Plain RoPE up to the trained length; beyond it the base grows with the request's own length.",
        plain="theta_i = b'^(-2i/D), b' = b (s n/L - (s-1))^(D/(D-2)) where n > L, else b; n = the request's length",
        latex=r"\theta_i = b'^{-2i/D},\quad b' = b\left(\frac{s\,n}{L} - (s-1)\right)^{D/(D-2)}\ (n > L)",
        paper=None,
        terms=TERMS,
        parameters=(FACTOR, ORIGINAL_LENGTH, THETA, LAYOUT, ROTARY_FRACTION),
        conventions=CONVENTIONS
        | {
            "length": "n is the request's largest position plus one; nothing is remembered from other requests",
            "source": "dynamic NTK scaling as in transformers; described in YaRN's appendix (arXiv 2309.00071)",
        },
        invariants=Invariants(prefix=False, toeplitz=True, diagonal=True),
        even_head_dim=True,
    )

    def frequencies(self, pairs: Pairs, at: Positions, parameters: Tables) -> Float64[Tensor, " head_dim"]:
        s, trained = parameters["factor"], parameters["original_length"].double()
        n = torch.maximum(at.length, trained)
        return self.geometric(stretched(parameters["theta"], s * n / trained - (s - 1), pairs), pairs)
