"""One attention layer as a checkpoint has it: what every family of checkpoints is read into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, TypedDict, Unpack

from jaxtyping import Float
from torch import Tensor

from models.encodings.encoding import Encoding

Value = float | int | bool | str | list[float]


@dataclass(frozen=True)
class Norm:
    """A layer norm (with the mean taken off) or an RMS norm, over the last axis. `weight` and `bias` are added to and
    multiplied as they are: a family whose norm multiplies by 1 + w stores 1 + w here.
    """

    kind: Literal["layer", "rms"]
    epsilon: float
    weight: Float[Tensor, "... width"] | None = None
    bias: Float[Tensor, "... width"] | None = None


@dataclass(frozen=True)
class Projection:
    """W x + b, each row of W one component of one head: [heads x head_dim, width]."""

    weight: Float[Tensor, "out width"]
    bias: Float[Tensor, " out"] | None = None


Three = tuple[Projection, Projection, Projection]
"""Of queries, of keys, of values."""


@dataclass(frozen=True)
class HeadNorm:
    """A norm of the projected queries or keys: of each head by itself (its weight is [head_dim] or [heads, head_dim]),
    or of all heads together ([heads x head_dim]).
    """

    norm: Norm
    together: bool = False


@dataclass(frozen=True)
class Window:
    """Keys that are seen besides by their position: at most `before` before the query and `after` after it."""

    before: int
    after: int


@dataclass(frozen=True)
class Embedding:
    """What the first layer's input is made of: token embedding + `segment` + the row of `table` at the position, and
    the norm of their sum.
    """

    table: Float[Tensor, "positions width"]
    norm: Norm
    segment: Float[Tensor, " width"] | None = None


@dataclass(frozen=True)
class Positional:
    """The encoding found in the layer. `scalars` are the checkpoint's values of its parameters, which a request may
    change; `arrays` those that it may not.
    """

    encoding: Encoding
    scalars: Mapping[str, Value] = field(default_factory=dict)
    arrays: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.encoding.card.id


class Besides(TypedDict, total=False):
    """What only some layers have, by `Layer`'s names."""

    norm: Norm | None
    clip: float | None
    causal: bool
    window: Window | None
    embedding: Embedding | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """Queries, keys and values from hidden states [tokens, width], and how they become scores.

    Key head j serves the query heads j*g .. j*g + g-1, g = heads / key_heads. `norm` comes before the projections,
    `clip` bounds what they give, the head norms come after. `scale` is the factor on q.k.
    """

    width: int
    heads: int
    key_heads: int
    head_dim: int
    query: Projection
    key: Projection
    value: Projection
    positional: Positional
    scale: float
    norm: Norm | None = None
    query_norm: HeadNorm | None = None
    key_norm: HeadNorm | None = None
    clip: float | None = None
    softcap: float | None = None
    sinks: Float[Tensor, " heads"] | None = None
    causal: bool = False
    window: Window | None = None
    embedding: Embedding | None = None
    notes: tuple[str, ...] = ()
    """What a reader must know besides: how the layer differs from what is served."""

    @classmethod
    def ungrouped(
        cls,
        width: int,
        heads: int,
        projections: Three,
        positional: Positional,
        scale: float | None = None,
        **besides: Unpack[Besides],
    ) -> Layer:
        """A layer whose query heads have a key head each; `scale` is 1/sqrt(head_dim) unless it is given."""
        query, key, value = projections
        head_dim = query.weight.shape[0] // heads
        return cls(
            width=width,
            heads=heads,
            key_heads=heads,
            head_dim=head_dim,
            query=query,
            key=key,
            value=value,
            positional=positional,
            scale=head_dim**-0.5 if scale is None else scale,
            **besides,
        )

    def tensors(self) -> Iterator[Tensor]:
        """All of its weights, in a fixed order."""
        for projection in (self.query, self.key, self.value):
            yield from (projection.weight, *([] if projection.bias is None else [projection.bias]))
        heads = [norm.norm for norm in (self.query_norm, self.key_norm) if norm is not None]
        embedding = self.embedding
        for norm in (self.norm, *heads, None if embedding is None else embedding.norm):
            if norm is not None:
                yield from (tensor for tensor in (norm.weight, norm.bias) if tensor is not None)
        yield from self.positional.arrays.values()
        yield from (() if self.sinks is None else (self.sinks,))
        if embedding is not None:
            yield from (embedding.table, *([] if embedding.segment is None else [embedding.segment]))

    @property
    def digest(self) -> str:
        """Of the weights as they are served, in float32: the same for one layer in files of different kinds."""
        digest = sha256()
        for tensor in self.tensors():
            digest.update(f"{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return f"sha256:{digest.hexdigest()}"

    @property
    def parameters(self) -> int:
        """How many numbers the layer has."""
        return sum(tensor.numel() for tensor in self.tensors())
