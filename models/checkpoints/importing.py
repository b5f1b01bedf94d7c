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
from models.checkpoints.errors import CheckpointError
from models.checkpoints.family import imported
from models.checkpoints.layer import Layer
from models.checkpoints.reading import read
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
    """Writes `folder/name/<encoding>.onnx` and `.positions.onnx` for the layer's own encoding and for `others`. Graphs
    of another layer that had this name are removed: one model has one layer.

    Raises CheckpointError for what cannot be imported; `models.trace.TraceError` or `models.parity.ParityError` rather
    than write a graph that is wrong.
    """
    check_name(name)
    progress("reading")
    found = read(checkpoint, index)
    family, encodings = imported(found.layer, name, others, {"checkpoint": dict(found.origin)})
    with comparison(checkpoint, found.index, found.layer.width) as reference:
        exported = []
        for encoding in encodings:
            progress(f"exporting {encoding.card.id}")
            exported.append(export_encoding(family, encoding, folder))
        remove_others(folder / name, found.layer.digest)
        progress("comparing with the reference library")
        return Import(found.layer, found.origin, exported, reference.of(exported[0]))


def remove_others(folder: Path, digest: str) -> None:
    """The graphs of other weights."""
    for path in folder.glob("*.onnx"):
        properties = onnx.load(path, load_external_data=False).metadata_props
        about: dict[str, Any] = next((json.loads(entry.value) for entry in properties if entry.key == "attention"), {})
        if about.get("weights") != digest:
            path.unlink()
