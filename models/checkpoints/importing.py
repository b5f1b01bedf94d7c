"""Import a layer: read, export, compare with the reference library."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from models.checkpoints.comparing import Compared, comparison
from models.checkpoints.embedded import Embedded
from models.checkpoints.errors import CheckpointError
from models.checkpoints.family import imported
from models.checkpoints.layer import Layer
from models.checkpoints.reading import Read, read
from models.checkpoints.text import WrittenText, remove_text, write_checkpoint_text
from models.encodings.encoding import Encoding
from models.export import Exported, export_encoding

NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
RESERVED = ("identity", "tiny", "analysis")


@dataclass(frozen=True)
class Import:
    """A layer that was imported, and what was measured."""

    layer: Layer
    origin: Mapping[str, Any]
    exported: Sequence[Exported]
    compared: Compared
    text: WrittenText | None
    """None of the plain form and of all layers but the first, whose input is not made of tokens alone."""


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
    *,
    text: bool = True,
    tokenizer: Path | None = None,
) -> Import:
    """Writes `folder/name/<encoding>.onnx` and `.positions.onnx` for the layer's own encoding and for `others`, and of
    a first layer `folder/name/text/` unless `text` is false, with the checkpoint's tokenizer or with that in the file
    `tokenizer`. What belongs to another layer that had this name is removed: one model has one layer.

    Raises CheckpointError for what cannot be imported; `models.trace.TraceError` or `models.parity.ParityError` rather
    than write a graph that is wrong.
    """
    check_name(name)
    progress("reading")
    found = read(checkpoint, index)
    if tokenizer is not None and (found.index != 0 or not text):
        raise CheckpointError("a tokenizer is of use to the text of a first layer only (--layer 0, without --no-text)")
    family, encodings = imported(found.layer, name, others, {"checkpoint": dict(found.origin)})
    with comparison(checkpoint, found.index, found.layer.width) as reference:
        exported = []
        for encoding in encodings:
            progress(f"exporting {encoding.card.id}")
            exported.append(export_encoding(family, encoding, folder))
        remove_others(folder / name, found.layer.digest)
        remove_text(folder / name)
        written = None
        if text and found.index == 0:
            progress("writing the text")
            written = write_layer_text(folder / name, found, encodings, tokenizer)
        progress("comparing with the reference library")
        return Import(found.layer, found.origin, exported, reference.of(exported[0]), written)


def write_layer_text(
    home: Path, found: Read, encodings: Sequence[Encoding], tokenizer: Path | None = None
) -> WrittenText:
    """Of the first layer of a model."""
    assert found.source is not None
    assert found.config is not None
    bare = [encoding.card.id for encoding in encodings if isinstance(encoding, Embedded)]
    return write_checkpoint_text(home, found.source, found.config, bare, tokenizer)


def remove_others(folder: Path, digest: str) -> None:
    """The graphs of other weights."""
    for path in folder.glob("*.onnx"):
        properties = onnx.load(path, load_external_data=False).metadata_props
        about: dict[str, Any] = next((json.loads(entry.value) for entry in properties if entry.key == "attention"), {})
        if about.get("weights") != digest:
            path.unlink()
