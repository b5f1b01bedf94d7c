"""ALiBi with a checkpoint's own slopes, where they are not the published ones."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from models.encodings.alibi import ALiBi, slopes
from models.encodings.encoding import Encoding, Positions, Tables


class GivenSlopes(ALiBi):
    """S(m, n) = c q_m.k_n - s_h (m - n), s_h as given."""

    def __init__(self, given: Float[Tensor, " heads"], why: str) -> None:
        self.given = given
        self.card = replace(
            ALiBi.card,
            plain="S(m,n) = c q_m.k_n - s_h (m-n) if causal, - s_h |m-n| if bidirectional; s_h the checkpoint's",
            latex=r"S(m,n) = \frac{q_m^\top k_n}{\sqrt{d_h}} - s_h\,(m-n)\ \text{(causal)},\quad -s_h\,|m-n|"
            r"\ \text{(bidirectional)}",
            conventions={**ALiBi.card.conventions, "slopes": why},
        )

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        distance = torch.where(at.causal, at.r, at.r.abs())
        return {"scale": at.scale(), "bias": (-self.given.double()[:, None, None] * distance).to(at.dtype)}


def alibi(given: Float[Tensor, " heads"], why: str) -> Encoding:
    """ALiBi with these slopes: the plain one where they are the published ones. `why` says how they came about."""
    if torch.allclose(given.double(), slopes(len(given)), rtol=1e-6, atol=0):
        return ALiBi()
    return GivenSlopes(given, why)
