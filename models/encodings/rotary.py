"""Rotation of queries and keys by their position: what the rotary family shares. Each member supplies its inverse
frequencies.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from models.encodings.card import Parameter, Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot, whole

TERMS = (
    Term("fast", "the third of the frequency pairs that turns fastest: c Re sum q_i conj(k_i) e^{i r theta_i}"),
    Term("medium", "the middle third"),
    Term("slow", "the third that turns slowest"),
    Term("unrotated", "components beyond the rotary fraction, which do not turn: c q.k"),
)
THETA = Parameter(
    "theta", "number", "base b of the inverse frequencies b^(-2i/D)", default=10000.0, minimum=1.0, maximum=1e15
)
LAYOUT = Parameter(
    "layout",
    "choice",
    "which components form a pair: (2i, 2i+1) interleaved as in the articles, RoFormer and GPT-J; (i, i + D/2) half"
    " as in GPT-NeoX and Llama",
    choices=("interleaved", "half"),
    default="interleaved",
)
ROTARY_FRACTION = Parameter(
    "rotary_fraction",
    "number",
    "share of each head's components that turns; D = that share, rounded down to an even number, and frequencies run"
    " over D",
    default=1.0,
    minimum=0.0,
    maximum=1.0,
)


CONVENTIONS = {
    "scale": "c = 1/sqrt(head_dim)",
    "layout": "interleaved unless asked otherwise; the two layouts give different scores for the same vectors",
    "sign": "q and k turn by +position * theta; the score depends on the signed difference m - n",
    "where": "after projection: q and k are rotated, never the embeddings",
    "bands": "fast, medium, slow: thirds of the frequency pairs by index",
}
FACTOR = Parameter("factor", "number", "s: how many times the original length", default=4.0, minimum=1.0, maximum=1e6)
ORIGINAL_LENGTH = Parameter(
    "original_length",
    "integer",
    "L: the length the model was trained at (original_max_position_embeddings)",
    default=2048,
    minimum=2,
    maximum=10**9,
)
ATTENTION_FACTOR = Parameter(
    "attention_factor",
    "number",
    "a: factor on the rotated q and on the rotated k; derived by the paper's formula where it is not given",
    minimum=0.0,
    maximum=1e3,
)


@dataclass(frozen=True)
class Pairs:
    """How the components of a head pair up, each array [head_dim].

    `index` i of the component's pair, 0 .. D/2 - 1; `partner` the other component; `sign` of the partner's share of
    the rotation; `rotated` whether the component turns at all; `count` = D/2.
    """

    index: Float64[Tensor, " head_dim"]
    partner: Int64[Tensor, " head_dim"]
    sign: Float64[Tensor, " head_dim"]
    rotated: Tensor
    count: Float64[Tensor, ""]

    @classmethod
    def of(cls, head_dim: int, fraction: Tensor, layout: Tensor) -> Pairs:
        j = torch.arange(head_dim, dtype=torch.float64)
        count = whole(fraction * head_dim / 2)
        rotated = j < 2 * count
        odd = j - 2 * torch.floor(j / 2)
        second = (j >= count).double()
        half = layout == 1
        index = torch.where(half, j - second * count, torch.floor(j / 2))
        step = torch.where(half, count * (1 - 2 * second), 1 - 2 * odd)
        sign = torch.where(half, 2 * second - 1, 2 * odd - 1)
        partner = torch.where(rotated, j + step, j).long()
        return cls(torch.where(rotated, index, 0.0), partner, sign, rotated, count)

    @property
    def band(self) -> Int64[Tensor, " head_dim"]:
        """0 fast, 1 medium, 2 slow (thirds of the pairs), 3 unrotated."""
        third = torch.floor(3 * self.index / self.count.clamp(min=1))
        return torch.where(self.rotated, third, 3.0).long()


class Rotary(Encoding):
    """S(m, n) = c Re sum_i q_i conj(k_i) e^{i (m - n) theta_i}: q and k turn by their own position, so only the
    difference remains.

    The tables `theta` (radians per position, float64) and `attention_factor` are there to be read; scores need neither.
    """

    dims = {
        "scale": (),
        "query_cos": ("queries", "head_dim"),
        "query_sin": ("queries", "head_dim"),
        "key_cos": ("keys", "head_dim"),
        "key_sin": ("keys", "head_dim"),
        "partner": ("head_dim",),
        "band": ("head_dim",),
        "theta": ("head_dim",),
        "attention_factor": (),
    }

    @abstractmethod
    def frequencies(self, pairs: Pairs, at: Positions, parameters: Tables) -> Float64[Tensor, " head_dim"]:
        """theta_i of each component's pair, radians per position."""

    @staticmethod
    def geometric(base: Tensor, pairs: Pairs) -> Float64[Tensor, " head_dim"]:
        """base^(-2i/D): plain RoPE's frequencies."""
        return base ** (-pairs.index / pairs.count.clamp(min=1))

    def magnitude(self, at: Positions, parameters: Tables) -> Float64[Tensor, ""]:
        """Factor on the rotated q and k (YaRN's and LongRoPE's a): scores of rotated components grow by its square."""
        return torch.ones((), dtype=torch.float64)

    def pairs(self, at: Positions, parameters: Tables) -> Pairs:
        """Which components pair up and turn."""
        return Pairs.of(at.head_dim, parameters["rotary_fraction"], parameters["layout"])

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        pairs = self.pairs(at, parameters)
        theta = torch.where(pairs.rotated, self.frequencies(pairs, at, parameters), 0.0)
        a = torch.where(pairs.rotated, self.magnitude(at, parameters), 1.0)
        m, n = at.query[:, None] * theta, at.key[:, None] * theta
        return {
            "scale": at.scale(),
            "query_cos": (a * m.cos()).to(at.dtype),
            "query_sin": (a * m.sin() * pairs.sign).to(at.dtype),
            "key_cos": (a * n.cos()).to(at.dtype),
            "key_sin": (a * n.sin() * pairs.sign).to(at.dtype),
            "partner": pairs.partner,
            "band": pairs.band,
            "theta": theta,
            "attention_factor": self.magnitude(at, parameters),
        }

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        q, k = self.rotated(q, k, table)
        return {term.name: dot(torch.where(table["band"] == band, q, 0.0), k) for band, term in enumerate(TERMS)}

    def scores(self, q: Heads, k: Heads, table: Tables) -> Scores:
        return dot(*self.rotated(q, k, table))

    def rotated(self, q: Heads, k: Heads, table: Tables) -> tuple[Heads, Heads]:
        """q and k, each turned by its own position."""
        partner = table["partner"]
        q = q * table["query_cos"] + q.index_select(-1, partner) * table["query_sin"]
        k = k * table["key_cos"] + k.index_select(-1, partner) * table["key_sin"]
        return q, k
