"""How q, k and v come from embeddings. A model is one of these times an encoding."""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

Split = Float[Tensor, "batch heads tokens head_dim"]


class Projections(Protocol):
    """q, k, v of embeddings, and the same projections of bare position vectors (no bias, no batch)."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the axes of an embedding in the exported graph, after batch and tokens."""

    def query(self, x: Tensor) -> Split: ...
    def key(self, x: Tensor) -> Split: ...
    def value(self, x: Tensor) -> Split: ...
    def position_query(
        self, p: Float[Tensor, "tokens width"], heads: int, head_dim: int
    ) -> Float[Tensor, "heads tokens head_dim"]: ...
    def position_key(
        self, p: Float[Tensor, "tokens width"], heads: int, head_dim: int
    ) -> Float[Tensor, "heads tokens head_dim"]: ...
    def position_value(
        self, p: Float[Tensor, "tokens width"], heads: int, head_dim: int
    ) -> Float[Tensor, "heads tokens head_dim"]: ...


class Identity(nn.Module):
    """q = k = v = the embeddings, split into heads: what an encoding alone does to the user's own vectors. Embeddings
    come split, [batch, tokens, heads, head_dim].
    """

    features = ("heads", "head_dim")

    def query(self, x: Float[Tensor, "batch tokens heads head_dim"]) -> Split:
        return x.transpose(1, 2)

    key = value = query

    def position_query(
        self, p: Float[Tensor, "tokens width"], heads: int, head_dim: int
    ) -> Float[Tensor, "heads tokens head_dim"]:
        return split(p, heads, head_dim)

    position_key = position_value = position_query


class Linear(nn.Module):
    """q = W_q x + b_q and so on; embeddings are [batch, tokens, width]."""

    features = ("width",)

    def __init__(self, width: int, heads: int, head_dim: int, bias: bool = False) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.w_q = nn.Linear(width, heads * head_dim, bias=bias)
        self.w_k = nn.Linear(width, heads * head_dim, bias=bias)
        self.w_v = nn.Linear(width, heads * head_dim, bias=bias)

    def query(self, x: Float[Tensor, "batch tokens width"]) -> Split:
        return self.by_head(self.w_q, x)

    def key(self, x: Float[Tensor, "batch tokens width"]) -> Split:
        return self.by_head(self.w_k, x)

    def value(self, x: Float[Tensor, "batch tokens width"]) -> Split:
        return self.by_head(self.w_v, x)

    def by_head(self, projection: nn.Linear, x: Float[Tensor, "batch tokens width"]) -> Split:
        projected = linear(x, projection.weight, projection.bias)
        return torch.reshape(projected, (*x.shape[:-1], self.heads, self.head_dim)).transpose(1, 2)

    def position_query(
        self, p: Float[Tensor, "tokens width"], heads: int, head_dim: int
    ) -> Float[Tensor, "heads tokens head_dim"]:
        return split(linear(p, self.w_q.weight), heads, head_dim)

    def position_key(
        self, p: Float[Tensor, "tokens width"], heads: int, head_dim: int
    ) -> Float[Tensor, "heads tokens head_dim"]:
        return split(linear(p, self.w_k.weight), heads, head_dim)

    def position_value(
        self, p: Float[Tensor, "tokens width"], heads: int, head_dim: int
    ) -> Float[Tensor, "heads tokens head_dim"]:
        return split(linear(p, self.w_v.weight), heads, head_dim)


def split(p: Float[Tensor, "tokens width"], heads: int, head_dim: int) -> Float[Tensor, "heads tokens head_dim"]:
    """[tokens, width] as [heads, tokens, head_dim]."""
    return torch.reshape(p, (p.shape[0], heads, head_dim)).transpose(0, 1)
