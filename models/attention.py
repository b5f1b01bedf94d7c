"""Attention under a positional encoding: projections times encoding. No scheme's details.

It comes in two halves, which are exported apart: `PositionTables` (positions and parameters only; computed once and
cached by whoever serves) and `ScoredAttention` (content).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from models.encodings.encoding import Encoding, Positions, Scores, Tables
from models.modifiers import masked_softmax, softcapped
from models.projections import Projections


class Attended(NamedTuple):
    """What attention computes; `terms` sum to `scores` (before a softcap)."""

    scores: Scores
    weights: Scores
    output: Float[Tensor, "batch queries heads head_dim"]
    terms: dict[str, Scores]


class PositionTables(nn.Module):
    """The half of an encoding that depends on positions and parameters alone.

    `sizes` is (heads, head_dim, width) for projected models and None for identity, whose sizes come from the shape of
    `heads_like`.
    """

    def __init__(
        self,
        projections: Projections,
        encoding: Encoding,
        sizes: tuple[int, int, int] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.projections, self.encoding, self.sizes, self.dtype = projections, encoding, sizes, dtype

    def at(
        self,
        query: Tensor,
        key: Tensor,
        causal: Tensor,
        heads_like: Float[Tensor, "heads head_dim"],
        scale: Float64[Tensor, ""],
    ) -> Positions:
        """Positions, float64 [queries] and [keys], with everything an encoding may ask about the model."""
        heads, head_dim = heads_like.shape
        heads, head_dim, width = self.sizes or (heads, head_dim, heads * head_dim)
        return Positions(
            query,
            key,
            causal,
            heads,
            head_dim,
            width,
            lambda p: self.projections.position_query(p, heads, head_dim),
            lambda p: self.projections.position_key(p, heads, head_dim),
            lambda p: self.projections.position_value(p, heads, head_dim),
            scale,
            self.dtype,
        )

    def forward(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        tables = self.encoding.tables(at, parameters)
        return tables | {"softcap": parameters["softcap"].to(self.dtype), "sinks": parameters["sinks"]}


class ScoredAttention(nn.Module):
    """The half that meets content: scores before the mask, weights after it, output and terms."""

    def __init__(self, projections: Projections, encoding: Encoding) -> None:
        super().__init__()
        self.projections, self.encoding = projections, encoding

    def forward(
        self,
        queries: Float[Tensor, "batch queries *features"],
        keys: Float[Tensor, "batch keys *features"],
        visible: Bool[Tensor, "#batch #heads queries keys"],
        tables: Tables,
        switches: Mapping[str, Bool[Tensor, ""]],
    ) -> Attended:
        q, k, v, tables = self.encoding.projected(self.projections, queries, keys, tables)
        scores = softcapped(self.encoding.scores(q, k, tables), tables["softcap"], switches["softcap"])
        weights = masked_softmax(scores, visible, tables["sinks"], switches["sinks"])
        output = self.encoding.output(weights, v, tables).transpose(1, 2)
        terms = self.encoding.terms(q, k, tables)
        terms = {
            name: term if term.shape == scores.shape else term.expand(scores.shape) for name, term in terms.items()
        }
        return Attended(scores, weights, output, terms)
