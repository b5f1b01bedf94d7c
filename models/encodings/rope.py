"""RoPE (Su et al. 2021)."""

from __future__ import annotations

from jaxtyping import Float64
from torch import Tensor

from models.encodings.card import Card, Invariants, Paper
from models.encodings.encoding import Positions, Tables
from models.encodings.rotary import CONVENTIONS, LAYOUT, ROTARY_FRACTION, TERMS, THETA, Pairs, Rotary


class RoPE(Rotary):
    """theta_i = b^(-2i/D), i = 0 .. D/2 - 1."""

    card = Card(
        id="rope",
        title="RoPE: rotary position embedding",
        summary="Each pair of components of q and k turns by an angle proportional to its position, so the dot"
        " product sees only the difference.",
        plain="S(m,n) = c Re sum_i q_i conj(k_i) e^{i (m-n) theta_i}, theta_i = b^(-2i/D), i = 0 .. D/2-1",
        latex=r"S(m,n) = \frac{1}{\sqrt{d_h}}\,\mathrm{Re}\sum_{i=0}^{D/2-1}"
        r" q_i\,\overline{k_i}\,e^{\mathrm{i}(m-n)\theta_i},\quad \theta_i = b^{-2i/D}",
        paper=Paper("RoFormer: Enhanced Transformer with Rotary Position Embedding", "Su et al.", 2021, "2104.09864"),
        terms=TERMS,
        parameters=(THETA, LAYOUT, ROTARY_FRACTION),
        conventions=CONVENTIONS,
        invariants=Invariants(shift=True, toeplitz=True, diagonal=True),
        even_head_dim=True,
        seed_article="The articles start theta at index 1, rotate the token embeddings, concatenate in the text but"
        " interleave in the code, and say near tokens"
        " score higher: theta_0 = 1; q and k are rotated after projection; the layout is a parameter here; only an"
        " upper bound decays with distance,"
        " and similarity depends on the signed difference.",
    )

    def frequencies(self, pairs: Pairs, at: Positions, parameters: Tables) -> Float64[Tensor, " head_dim"]:
        return self.geometric(parameters["theta"], pairs)
