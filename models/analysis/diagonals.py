"""Sums along the diagonals of a matrix: what rows give to keys by how far back those are."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad


def diagonal_sums(
    x: Float[Tensor, "batch heads queries keys"],
) -> Float[Tensor, "batch heads diagonals"]:
    """Entry c is the sum of x[i, j] over i - j = queries - c, for c = 0 to queries + keys (the outermost two are 0).

    Each row gets as many zeros in front as there are rows. Read in rows of one cell more, the same numbers stand
    shifted by one for each row, so that diagonals have become columns.
    """
    batch, heads, queries, keys = x.shape
    flat = pad(x, (queries, 0)).reshape(batch, heads, -1)
    return pad(flat, (0, queries)).reshape(batch, heads, queries, queries + keys + 1).sum(-2)
