"""The input of a probe: that of the request, changed in one respect."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Float64

from service.plan import Layout
from service.probes.records import Extend, NotApplicable
from service.records import AttentionInput

EVEN = 1e-9
"""How much steps between positions may differ, relative to the step."""


def constant(input: AttentionInput, layout: Layout, component: float) -> AttentionInput:
    """Every token the same vector, all of whose components are the same, in place of the content."""
    queries, keys = _arrays(input)
    positions = layout.query_positions.values, layout.key_positions.values
    return AttentionInput(
        queries=np.full(queries.shape[-2:], component, np.float32),
        keys=np.full(keys.shape[-2:], component, np.float32),
        query_positions=positions[0],
        key_positions=positions[1],
        parameters=input.parameters,
    )


def root_mean_square(input: AttentionInput) -> float:
    """Of all numbers of the content, as float32."""
    arrays = {id(array): array for array in _arrays(input)}.values()
    squares = sum(float(np.einsum("i,i->", flat, flat, dtype=np.float64)) for flat in map(np.ravel, arrays))
    return float(np.float32(math.sqrt(squares / sum(array.size for array in arrays))))


def moved(
    input: AttentionInput, queries: Float64[np.ndarray, " queries"], keys: Float64[np.ndarray, " keys"]
) -> AttentionInput:
    """The same content at other positions."""
    if input.embeddings is not None and queries is keys:
        return replace(input, positions=queries, query_positions=None, key_positions=None, tokens=None)
    return replace(input, positions=None, query_positions=queries, key_positions=keys, tokens=None)


def lengthened(input: AttentionInput, layout: Layout, tokens: int, extend: Extend, seed: int) -> AttentionInput:
    """The first tokens of the input, or the input and more: itself again and again, or normal numbers of the mean and
    deviation that each component has in it. Positions go on as they began. Raises NotApplicable.
    """
    queries, keys = layout.query_positions.values, layout.key_positions.values
    if not _together(layout):
        raise NotApplicable("queries and keys are not the same tokens, so there is no one length")
    if input.mask is not None:
        raise NotApplicable("a mask came, which says nothing of other lengths")
    step = 1.0 if len(queries) < 2 else float(queries[1] - queries[0])
    if not np.allclose(np.diff(queries), step, rtol=EVEN, atol=0):
        raise NotApplicable("the positions are not evenly spaced, so there is no saying how they go on")
    positions = queries[0] + step * np.arange(tokens, dtype=np.float64)
    positions[: len(keys)] = keys[:tokens]
    stream = np.random.RandomState(seed)
    if input.embeddings is not None:
        content = _lengthened(input.embeddings, tokens, extend, stream)
        return replace(
            input, embeddings=content, positions=positions, query_positions=None, key_positions=None, tokens=None
        )
    both = [_lengthened(array, tokens, extend, stream) for array in _arrays(input)]
    return replace(
        input, queries=both[0], keys=both[1], query_positions=positions, key_positions=positions, tokens=None
    )


def reordered(layout: Layout, seed: int) -> Float64[np.ndarray, " tokens"]:
    """Positions that put the tokens into another order, drawn from the seed. Raises NotApplicable.

    To send tokens in another order is to send the same tokens with their positions exchanged: attention knows of order
    by positions alone.
    """
    if not _together(layout):
        raise NotApplicable("queries and keys are not the same tokens, so they have no common order")
    count = len(layout.query_positions)
    if count < 3:
        raise NotApplicable(f"{count} token{'s' if count > 1 else ''} cannot be put into another order than reversed")
    places = np.argsort(np.random.RandomState(seed).permutation(count))
    positions: Float64[np.ndarray, " tokens"] = layout.query_positions.values[places]
    return positions


def _together(layout: Layout) -> bool:
    return layout.query_positions.digest == layout.key_positions.digest


def _arrays(input: AttentionInput) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys, the same object in self-attention."""
    queries, keys = (array if input.embeddings is None else input.embeddings for array in (input.queries, input.keys))
    assert queries is not None  # admitted
    assert keys is not None
    return queries, keys


def _lengthened(
    array: Float[np.ndarray, "*batch tokens width"], tokens: int, extend: Extend, stream: np.random.RandomState
) -> Float[np.ndarray, "*batch {tokens} width"]:
    count = array.shape[-2]
    if extend == "tiled" or tokens <= count:
        return np.ascontiguousarray(array[..., np.arange(tokens) % count, :])
    mean, deviation = (of(array, axis=-2, keepdims=True, dtype=np.float64) for of in (np.mean, np.std))
    drawn = stream.standard_normal((*array.shape[:-2], tokens - count, array.shape[-1]))
    return np.concatenate([array, (mean + deviation * drawn).astype(np.float32)], axis=-2)
