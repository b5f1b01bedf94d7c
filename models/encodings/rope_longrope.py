"""LongRoPE (Ding et al. 2024): a searched factor for each pair, one list for short texts and one for long."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from models.encodings.card import Card, Invariants, Paper, Parameter
from models.encodings.encoding import Positions, Tables
from models.encodings.rotary import (
    ATTENTION_FACTOR,
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


class LongRoPE(Rotary):
    """theta_i = b^(-2i/D) / lambda_i, lambda the long list for a request longer than L, else the short one.

    The rotated q and k are multiplied by a = sqrt(1 + ln s / ln L).
    """

    card = Card(
        id="rope-longrope",
        title="RoPE, LongRoPE",
        summary="Each pair is slowed by its own searched factor; requests beyond the trained length use another list.",
        plain="theta_i = b^(-2i/D)/lambda_i, lambda = long_factor where n > L, else short_factor; scores times a^2, a"
        " = sqrt(1 + ln s/ln L)",
        latex=r"\theta_i = \frac{b^{-2i/D}}{\lambda_i},\quad a = \sqrt{1 + \frac{\ln s}{\ln L}}",
        paper=Paper(
            "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", "Ding et al.", 2024, "2402.13753"
        ),
        terms=TERMS,
        parameters=(
            Parameter(
                "short_factor",
                "numbers",
                "lambda up to L: one entry for each pair, or one for all",
                default=[1.0],
                minimum=1e-3,
                maximum=1e6,
            ),
            Parameter(
                "long_factor",
                "numbers",
                "lambda beyond L: one entry for each pair, or one for all",
                default=[4.0],
                minimum=1e-3,
                maximum=1e6,
            ),
            FACTOR,
            ORIGINAL_LENGTH,
            ATTENTION_FACTOR,
            THETA,
            LAYOUT,
            ROTARY_FRACTION,
        ),
        conventions=CONVENTIONS
        | {
            "length": "n is the request's largest position plus one; nothing is remembered from other requests",
            "attention_factor": "multiplies the rotated q and the rotated k, at any length",
            "factor": "s, max_position_embeddings / original_max_position_embeddings in configurations",
            "lists": "the published lists belong to one model; the defaults only show the mechanism",
        },
        invariants=Invariants(prefix=False, toeplitz=True),
        even_head_dim=True,
    )

    def frequencies(self, pairs: Pairs, at: Positions, parameters: Tables) -> Float64[Tensor, " head_dim"]:
        long = at.length > parameters["original_length"].double()
        slowed = torch.where(long, entry(parameters["long_factor"], pairs), entry(parameters["short_factor"], pairs))
        return self.geometric(parameters["theta"], pairs) / slowed

    def magnitude(self, at: Positions, parameters: Tables) -> Float64[Tensor, ""]:
        given = parameters["attention_factor"]
        derived = torch.sqrt(1 + torch.log(parameters["factor"]) / torch.log(parameters["original_length"].double()))
        return torch.where(torch.isnan(given), derived, given)

    def expected(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        pairs = self.pairs(at, parameters).count.long()
        return {"short_factor": pairs, "long_factor": pairs}


def entry(factors: Float64[Tensor, " entries"], pairs: Pairs) -> Float64[Tensor, " head_dim"]:
    """The factor of each component's pair; a list of one serves all pairs."""
    return factors[pairs.index.long().clamp(max=factors.shape[0] - 1)]
