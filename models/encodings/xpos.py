"""xPos (Sun et al. 2022): RoPE whose pairs fade with distance, slow ones least."""

from __future__ import annotations

import torch
from torch import Tensor

from models.encodings.card import Card, Invariants, Paper, Parameter, Term
from models.encodings.encoding import Positions, Tables
from models.encodings.rope import RoPE
from models.encodings.rotary import CONVENTIONS, LAYOUT, ROTARY_FRACTION, THETA

FURTHEST = 32.0


class XPos(RoPE):
    """S(m, n) = c sum_i zeta_i^((m-n)/B) Re(q_i conj(k_i) e^{i (m-n) theta_i}), zeta_i = (2i/D + gamma)/(1 + gamma).

    q_m carries zeta^((m-o)/B) and k_n zeta^(-(n-o)/B). Any origin o gives the same score, but 0 would overflow far out:
    o is the middle of the keys, and no exponent exceeds e^32, so that every score is finite.
    """

    card = Card(
        id="xpos",
        title="xPos: extrapolatable position embedding",
        summary="RoPE with a decay: each pair's share of the score shrinks exponentially with distance, the fastest"
        " pairs' most.",
        plain="S(m,n) = c sum_i zeta_i^((m-n)/B) Re(q_i conj(k_i) e^{i (m-n) theta_i}), theta_i = b^(-2i/D),"
        " zeta_i = (2i/D + gamma)/(1 + gamma), i = 0 .. D/2-1",
        latex=r"S(m,n) = \frac{1}{\sqrt{d_h}}\sum_{i=0}^{D/2-1} \zeta_i^{(m-n)/B}\,\mathrm{Re}\left[q_i\,"
        r"\overline{k_i}\,e^{\mathrm{i}(m-n)\theta_i}\right],\quad \zeta_i = \frac{2i/D + \gamma}{1+\gamma}",
        paper=Paper("A Length-Extrapolatable Transformer", "Sun et al.", 2022, "2212.10554"),
        terms=(
            Term("fast", "the third of the frequency pairs that turns and fades fastest"),
            Term("medium", "the middle third"),
            Term("slow", "the third that turns and fades slowest"),
            Term("unrotated", "components beyond the rotary fraction, which neither turn nor fade: c q.k"),
        ),
        parameters=(
            Parameter(
                "gamma",
                "number",
                "the larger, the gentler the decay of fast pairs",
                default=0.4,
                minimum=0.01,
                maximum=1e6,
            ),
            Parameter(
                "scale_base",
                "number",
                "B: positions after which pair i has faded to zeta_i of itself",
                default=512.0,
                minimum=1.0,
                maximum=1e9,
            ),
            THETA,
            LAYOUT,
            ROTARY_FRACTION,
        ),
        conventions=CONVENTIONS
        | {
            "decay": "zeta_i < 1, so the past fades; a future key would grow instead, hence causal only",
            "origin": "exponents are measured from the middle of the keys and stop at e^32 and e^-32: scores are exact"
            " for positions within 32 B/|ln zeta_0| of it (13,000 by default), finite everywhere",
        },
        invariants=Invariants(shift=True, toeplitz=True, diagonal=True),
        causal="required",
        even_head_dim=True,
    )

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        table = super().tables(at, parameters)
        pairs, gamma = self.pairs(at, parameters), parameters["gamma"]
        zeta = (pairs.index / pairs.count.clamp(min=1) + gamma) / (1 + gamma)
        log_zeta = torch.where(pairs.rotated, torch.log(zeta), 0.0) / parameters["scale_base"]
        o = (at.key.min() + at.key.max()) / 2
        fade = ((at.query[:, None] - o) * log_zeta).clamp(-FURTHEST, FURTHEST).exp().to(at.dtype)
        grow = (-(at.key[:, None] - o) * log_zeta).clamp(-FURTHEST, FURTHEST).exp().to(at.dtype)
        table |= {name: table[name] * fade for name in ("query_cos", "query_sin")}
        table |= {name: table[name] * grow for name in ("key_cos", "key_sin")}
        return table
