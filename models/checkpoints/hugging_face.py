"""A folder as transformers saves it: `config.json` and safetensors, in one file or in several with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.checkpoints.errors import CheckpointError, some

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class Folder:
    """Reads single tensors, by memory map."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError."""
        self.path = path
        if not (path / CONFIG).is_file():
            raise CheckpointError(f"{path} has no {CONFIG}; it has {some(sorted(one.name for one in path.iterdir()))}")
        self.config: Mapping[str, Any] = _object(path / CONFIG)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @cached_property
    def _home(self) -> dict[str, Path]:
        """Each tensor's file."""
        if (self.path / INDEX).is_file():
            listed = _object(self.path / INDEX).get("weight_map")
            if not isinstance(listed, dict):
                raise CheckpointError(f"{self.path / INDEX} has no weight_map")
            files = {name: str(file) for name, file in listed.items()}
            outside = sorted(file for file in set(files.values()) if Path(file).name != file)
            if outside:
                raise CheckpointError(f"{INDEX} of {self.name} names files elsewhere: {some(outside)}")
            missing = sorted(file for file in set(files.values()) if not (self.path / file).is_file())
            if missing:
                raise CheckpointError(f"{self.name} lacks {some(missing)}, which {INDEX} names")
            return {name: self.path / file for name, file in files.items()}
        files_here = sorted(self.path.glob("*.safetensors"))
        if (self.path / SINGLE).is_file():
            files_here = [self.path / SINGLE]
        if len(files_here) != 1:
            pickled = sorted(one.name for pattern in PICKLES for one in self.path.glob(pattern))
            because = (
                f"has {some(file.name for file in files_here)} and no {INDEX} to say which is which"
                if files_here
                else f"has no safetensors file, but {some(pickled)}, which may be pickles and are never read: save the "
                "model again with transformers' save_pretrained"
                if pickled
                else f"has no safetensors file; it has {some(sorted(one.name for one in self.path.iterdir()))}"
            )
            raise CheckpointError(f"{self.name} {because}")
        with _opened(files_here[0]) as file:
            return dict.fromkeys(file.keys(), files_here[0])

    @property
    def names(self) -> list[str]:
        return list(self._home)

    def find(self, name: str) -> list[str]:
        if name in self._home:
            return [name]
        return [known for known in self._home if known.endswith(f".{name}")]

    def tensor(self, name: str) -> Tensor:
        with _opened(self._home[name]) as file:
            return in_float32(file.get_tensor(name), name)

    def stored(self, name: str) -> Tensor:
        with _opened(self._home[name]) as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor if tensor.dtype in (torch.float16, torch.bfloat16) else in_float32(tensor, name)


def in_float32(tensor: Tensor, name: str) -> Tensor:
    """Raises CheckpointError for numbers that are quantised, whose meaning the file's own tools know."""
    if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        raise CheckpointError(
            f"{name} has numbers of type {str(tensor.dtype).removeprefix('torch.')}; float32, float16, bfloat16 and "
            "float64 are read (of quantised models, GGUF files)"
        )
    return tensor.float().contiguous()


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def _object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} is no JSON object")
    return document
