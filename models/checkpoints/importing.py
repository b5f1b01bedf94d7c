"""Import a layer: read, export, compare with the reference library."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from models.checkpoints import reference
from models.checkpoints.errors import CheckpointError
from models.checkpoints.family import imported
from models.checkpoints.layer import Layer
from models.checkpoints.reading import Read, read
from models.checkpoints.served import Exported as Served
from models.export import Exported, export_encoding

NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
RESERVED = ("identity", "tiny", "analysis")
TOKENS = 48


@dataclass(frozen=True)
class Compared:
    """The largest difference of attention weights from the reference library's, over random hidden states; None where
    that is not there to ask, for `reason`.
    """

    difference: float | None
    reason: str = ""


@dataclass(frozen=True)
class Import:
    """A layer that was imported, and what was measured."""

    layer: Layer
    read: Read
    exported: Sequence[Exported]
    compared: Compared


def check_name(name: str) -> None:
    """Raises CheckpointError for a name that a model cannot be served under."""
    if not NAME.fullmatch(name):
        raise CheckpointError(
            f"{name!r} is no name for a model: use small letters, digits, - and _, beginning with a letter or digit"
        )
    if name in RESERVED:
        raise CheckpointError(f"{name!r} is the name of another model here; choose another")


def import_layer(
    checkpoint: Path,
    index: int | None,
    name: str,
    others: Sequence[str],
    folder: Path,
    progress: Callable[[str], None] = lambda _: None,
) -> Import:
    """Writes `folder/name/<encoding>.onnx` and `.positions.onnx` for the layer's own encoding and for `others`.

    Raises CheckpointError for what cannot be imported; `models.trace.TraceError` or `models.parity.ParityError` rather
    than write a graph that is wrong.
    """
    check_name(name)
    progress("reading")
    found = read(checkpoint, index)
    family, encodings = imported(found.layer, name, others, {"checkpoint": dict(found.origin)})
    exported = []
    for encoding in encodings:
        progress(f"exporting {encoding.card.id}")
        exported.append(export_encoding(family, encoding, folder))
    progress("comparing")
    return Import(found.layer, found, exported, compare(found, exported[0]))


def compare(found: Read, exported: Exported) -> Compared:
    """The files, as they were written, beside the reference library's module."""
    if found.source is None or found.config is None or found.index is None:
        return Compared(None, "the plain form is of no library's model")
    if not reference.available():
        return Compared(None, "transformers is not installed")
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn((1, TOKENS, found.layer.width), generator=generator)
    theirs = reference.reference(found.source, found.config, found.index, hidden)
    if theirs is None:
        return Compared(None, f"how to ask transformers for a {found.config.get('model_type')} is not known here")
    ours = Served(exported.scores_path, exported.positions_path).weights(hidden)
    return Compared(float((ours - theirs).abs().max()))
