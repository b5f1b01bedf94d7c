"""Presets that are drawn: each from a seed alone, in a stream that NumPy has frozen.

A normal number goes through the machine's logarithm, whose last bit is its own. So all numbers are rounded to four
decimals, which no last bit reaches, before they become float32; written as JSON they are short.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from service.presets.preset import Tokens

DECIMALS = 10_000
CENTRE, NOISE = 0.8, 0.6
"""Parts of a token in `blocks`: their squares sum to 1, and so does its variance."""
KEPT = 0.9
"""What a token of `walk` keeps of the one before."""


def random(n: int, d: int, seed: int) -> Tokens:
    return _tokens(_normal(np.random.RandomState(seed), n, d), [f"t{i}" for i in range(n)])


def repeat(n: int, d: int, seed: int) -> Tokens:
    """The first half, longer by one where n is odd, and the same again."""
    places = np.arange(n) % half(n)
    return _tokens(_normal(np.random.RandomState(seed), half(n), d)[places], [f"t{i}" for i in places])


def constant(n: int, d: int) -> Tokens:
    return _tokens(np.ones((n, d)), ["same"] * n)


def needle(n: int, d: int, seed: int) -> Tokens:
    """The last token is the one at n // 4."""
    values = _normal(np.random.RandomState(seed), n, d)
    values[-1] = values[n // 4]
    names = [f"t{i}" for i in range(n)]
    names[-1] = names[n // 4] = "needle"
    return _tokens(values, names)


def blocks(n: int, d: int, seed: int) -> Tokens:
    """Noise around one vector in the first half, and around another in the second."""
    stream = np.random.RandomState(seed)
    centres = _normal(stream, 2, d)
    second = np.arange(n) >= half(n)
    values = CENTRE * centres[second.astype(int)] + NOISE * _normal(stream, n, d)
    return _tokens(values, [f"b{i - half(n)}" if second[i] else f"a{i}" for i in range(n)])


def walk(n: int, d: int, seed: int) -> Tokens:
    """x_t = 0.9 x_(t-1) + sqrt(1 - 0.9^2) e_t: tokens k apart correlate by 0.9^k, and all have the variance 1."""
    values = _normal(np.random.RandomState(seed), n, d)
    step = np.sqrt(1 - KEPT**2)
    for i in range(1, n):
        values[i] = KEPT * values[i - 1] + step * values[i]
    return _tokens(values, [f"t{i}" for i in range(n)])


def half(n: int) -> int:
    return (n + 1) // 2


def _normal(stream: np.random.RandomState, n: int, d: int) -> Float64[np.ndarray, "n d"]:
    return stream.standard_normal((n, d))


def _tokens(values: Float64[np.ndarray, "n d"], names: Sequence[str]) -> Tokens:
    rounded = np.rint(values * DECIMALS) / DECIMALS + 0.0  # no -0.0
    return Tokens(rounded.astype("<f4"), tuple(names))
