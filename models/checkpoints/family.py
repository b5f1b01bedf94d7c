"""A layer as a family of exports: its own encoding, and others over the same content weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.attention import PositionTables
from models.checkpoints.embedded import Embedded
from models.checkpoints.errors import CheckpointError, nearest
from models.checkpoints.layer import Layer, Norm, Value
from models.checkpoints.projections import LayerProjections
from models.encodings import ENCODINGS
from models.encodings.absolute import Absolute
from models.encodings.encoding import Encoding
from models.encodings.rotary import Rotary
from models.family import Family, sample_of
from models.modifiers import MODIFIERS

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
        conventions={encoding.card.id: _conventions(layer, encoding) for encoding in encodings.values()},
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
            f"{encoding.card.id} adds a vector before the projections, but this layer normalises (or clips) queries "
            "and keys after them, so the score would not be the sum of its terms; leave it out"
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
    defaults: dict[str, Value] = {} if _scales_alike(layer, encoding) else {"scale": layer.scale}
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


def _scales_alike(layer: Layer, encoding: Encoding) -> bool:
    """Whether the encoding's own factor on q.k is the layer's."""
    sizes = (layer.heads, layer.head_dim, layer.width)
    generator = torch.Generator().manual_seed(0)
    parameters = {
        parameter.name: sample_of(parameter, layer.heads, layer.head_dim, 1, generator)
        for parameter in (*encoding.card.parameters, *MODIFIERS)
    }
    tables = PositionTables(LayerProjections(layer), encoding, sizes)
    nowhere = torch.zeros(1, dtype=torch.float64)
    at = tables.at(nowhere, nowhere, torch.tensor(True), torch.zeros(sizes[:2]), parameters["scale"])
    return math.isclose(float(encoding.tables(at, parameters)["scale"]), layer.scale, rel_tol=1e-6)


def _conventions(layer: Layer, encoding: Encoding) -> dict[str, str]:
    """What is particular to this layer, in words."""
    lines: dict[str, str] = {}
    if not isinstance(encoding, Embedded):
        norm = "" if layer.norm is None else f"; the layer's {_named(layer.norm)} is applied here"
        lines["input"] = f"hidden states, as the layer gets them{norm}"
    if not _scales_alike(layer, encoding):
        lines["scale"] = f"{layer.scale:.15g}, the layer's own"
    if layer.query_norm is not None:
        over = "all heads together" if layer.query_norm.together else "each head by itself"
        lines["q/k norm"] = f"{_named(layer.query_norm.norm)} over {over}, after the projections, before any rotation"
    if layer.clip is not None:
        lines["clip"] = f"projections are clipped to [-{layer.clip:g}, {layer.clip:g}]"
    if layer.key_heads != layer.heads:
        group = layer.heads // layer.key_heads
        lines["key heads"] = f"{layer.key_heads}: key head j serves the query heads {group}j to {group}j + {group - 1}"
    if layer.sinks is not None:
        lines["sinks"] = "each head's sink takes part in the softmax without being a key, so rows sum to less than 1"
    if layer.window is not None:
        lines["window"] = f"a query sees keys at most {layer.window.before} before it and {layer.window.after} after it"
    if encoding.card.id == layer.positional.id:
        named = {name: value for name, value in layer.positional.scalars.items() if name in encoding.card.conventions}
        lines |= {name: f"{value}, the checkpoint's; a request may ask otherwise" for name, value in named.items()}
    elif "layout" in encoding.card.conventions and "layout" in layer.positional.scalars:
        lines["layout"] = f"{layer.positional.scalars['layout']}, as in the checkpoint's own encoding"
    return lines | {f"note {number}": note for number, note in enumerate(layer.notes, 1)}


def _named(norm: Norm) -> str:
    return "layer norm" if norm.kind == "layer" else "RMS norm"
