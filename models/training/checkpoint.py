"""A training on disk: safetensors, so nothing in it can run. Two kinds of file: all that a run needs to go on, and the
weights alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save as serialised
from torch import Tensor

from models.training.block import Block
from models.training.recipe import Recipe
from models.training.trainer import Training

ABOUT = "training"
"""The metadata entry: JSON."""
MODEL, MEMORY = "model.", "optimiser."


class CheckpointMismatch(RuntimeError):
    """A checkpoint of another recipe, other encodings or another text than the run that would go on from it."""


def save(training: Training, corpus: str, path: Path) -> None:
    """Everything that the next step depends on. The file is replaced whole, so a run killed here loses nothing."""
    names = {id(parameter): name for name, parameter in training.block.named_parameters()}
    tensors = {MODEL + name: parameter.detach() for name, parameter in training.block.named_parameters()}
    for parameter, state in training.optimiser.state.items():
        tensors |= {f"{MEMORY}{key}.{names[id(parameter)]}": value for key, value in state.items()}
    write(path, tensors, _about(training, corpus))


def resume(path: Path, encodings: tuple[str, ...], recipe: Recipe, corpus: str) -> Training:
    """The training as it was saved. Raises CheckpointMismatch where going on would be another training."""
    training = Training.start(encodings, recipe)
    tensors, about = read(path)
    for what, ours in (("recipe", recipe.as_dict()), ("encodings", list(encodings)), ("corpus", corpus)):
        if about[what] != ours:
            raise CheckpointMismatch(f"{path} was written with {what} {about[what]!r}; this run has {ours!r}")
    parameters = dict(training.block.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors.pop(MODEL + name))
    for name, value in tensors.items():
        key, _, parameter_name = name.removeprefix(MEMORY).partition(".")
        training.optimiser.state[parameters[parameter_name]][key] = value
    training.step, training.wall, training.cpu = about["step"], about["wall"], about["cpu"]
    return training


def save_weights(training: Training, corpus: str, path: Path) -> None:
    """The model alone, in float32."""
    tensors = {name: parameter.detach() for name, parameter in training.block.named_parameters()}
    write(path, tensors, _about(training, corpus))


def load_weights(path: Path) -> tuple[Block, dict[str, Any]]:
    """The trained model, and what is recorded of its training."""
    tensors, about = read(path)
    block = Block(tuple(about["encodings"]))
    block.load_state_dict(tensors)
    return block.requires_grad_(False).eval(), about


def digest(tensors: Iterable[Tensor]) -> str:
    """Of the numbers, little-endian float32 in C order."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().float().contiguous().numpy().astype("<f4").tobytes())
    return f"sha256:{found.hexdigest()}"


def write(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    partial.write_bytes(serialised(contiguous, {ABOUT: json.dumps(about, sort_keys=True)}))
    os.replace(partial, path)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        about: dict[str, Any] = json.loads(file.metadata()[ABOUT])
        return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118, it is no mapping


def _about(training: Training, corpus: str) -> dict[str, Any]:
    return {
        "recipe": training.recipe.as_dict(),
        "encodings": list(training.block.encodings),
        "corpus": corpus,
        "step": training.step,
        "wall": training.wall,
        "cpu": training.cpu,
        "torch": torch.__version__,
    }
