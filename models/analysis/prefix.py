"""Sums of the first keys of each row, and what they make cheap: the mass of any window of keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 32
LARGEST_WINDOW = 8**7


class PrefixSums(NamedTuple):
    """`sums[..., front + j]` is the sum of keys 0 to j; everything before `front`, and there is something, is 0."""

    sums: Float[Tensor, "batch heads queries padded"]
    front: int
    keys: int

    def alike(self, x: Float[Tensor, "#batch #heads #queries keys"]) -> Float[Tensor, "#batch #heads #queries padded"]:
        """Numbers of the keys at the places of their sums, with zeros before."""
        return _blocks(x, self.front).flatten(-2)


def prefix_sums(x: Float[Tensor, "batch heads queries keys"]) -> PrefixSums:
    """By blocks: a product with a triangle inside each, then a running sum over the few block totals.

    Half the time of ONNX's CumSum on the CPU, and on CUDA that operator adds up all earlier keys for each key.
    """
    batch, heads, queries, keys = x.shape
    front = BLOCK - keys % BLOCK
    within = _blocks(x, front) @ torch.ones(BLOCK, BLOCK, dtype=x.dtype).triu()
    totals = within[..., -1:]
    sums = (within + (totals.cumsum(-2) - totals)).reshape(batch, heads, queries, -1)
    # The caller must not read `keys` off the sums: the exporter writes a wrong formula for the size of their last axis.
    return PrefixSums(sums, front, keys)


def _blocks(x: Float[Tensor, "batch heads queries keys"], front: int) -> Float[Tensor, "batch heads queries blocks 32"]:
    return pad(x, (front, 0)).reshape(*x.shape[:-1], -1, BLOCK)


def half_mass_distance(
    prefix: PrefixSums, places: Int64[Tensor, " queries"], half: Float[Tensor, ""]
) -> Int64[Tensor, "batch heads queries"]:
    """The least w such that the keys at most w places from the query's own have a mass of at least `half`.

    The largest w that is too small is found digit by digit, in base 8, so for up to 8^7 keys.
    """
    sums, front, keys = prefix
    own = places[:, None]
    short = torch.full((*sums.shape[:3], 1), -1)
    step = LARGEST_WINDOW // 8
    while step:
        tried = short + step * torch.arange(1, 8)
        up_to, before = (own + tried).clamp(max=keys - 1), (own - tried - 1).clamp(min=-1)
        mass = sums.gather(-1, up_to + front) - sums.gather(-1, before + front)
        short = short + step * (mass < half).sum(-1, keepdim=True)
        step //= 8
    return short[..., 0] + 1
