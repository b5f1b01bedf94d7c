"""Attention weights as what they stand for: one distribution over the visible keys for each row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

SMALLEST = torch.finfo(torch.float32).tiny
"""Below this a weight counts as 0 in logarithms: the smallest normal float32."""

LEAST = 1e-30
"""With sinks, rows that weigh less than this are not counted: their weights have lost digits, or are 0, in float32."""

Matrix = Float[Tensor, "batch heads queries keys"]
Rows = Float[Tensor, "batch heads queries"]


class Probabilities(NamedTuple):
    """`p` and the rows it can be read in; `row_sum` is of the weights as they were given."""

    p: Matrix
    row_sum: Rows
    counted: Bool[Tensor, "batch heads queries"]


def probabilities(
    weights: Matrix,
    visible: Bool[Tensor, "#batch #heads queries keys"],
    tolerance: Tensor,
    exact: Bool[Tensor, ""],
    sinks: Bool[Tensor, ""],
) -> Probabilities:
    """Cells that are not visible become 0; with `exact` on they are. A row is counted where it sums to 1, give or take
    `tolerance`.

    With `sinks` on, a learned sink takes part in the softmax but has no key, and rows sum to less than 1. They are then
    divided by their sum: p is the attention that goes to keys. A row is counted where that is at least `LEAST`.
    """
    kept = torch.where(exact, weights, torch.where(visible, weights, 0.0))
    row_sum = kept.sum(-1)
    p = torch.where(sinks, kept / torch.where(row_sum > 0, row_sum, 1.0)[..., None], kept)
    least = torch.where(sinks, torch.full((), LEAST, dtype=weights.dtype), 1 - tolerance)
    return Probabilities(p, row_sum, (row_sum >= least) & (row_sum <= 1 + tolerance))
