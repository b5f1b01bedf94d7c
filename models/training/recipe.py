"""The numbers of the training: which encodings, of what sizes, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

WIDTH, HEADS, HEAD_DIM, HIDDEN, BYTES = 64, 4, 16, 256, 256
LENGTH = 128
"""Bytes of a training example: what "the training length" means."""

SCALE = HEAD_DIM**-0.5

TRAINED = (
    "none",
    "integer",
    "sinusoidal",
    "learned",
    "shaw",
    "transformer-xl",
    "t5",
    "tupe",
    "deberta",
    "rope",
    "rope-proportional",
    "xpos",
    "alibi",
    "kerple",
    "sandwich",
    "fire",
    "cope",
    "fox",
)
SCALED = ("rope-linear", "rope-ntk", "rope-dynamic", "rope-yarn", "rope-llama3", "rope-longrope")
"""Ways to stretch what was trained under `rope` to longer texts: they have nothing to train, and meet the weights as
they are.
"""

ROWS: Mapping[str, Mapping[str, int]] = {
    "learned": {"positions": LENGTH},
    "tupe": {"positions": LENGTH},
    "deberta": {"distances": LENGTH},
    "cope": {"rows": 33},
}
"""Sizes of trained arrays that differ from the card's: no row stands for a past distance that training never shows."""

QUICK = ("t5.bias", "tupe.bias", "kerple.p", "kerple.a", "fox.b_f")
"""Arrays in units of the score. The optimiser moves a number by about the rate in a step whatever its unit, and these
have to come to several, in the one step of six in which their encoding takes part: so they move six times as fast.
"""
QUICKER = 6.0

UNUSED = ("tupe.theta_1", "tupe.theta_2", "deberta.norm_weight", "deberta.norm_bias")
"""Arrays behind a flag that is off in training: they stay parameters of the request."""

DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "t5": {"scale": SCALE, "max_distance": LENGTH // 2},
    "tupe": {"scale": SCALE, "max_distance": LENGTH // 2},
    "deberta": {"scale": SCALE},
    "fire": {"L": LENGTH / 4},
    "xpos": {"scale_base": LENGTH / 2},
    "rope-dynamic": {"original_length": LENGTH},
    "rope-yarn": {"original_length": LENGTH},
    "rope-llama3": {"original_length": LENGTH, "theta": 10_000.0},
    "rope-longrope": {"original_length": LENGTH},
}
"""In place of the cards' defaults: one scale of q.k for all, since all share W_q, so that content scores the same under
each; what the papers fit to the length they train at, here to `LENGTH` in about the same proportion; and the base of
RoPE that was trained.
"""

FROM_ZERO = ("t5.bias", "cope.e")
"""Arrays that training starts from zeros: the cards' own start shows the encoding at work before it has learnt."""


@dataclass(frozen=True)
class Recipe:
    """How long and how fast; the same recipe, text and number of threads give the same weights, bit for bit."""

    steps: int = 3600
    batch: int = 8
    encodings: int = 3
    """Encodings of each step. They take turns."""
    rate: float = 4e-3
    warm_up: int = 100
    """Steps in which the rate rises."""
    cool_down: float = 0.3
    """Share of the steps, the last, in which the rate falls to 0."""
    decay: float = 0.01
    clip: float = 1.0
    """Largest norm of one encoding's gradient, so that none drowns the others."""
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
