"""The records that pass between wire, routes and scoring. NumPy only; no HTTP, no onnxruntime."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int32, Num

from service.masks import Window
from service.selection import Selection

MATRICES = ("weights", "scores", "terms", "output")
RETURNABLE = (*MATRICES, "summary", "comparison")
DEFAULT_RETURN = ("weights", "scores", "summary")
"""With `compare` the comparison as well; and neither for very many heads (`service.admission.Limits`)."""


@dataclass(slots=True)
class AttentionInput:
    """A decoded body. `wire` guarantees: arrays are finite and numeric, float32 for embeddings, float64 for positions,
    float32 or (where they came so) float64 for parameters; 2-D or 3-D embeddings that are not empty; either
    `embeddings`, or both `queries` and `keys`, or `text`. Everything else is checked by scoring.
    """

    embeddings: Float[np.ndarray, "*batch tokens width"] | None = None
    queries: Float[np.ndarray, "*batch queries width"] | None = None
    keys: Float[np.ndarray, "*batch keys width"] | None = None
    positions: Float[np.ndarray, " tokens"] | None = None
    query_positions: Float[np.ndarray, " queries"] | None = None
    key_positions: Float[np.ndarray, " keys"] | None = None
    mask: Num[np.ndarray, "..."] | None = None
    """True or 1 = visible. [keys], [queries, keys], [batch, keys] (with a 3-D batch), [batch, queries, keys] or
    [batch, heads, queries, keys]."""
    tokens: Sequence[str] | None = None
    text: str | None = None
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Arrays by dotted name, `t5.bias`."""
    parameters_at: str = "/parameters"
    """The pointer that they lie under in the body."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Encodings by id that cannot take these embeddings, and why: a text's are made for the reference."""


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """The query string, names still unchecked. Encodings may carry labels, `rope@long`. `scalars` holds dotted
    parameters as sent: {"rope@long.theta": "500000"}."""

    encoding: str | None = None
    compare: tuple[str, ...] = ()
    model: str | None = None
    heads: int | None = None
    key_heads: int | None = None
    """Key head j serves the query heads j*g .. j*g + g-1, g = heads / key_heads. None: as many as there are heads."""
    causal: bool | None = None
    returns: tuple[str, ...] | None = ("weights", "scores")
    """None: `DEFAULT_RETURN`, as it suits the request."""
    metrics: tuple[str, ...] = ()
    """Of summaries and comparisons; none: the default ones."""
    scalars: Mapping[str, str] = field(default_factory=dict, hash=False)
    rows: Selection | None = None
    """The queries to return; the others are not computed. None: all, and so are heads and keys."""
    head: Selection | None = None
    top_k: int | None = None
    half: bool = False
    """Whether the answer will be written in float16: then what is computed may be."""


@dataclass(slots=True)
class TopK:
    """The k keys of each row that weigh most, in order: [*batch, heads, queries, k]. Where the row sees fewer, the
    index is -1 and all numbers are 0."""

    indices: Int32[np.ndarray, "*batch heads queries k"]
    weights: np.ndarray
    scores: np.ndarray | None = None
    terms: Mapping[str, np.ndarray] | None = None


@dataclass(slots=True)
class EncodingResult:
    """One encoding's answer. Arrays have the batch axis only where the request had one:
    weights, scores, terms [*batch, heads, queries, keys]; output [*batch, queries, heads, head_dim]; float32, or
    float16 where the request allowed it.
    `queries` and `heads` are those that were asked for. `top_k` stands in place of weights, scores and terms.
    `nonfinite_cells` counts NaN and infinities in all of them."""

    encoding: str
    parameters: Mapping[str, Any]
    conventions: Mapping[str, str]
    weights: np.ndarray | None = None
    scores: np.ndarray | None = None
    output: np.ndarray | None = None
    terms: Mapping[str, np.ndarray] | None = None
    nonfinite_cells: int = 0
    top_k: TopK | None = None
    label: str | None = None
    """Tells instances of one encoding apart."""
    summary: Mapping[str, Any] | None = None
    """JSON with arrays, of all heads and rows that are returned."""
    profile: Mapping[str, np.ndarray] | None = None
    """Its distance profile: [*batch, heads, distances]."""

    @property
    def holds_numbers(self) -> bool:
        """Whether there are arrays."""
        arrays = self.weights, self.scores, self.output, self.terms, self.top_k
        return any(array is not None for array in arrays)

    @property
    def name(self) -> str:
        """`rope`, or `rope@long`: the key of its arrays."""
        return self.encoding if self.label is None else f"{self.encoding}@{self.label}"


@dataclass(slots=True)
class Timings:
    """Where one request's time went, in seconds: feeds `Server-Timing`, the response's `timings` and the histograms."""

    decode: float = 0.0
    queue: float = 0.0
    batch_assembly: float = 0.0
    compute: float = 0.0
    postprocess: float = 0.0
    serialize: float = 0.0
    batch_jobs: int = 0

    STAGES: ClassVar[tuple[str, ...]] = ("decode", "queue", "batch_assembly", "compute", "postprocess", "serialize")

    @property
    def stages(self) -> tuple[float, float, float, float, float, float]:
        """In the order of `STAGES`."""
        return self.decode, self.queue, self.batch_assembly, self.compute, self.postprocess, self.serialize


@dataclass(slots=True)
class ScoringResult:
    """A whole answer: the first result is the reference of a comparison. The sizes are those of the whole input."""

    model: str
    batch: int | None
    heads: int
    queries: int
    keys: int
    head_dim: int
    causal: bool
    results: list[EncodingResult]
    tokens: Sequence[str] | None
    timings: Timings
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Encodings that `compare=all` left out, and why."""
    plan: Hashable = None
    """Of two results with the same one, everything but arrays, tokens, mask, timings and counts is the same."""
    key_heads: int | None = None
    """Where the request named them."""
    rows: Sequence[int] | None = None
    """The queries that are returned, and the heads; None: all of them."""
    head: Sequence[int] | None = None
    top_k: int | None = None
    mask: str | None = None
    """How the request's mask was read, `[batch, keys]`; None where there was none."""
    window: Window | None = None
    """The keys that the layer sees at all; None: every one."""
    comparison: Mapping[str, Any] | None = None
    """JSON with arrays: `reference`, and `against` by the names of the other results."""


@dataclass(slots=True)
class MatricesInput:
    """Attention matrices that somebody has already, by name, the first being the reference. Arrays are as they came,
    float16, float32 or float64, and may hold what is not finite; positions are float64 and finite.
    """

    matrices: dict[str, Float[np.ndarray, "..."]] = field(default_factory=dict)
    scores: dict[str, Float[np.ndarray, "..."]] = field(default_factory=dict)
    mask: Num[np.ndarray, "..."] | None = None
    positions: Float[np.ndarray, " tokens"] | None = None
    query_positions: Float[np.ndarray, " queries"] | None = None
    key_positions: Float[np.ndarray, " keys"] | None = None
    tokens: Sequence[str] | None = None
