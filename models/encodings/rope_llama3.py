"""Llama 3.1's scaling: three bands of wavelengths, kept, blended and divided."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from models.encodings.card import Card, Invariants, Order, Paper, Parameter
from models.encodings.encoding import Positions, Tables
from models.encodings.rotary import CONVENTIONS, LAYOUT, ROTARY_FRACTION, TERMS, Pairs, Rotary


class Llama3RoPE(Rotary):
    """With wavelength w = 2 pi / theta: theta kept where w < L/high, theta / s where w > L/low, and between them

    (1 - t) theta / s + t theta,  t = (L/w - low) / (high - low).
    """

    card = Card(
        id="rope-llama3",
        title="RoPE, Llama 3.1",
        summary="Short wavelengths are kept, long ones divided by the factor, and those between are blended.",
        plain="theta'_i = theta_i if w_i < L/high; theta_i/s if w_i > L/low; else (1-t) theta_i/s + t theta_i, t ="
        " (L/w_i - low)/(high - low)",
        latex=r"\theta'_i = (1-t_i)\frac{\theta_i}{s} + t_i\theta_i,\quad t_i ="
        r" \mathrm{clamp}\frac{L/w_i-\mathrm{low}}{\mathrm{high}-\mathrm{low}},"
        r"\quad w_i = \frac{2\pi}{\theta_i}",
        paper=Paper("The Llama 3 Herd of Models", "Grattafiori et al.", 2024, "2407.21783"),
        terms=TERMS,
        parameters=(
            Parameter(
                "factor", "number", "s: how many times the original length", default=8.0, minimum=1.0, maximum=1e6
            ),
            Parameter(
                "low_freq_factor",
                "number",
                "wavelengths above L/low are divided by s",
                default=1.0,
                minimum=1e-3,
                maximum=1e6,
            ),
            Parameter(
                "high_freq_factor",
                "number",
                "wavelengths below L/high are kept; more than low_freq_factor",
                default=4.0,
                minimum=1e-3,
                maximum=1e6,
            ),
            Parameter(
                "original_length",
                "integer",
                "L: the length the model was trained at (original_max_position_embeddings)",
                default=8192,
                minimum=2,
                maximum=10**9,
            ),
            Parameter(
                "theta",
                "number",
                "base b of the inverse frequencies b^(-2i/D)",
                default=500000.0,
                minimum=1.0,
                maximum=1e15,
            ),
            LAYOUT,
            ROTARY_FRACTION,
        ),
        orders=(Order("low_freq_factor", "high_freq_factor"),),
        conventions=CONVENTIONS | {"factor": "1 is plain RoPE", "theta": "500,000 unless asked otherwise, as Llama 3"},
        invariants=Invariants(shift=True, toeplitz=True, diagonal=True),
        even_head_dim=True,
    )

    def frequencies(self, pairs: Pairs, at: Positions, parameters: Tables) -> Float64[Tensor, " head_dim"]:
        theta, s = self.geometric(parameters["theta"], pairs), parameters["factor"]
        low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
        turns = parameters["original_length"].double() * theta / (2 * math.pi)
        t = (turns - low) / (high - low)
        blended = (1 - t) * theta / s + t * theta
        return torch.where(turns > high, theta, torch.where(turns < low, theta / s, blended))
