"""Which tokens of a request are equal, and which are padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool

from service.masks import mask_axes, read_mask
from service.records import AttentionInput
from service.selection import Choice, Indices
from service.summaries.layout import Layout

UNKNOWN = -2
"""The token of a query that is at no key's position."""


def with_tokens(
    layout: Layout, input: AttentionInput, queries: np.ndarray, keys: np.ndarray, rows: Indices | None
) -> Layout:
    """Tokens are equal where their names are or, without names, where their embeddings are, bit for bit. `rows` are
    those that `queries` and `layout` are of. As it is where neither can be told: grouped keys are of another width.
    """
    if input.tokens is not None:
        numbers = np.unique(np.array(input.tokens), return_inverse=True)[1].reshape(1, -1)
        if input.embeddings is None:
            own = np.where(layout.places < 0, UNKNOWN, numbers[:, np.maximum(layout.places, 0)])
        else:
            own = numbers if rows is None else numbers[:, rows]
        return replace(layout, query_tokens=own, key_tokens=numbers)
    if queries.shape[2:] != keys.shape[2:]:
        return layout
    return layout.with_embeddings(queries, keys)


def padding(
    input: AttentionInput, batch: int | None, heads: int, choice: Choice, keys: int
) -> Bool[np.ndarray, "#batch queries"] | None:
    """True for the queries that are no tokens: in self-attention those that a mask of [keys] or [batch, keys] hides.
    None where there are none.
    """
    mask = input.mask
    if mask is None or input.embeddings is None:
        return None
    axes = mask_axes(mask.shape, batch, heads, choice.queries, keys)
    if axes not in (("keys",), ("batch", "keys")):
        return None
    hidden = ~read_mask(mask, batch, heads, choice.queries, keys)[:, 0, 0]
    if choice.rows is not None:
        hidden = hidden[:, choice.rows]
    return hidden if hidden.any() else None
