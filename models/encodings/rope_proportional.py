"""p-RoPE: the slowest pairs of the head are not turned at all."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from models.encodings.card import Card, Invariants, Paper, Parameter
from models.encodings.encoding import Positions, Tables, whole
from models.encodings.rotary import CONVENTIONS, LAYOUT, TERMS, THETA, Pairs, Rotary


class ProportionalRoPE(Rotary):
    """theta_i = b^(-2i/d_h) / s for i < floor(p d_h / 2), 0 for the rest: pairs span the whole head, unlike a partial
    rotary.
    """

    card = Card(
        id="rope-proportional",
        title="p-RoPE: proportional rotary",
        summary="The fastest share of the pairs turns; the slowest, which carry meaning rather than position, do not.",
        plain="theta_i = b^(-2i/d_h)/s for i < floor(p d_h/2), else 0; then as rope",
        latex=r"\theta_i = \begin{cases} b^{-2i/d_h}/s & i < \lfloor p\,d_h/2 \rfloor \\ 0 &"
        r" \text{otherwise}\end{cases}",
        paper=Paper(
            "Round and Round We Go! What Makes Rotary Positional Encodings Useful?",
            "Barbero et al.",
            2024,
            "2410.06205",
        ),
        terms=TERMS,
        parameters=(
            Parameter(
                "proportion", "number", "p: share of the pairs that turns", default=0.25, minimum=0.0, maximum=1.0
            ),
            Parameter("factor", "number", "s: divides every frequency", default=1.0, minimum=1.0, maximum=1e6),
            THETA,
            LAYOUT,
        ),
        conventions=CONVENTIONS
        | {
            "pairs": "over the whole head, and frequencies over head_dim: not a partial rotary of p head_dim"
            " components",
            "bands": "fast, medium, slow: thirds of the pairs that turn; unrotated: the rest",
        },
        invariants=Invariants(shift=True, toeplitz=True, diagonal=True),
        even_head_dim=True,
    )

    def pairs(self, at: Positions, parameters: Tables) -> Pairs:
        """Pairs over the whole head, of which only the fastest turn; `count` is the number that turns."""
        head = Pairs.of(at.head_dim, torch.ones((), dtype=torch.float64), parameters["layout"])
        count = whole(parameters["proportion"] * head.count)
        return replace(head, rotated=head.index < count, count=count)

    def frequencies(self, pairs: Pairs, at: Positions, parameters: Tables) -> Float64[Tensor, " head_dim"]:
        return parameters["theta"] ** (-2 * pairs.index / at.head_dim) / parameters["factor"]
