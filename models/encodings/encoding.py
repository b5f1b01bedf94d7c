"""What every encoding is: tables that depend on positions alone, and terms that combine them with content.

Notation, here and in every encoding: m is the query's position, n the key's, r = m - n (positive: the key lies in the
past); q and k are [batch, heads, tokens, head_dim]; c = 1/sqrt(head_dim) unless the card says otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from models.encodings.card import Card
from models.projections import Projections

Scores = Float[Tensor, "batch heads queries keys"]
Heads = Float[Tensor, "batch heads tokens head_dim"]
Tables = Mapping[str, Tensor]
Project = Callable[[Float[Tensor, "tokens width"]], Float[Tensor, "heads tokens head_dim"]]


@dataclass(frozen=True)
class Positions:
    """Where queries and keys stand, the sizes of the heads, and how a position vector reaches head space.

    For projected models `project_query(p)` is W_q p (no bias), split into heads; for identity it only splits. Tables
    are cast to `dtype`: float32 when served, float64 when the same code serves as the reference of an export.
    """

    query: Float64[Tensor, " queries"]
    key: Float64[Tensor, " keys"]
    causal: Bool[Tensor, ""]
    heads: int
    head_dim: int
    width: int
    project_query: Project
    project_key: Project
    project_value: Project
    given_scale: Float64[Tensor, ""]
    dtype: torch.dtype = torch.float32

    @property
    def r(self) -> Float64[Tensor, "queries keys"]:
        """m - n for every pair."""
        return self.query[:, None] - self.key[None, :]

    @property
    def length(self) -> Float64[Tensor, ""]:
        """The request's own length: its largest position, plus one."""
        return torch.maximum(self.query.max(), self.key.max()) + 1

    def scale(self, factor: int = 1) -> Float[Tensor, ""]:
        """1 / sqrt(factor * head_dim), or the scale that the request gives.

        Computed in the graph: a Python sqrt of a dynamic size would be baked in at export.
        """
        return self.or_given(torch.full((), self.head_dim * factor, dtype=torch.float64).rsqrt())

    def or_given(self, own: Float64[Tensor, ""]) -> Float[Tensor, ""]:
        """The scale that the request gives, or the encoding's own where it gives none (NaN)."""
        return torch.where(torch.isnan(self.given_scale), own, self.given_scale).to(self.dtype)


class Encoding(ABC):
    """A positional encoding of attention scores.

    `dims` names the axes of each table, for the exported graph's dynamic shapes: the request's sizes or names of the
    encoding's own.
    """

    card: Card
    dims: ClassVar[Mapping[str, tuple[str | int, ...]]]

    @abstractmethod
    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        """Everything that positions and parameters alone decide: computed in float64, tables in float32 or int64.

        Always holds `scale`, the factor on q.
        """

    def expected(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        """How many entries each list parameter (kind `numbers`) must have under these sizes, unless it has one; int64
        [].
        """
        return {}

    def projected(
        self,
        projections: Projections,
        queries: Float[Tensor, "batch queries *features"],
        keys: Float[Tensor, "batch keys *features"],
        table: Tables,
    ) -> tuple[Heads, Heads, Heads, Tables]:
        """q (scaled), k and v of the embeddings, and the tables as scores need them: most encodings have no part in
        either.
        """
        q = projections.query(queries) * table["scale"]
        return q, projections.key(keys), projections.value(keys), table

    @abstractmethod
    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        """The additive terms of the score, named as on the card; they may broadcast over the batch. q is already
        scaled.
        """

    def scores(self, q: Heads, k: Heads, table: Tables) -> Scores:
        """S(m, n): the sum of the terms, in a cheaper form where there is one. q is already scaled."""
        return reduce(torch.add, self.terms(q, k, table).values())

    def output(self, weights: Scores, v: Heads, table: Tables) -> Heads:
        """What attention returns: the weighted sum of values (and of value positions, where the paper has them)."""
        return weights @ v


def whole(x: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """floor(x), but a number that rounding has left a hair below a whole one counts as that one.

    Not `floor(x + 1e-9)`: the exporter rounds so small a constant to 0 and drops the sum.
    """
    return torch.floor((x * 2.0**30 + 1) / 2.0**30)


def dot(
    q: Float[Tensor, "*batch queries head_dim"], k: Float[Tensor, "*batch keys head_dim"]
) -> Float[Tensor, "*batch queries keys"]:
    """q.k for every pair of a query and a key."""
    return q @ k.transpose(-1, -2)


def pick(rows: Float[Tensor, "batch heads queries rows"], index: Tensor) -> Scores:
    """rows[..., m, index[m, n]]: the entry of each query's row that a pair (m, n) points at; index is int64 [queries,
    keys].
    """
    return rows.gather(-1, index.expand(rows.shape[0], rows.shape[1], -1, -1))
