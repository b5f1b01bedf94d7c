"""YaRN (Peng et al. 2023): fast pairs extrapolate, slow pairs interpolate, and attention is sharpened."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from models.encodings.card import Card, Invariants, Order, Paper, Parameter
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


class YaRN(Rotary):
    """theta'_i = g_i theta_i + (1 - g_i) theta_i / s, with g falling linearly in the index i from 1 to 0 between

        low = floor(D ln(L / (beta_fast 2 pi)) / (2 ln b)),  high = ceil(D ln(L / (beta_slow 2 pi)) / (2 ln b));

    the rotated q and k are multiplied by a = 0.1 ln s + 1, so scores grow by a^2.
    """

    card = Card(
        id="rope-yarn",
        title="RoPE, YaRN",
        summary="Pairs that turn often within the trained length are left alone, pairs that turn less than once are"
        " interpolated, with a ramp between; scores are sharpened.",
        plain="theta'_i = g_i theta_i + (1-g_i) theta_i/s, g = 1 - clamp((i - low)/(high - low), 0, 1); scores times"
        " a^2, a = 0.1 ln s + 1",
        latex=r"\theta'_i = g_i\theta_i + (1-g_i)\frac{\theta_i}{s},\quad g_i = 1 -"
        r" \mathrm{clamp}\frac{i-\mathrm{low}}{\mathrm{high}-\mathrm{low}},"
        r"\quad a = 0.1\ln s + 1",
        paper=Paper(
            "YaRN: Efficient Context Window Extension of Large Language Models", "Peng et al.", 2023, "2309.00071"
        ),
        terms=TERMS,
        parameters=(
            FACTOR,
            ORIGINAL_LENGTH,
            Parameter(
                "beta_fast",
                "number",
                "turns within L from which a pair extrapolates",
                default=32.0,
                minimum=1e-3,
                maximum=1e6,
            ),
            Parameter(
                "beta_slow",
                "number",
                "turns within L below which a pair interpolates; at most beta_fast",
                default=1.0,
                minimum=1e-3,
                maximum=1e6,
            ),
            ATTENTION_FACTOR,
            Parameter(
                "mscale",
                "number",
                "with mscale_all_dim: a = (0.1 mscale ln s + 1)/(0.1 mscale_all_dim ln s + 1)",
                minimum=0.0,
                maximum=100.0,
            ),
            Parameter(
                "mscale_all_dim",
                "number",
                "see mscale; both are needed for either to count",
                minimum=0.0,
                maximum=100.0,
            ),
            Parameter(
                "truncate", "flag", "round the ramp's ends to whole indices, as the released code does", default=True
            ),
            replace(THETA, minimum=1.001),  # base 1 gives all pairs one frequency, and the ramp no index to end at
            LAYOUT,
            ROTARY_FRACTION,
        ),
        orders=(Order("beta_slow", "beta_fast", strict=False),),
        conventions=CONVENTIONS
        | {
            "ramp": "linear in the pair's index, between rounded ends (the released code), not in the number of turns"
            " (the paper)",
            "attention_factor": "multiplies the rotated q and the rotated k, so scores of rotated components grow by"
            " its square",
            "factor": "1 is plain RoPE",
        },
        invariants=Invariants(shift=True, toeplitz=True),
        even_head_dim=True,
    )

    def frequencies(self, pairs: Pairs, at: Positions, parameters: Tables) -> Float64[Tensor, " head_dim"]:
        theta, s = self.geometric(parameters["theta"], pairs), parameters["factor"]
        low = self.index_of(parameters["beta_fast"], pairs, parameters)
        high = self.index_of(parameters["beta_slow"], pairs, parameters)
        low = torch.where(parameters["truncate"], low.floor(), low).clamp(min=0)
        high = torch.minimum(torch.where(parameters["truncate"], high.ceil(), high), 2 * pairs.count - 1)
        high = torch.where(low == high, high + 0.001, high)
        ramp = ((pairs.index - low) / (high - low)).clamp(0, 1)
        return (1 - ramp) * theta + ramp * theta / s

    @staticmethod
    def index_of(turns: Tensor, pairs: Pairs, parameters: Tables) -> Float64[Tensor, ""]:
        """The (fractional) index of the pair that makes this many turns within the trained length."""
        wavelength = parameters["original_length"].double() / (turns * (2 * math.pi))
        return pairs.count * torch.log(wavelength) / torch.log(parameters["theta"])

    def magnitude(self, at: Positions, parameters: Tables) -> Float64[Tensor, ""]:
        given, s = parameters["attention_factor"], parameters["factor"]
        mscale, mscale_all_dim = parameters["mscale"], parameters["mscale_all_dim"]
        both = (mscale > 0) & (mscale_all_dim > 0)
        log_s = 0.1 * torch.log(s)
        derived = torch.where(both, (log_s * mscale + 1) / (log_s * mscale_all_dim + 1), log_s + 1)
        return torch.where(torch.isnan(given), derived, given)
