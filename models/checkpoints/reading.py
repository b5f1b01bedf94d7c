"""A layer from whatever a path points at: a folder, a GGUF file, a file in the plain form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.checkpoints.architectures import read_layer
from models.checkpoints.errors import CheckpointError
from models.checkpoints.gguf_file import GgufFile
from models.checkpoints.hugging_face import CONFIG, Folder
from models.checkpoints.layer import Layer
from models.checkpoints.plain import read_plain
from models.checkpoints.source import Source


@dataclass(frozen=True)
class Read:
    """A layer, and where it is from. `source` is None for the plain form, which is of no model."""

    layer: Layer
    index: int | None
    origin: Mapping[str, Any]
    source: Source | None = None
    config: Mapping[str, Any] | None = None


def read(path: Path, index: int | None) -> Read:
    """Raises CheckpointError."""
    if not path.exists():
        raise CheckpointError(f"there is no {path}")
    if path.is_file() and path.suffix == ".safetensors" and not (path.parent / CONFIG).is_file():
        if index is not None:
            raise CheckpointError(f"{path.name} is in the plain form, which holds one layer; leave --layer out")
        return Read(read_plain(path), None, {"file": path.name, "form": "plain"})
    source = open_source(path)
    if index is None:
        raise CheckpointError(f"say which layer of {source.name} with --layer N, the first being 0")
    layer, config = read_layer(source, index)
    origin = {"file": source.name, "model_type": config.model_type, "layer": index}
    return Read(layer, index, origin, source, config.values)


def open_source(path: Path) -> Source:
    """A folder or a GGUF file. Raises CheckpointError."""
    if path.is_dir():
        return Folder(path)
    if path.suffix == ".gguf":
        return GgufFile(path)
    if path.suffix == ".safetensors" or path.name == CONFIG:
        return Folder(path.parent)
    raise CheckpointError(
        f"{path} is neither a folder with {CONFIG} and safetensors, nor a .gguf file, nor a .safetensors file in the "
        "plain form"
    )
