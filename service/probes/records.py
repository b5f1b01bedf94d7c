"""What is asked of probes, and the answer. No HTTP, no onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from service.records import AttentionOptions, Timings

PROBES = ("position_only", "position_share", "shift_gap", "order_gap", "length_sweep")
OFFSETS = (1.0, 16.0, 256.0, 4096.0)
LENGTHS = (0.5, 1.0, 2.0, 4.0)
Extend = Literal["tiled", "random"]
EXTENDS: tuple[Extend, ...] = ("tiled", "random")

DEFINITIONS: Mapping[str, Mapping[str, str]] = {
    "position_only": {
        "definition": "scores S(d) of tokens that are all the same vector, d = query position - key position, less "
        "S(0): what position alone makes of equal content. The mean over all pairs at the distance that causality "
        "lets through; spread is the largest score there less the smallest, 0 where distance is all that counts. "
        "without_content is the same for zero vectors: what is added whatever the content",
        "unit": "score: before the softmax",
    },
    "position_share": {
        "definition": "1 - RSS(row + distance) / RSS(row) of the visible scores: how much of their variance within "
        "rows one number for each distance explains, both effects fitted together by least squares. Without the pairs "
        "at distance 0: that a token is like itself is content. chance is about what scores that are noise would give",
        "unit": "share, 0 to 1",
    },
    "shift_gap": {
        "definition": "Jensen-Shannon divergence and total variation between the rows of the weights as asked and "
        "those with offset added to all positions; mean over rows that see two keys or more. 0 where only distances "
        "count",
        "unit": "jsd: bits, 0 to 1; tv: share of the weight, 0 to 1",
    },
    "order_gap": {
        "definition": "Jensen-Shannon divergence and total variation between the rows of the weights as asked, tokens "
        "reordered, and those of the tokens in that order; mean over rows that see two keys or more. 0 where order "
        "does not count",
        "unit": "jsd: bits, 0 to 1; tv: share of the weight, 0 to 1",
    },
    "length_sweep": {
        "definition": "summaries of the weights at other lengths: entropy_norm is entropy / ln(visible keys), "
        "mean_distance_ratio the mean distance over that of uniform weights, sink_mass_k the mass of the first k keys. "
        "They describe weights, and say nothing of how well a model does at a length",
        "unit": "entropy_norm, sink_mass_k: 0 to 1; mean_distance_ratio: 1 is uniform; uniform: that of equal weights",
    },
}


class NotApplicable(Exception):
    """This probe has no answer here; the message says why."""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """A query string. Of `attention` neither rows, heads, top_k nor returns count."""

    attention: AttentionOptions = field(default_factory=AttentionOptions)
    probes: tuple[str, ...] = PROBES
    offsets: tuple[float, ...] = OFFSETS
    """Of `shift_gap`, in positions."""
    seed: int = 0
    """Of the order in `order_gap`, and of what `length_sweep` draws."""
    lengths: tuple[float, ...] = LENGTHS
    """Of `length_sweep`, in lengths of the input."""
    extend: Extend = "tiled"


@dataclass(frozen=True, slots=True, eq=False)
class EncodingProbes:
    """One encoding's answer. `probes` are JSON-able but for NumPy arrays; NaN is null. Arrays by head have the batch
    axis before it where the request had one."""

    encoding: str
    label: str | None
    name: str
    parameters: Mapping[str, Any]
    conventions: Mapping[str, str]
    probes: Mapping[str, Mapping[str, Any]]


@dataclass(slots=True, eq=False)
class ProbesResult:
    """A whole answer. `about` says of each probe that was asked for what it is and what it was asked with."""

    model: str
    batch: int | None
    heads: int
    queries: int
    keys: int
    head_dim: int
    causal: bool
    about: Mapping[str, Mapping[str, Any]]
    results: list[EncodingProbes]
    timings: Timings
    skipped: Mapping[str, str] = field(default_factory=dict)
    tokens: Sequence[str] | None = None
