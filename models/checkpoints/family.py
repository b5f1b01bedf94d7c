"""A layer as a family of exports: its own encoding, and others over the same content weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from torch import Tensor

from models.checkpoints.embedded import Embedded
from models.checkpoints.errors import CheckpointError, nearest
from models.checkpoints.layer import Layer, Value
from models.checkpoints.projections import LayerProjections
from models.encodings import ENCODINGS
from models.encodings.absolute import Absolute
from models.encodings.encoding import Encoding
from models.encodings.rotary import Rotary
from models.family import Family

LEARNED = "learned"
SHARED_BY_ROTARY = ("theta", "layout", "rotary_fraction")


class Imported(NamedTuple):
    """A family and the encodings it is exported under, its own first."""

    family: Family
    encodings: tuple[Encoding, ...]


def imported(layer: Layer, name: str, others: Iterable[str] = (), details: Mapping[str, Any] | None = None) -> Imported:
    """The family of a layer, under its own encoding and `others` (ids or aliases).

    The layer's scale is the default under every encoding, so the content's term is the same matrix in all of them; what
    rotary encodings have in common is the checkpoint's in all of those. Raises CheckpointError.
    """
    own = layer.positional
    encodings: dict[str, Encoding] = {own.id: own.encoding}
    if layer.embedding is not None:
        encodings[LEARNED] = Embedded(layer.embedding)
    for other in others:
        encoding = encoding_named(other)
        if encoding.card.id not in encodings:
            _check(layer, encoding)
            encodings[encoding.card.id] = encoding

    family = Family(
        name,
        LayerProjections(layer),
        (layer.heads, layer.head_dim, layer.width),
        default_causal=layer.causal,
        default_encoding=own.id,
        fixed={encoding: _fixed(layer, encoding) for encoding in encodings},
        defaults={encoding.card.id: _defaults(layer, encoding) for encoding in encodings.values()},
        details={"weights": layer.digest, **(details or {}), **_window(layer)},
    )
    return Imported(family, tuple(encodings.values()))


def encoding_named(name: str) -> Encoding:
    """By id or alias. Raises CheckpointError."""
    wanted = name.strip().lower()
    for encoding in ENCODINGS:
        if wanted in (encoding.card.id, *encoding.card.aliases):
            return encoding
    known = [encoding.card.id for encoding in ENCODINGS]
    hint = nearest(wanted, known)
    raise CheckpointError(
        f"{name!r} is no encoding; {f'did you mean {hint[0]}? ' if hint else ''}known: {', '.join(known)}"
    )


def _check(layer: Layer, encoding: Encoding) -> None:
    """Whether these content weights can be served under another encoding. Raises CheckpointError."""
    if isinstance(encoding, Absolute) and (layer.query_norm or layer.key_norm or layer.clip):
        raise CheckpointError(
            f"{encoding.card.id} adds a vector before the projections, but this layer normalises (or clips) queries and "
            "keys after them, so the sum would not be the sum of its terms; leave it out"
        )
    if encoding.card.even_head_dim and layer.head_dim % 2:
        raise CheckpointError(f"{encoding.card.id} needs an even head_dim, but this layer's is {layer.head_dim}")


def _fixed(layer: Layer, encoding: str) -> dict[str, Tensor]:
    """The arrays that are part of the model."""
    fixed = dict(layer.positional.arrays) if encoding == layer.positional.id else {}
    if layer.embedding is not None and encoding == LEARNED:
        fixed["table"] = layer.embedding.table
    return fixed if layer.sinks is None else {**fixed, "sinks": layer.sinks}


def _defaults(layer: Layer, encoding: Encoding) -> dict[str, Value]:
    """The values that a request gets where it names none."""
    own = layer.positional
    defaults: dict[str, Value] = {"scale": layer.scale}
    if layer.softcap is not None:
        defaults["softcap"] = layer.softcap
    if encoding.card.id == own.id:
        defaults |= own.scalars
    elif isinstance(encoding, Rotary) and isinstance(own.encoding, Rotary):
        named = {parameter.name for parameter in encoding.card.parameters}
        defaults |= {name: own.scalars[name] for name in SHARED_BY_ROTARY if name in own.scalars and name in named}
    return defaults



def _window(layer: Layer) -> dict[str, Any]:
    return {} if layer.window is None else {"window": asdict(layer.window)}
