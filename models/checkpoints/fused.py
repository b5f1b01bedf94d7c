"""Projections that a checkpoint keeps in one matrix, taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from models.checkpoints.layer import Projection, Three


def stacked(whole: Projection, heads: int, key_heads: int, head_dim: int) -> Three:
    """All queries, then all keys, then all values (GPT-2, MPT, Phi 3)."""
    sizes = [heads * head_dim, key_heads * head_dim, key_heads * head_dim]
    return _three(whole, lambda rows: torch.split(rows, sizes))


def by_head(whole: Projection, heads: int, head_dim: int) -> Three:
    """Query, key and value of the first head, then of the next (GPT-NeoX, BLOOM)."""
    return by_group(whole, heads, 1, head_dim)


def by_group(whole: Projection, key_heads: int, group: int, head_dim: int) -> Three:
    """The queries that share a key head, then that key and value, then the next such group (Falcon)."""

    def apart(rows: Tensor) -> Sequence[Tensor]:
        grouped = rows.reshape(key_heads, group + 2, head_dim, *rows.shape[1:])
        parts = (grouped[:, :-2], grouped[:, -2], grouped[:, -1])
        return [part.reshape(-1, *rows.shape[1:]) for part in parts]

    return _three(whole, apart)


def _three(whole: Projection, apart: Callable[[Tensor], Sequence[Tensor]]) -> Three:
    weights = apart(whole.weight)
    biases = (None, None, None) if whole.bias is None else apart(whole.bias)
    query, key, value = (
        Projection(weight.contiguous(), None if bias is None else bias.contiguous())
        for weight, bias in zip(weights, biases, strict=True)
    )
    return query, key, value
