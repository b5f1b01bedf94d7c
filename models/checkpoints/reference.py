"""The reference library's own attention, with one layer of the checkpoint: what an import is compared with.

A model of that one layer is made from the checkpoint's configuration, its layer loaded by the names that transformers
has for it (so none of this package's reading is in it), and the hidden states put in where the layer begins.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from models.checkpoints.errors import CheckpointError, some
from models.checkpoints.source import Source

VOCABULARY = 64


@dataclass(frozen=True)
class Skeleton:
    """Where a model's layers are, and which of its configuration's entries size what attention does not need.

    `layers` is the module list's name within the model, as tensors have it; `parts` are the modules of a layer that
    attention is made of; `shared` are tensors outside the layers that it needs. `depth` and `wide` are the
    configuration's entries for the number of layers and for widths that may shrink.
    """

    layers: str
    parts: tuple[str, ...]
    depth: str = "num_hidden_layers"
    wide: tuple[str, ...] = ("intermediate_size",)
    shared: tuple[str, ...] = ()
    per_layer: tuple[str, ...] = ("layer_types", "no_rope_layers")
    settings: Mapping[str, Any] = field(default_factory=dict)
    encoder_only: bool = False


SKELETONS: dict[str, Skeleton] = {
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "camembert", "electra"),
        Skeleton("encoder.layer", ("attention.self",)),
    ),
    "distilbert": Skeleton("transformer.layer", ("attention.",), depth="n_layers", wide=("hidden_dim",)),
    **dict.fromkeys(
        (
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "smollm3",
            "phi",
            "phi3",
            "gemma",
            "gemma2",
            "gemma3_text",
            "olmo2",
            "granite",
            "starcoder2",
        ),
        Skeleton("layers", ("self_attn", "input_layernorm")),
    ),
}


def available() -> bool:
    """Whether the reference library is installed."""
    return importlib.util.find_spec("transformers") is not None


def reference(
    source: Source, config: Mapping[str, Any], index: int, hidden: Float[Tensor, "batch tokens width"]
) -> Float[Tensor, "batch heads tokens tokens"] | None:
    """transformers' attention weights of the layer for these hidden states; None where it is not known how to ask it.

    Raises CheckpointError where its module needs tensors that the checkpoint lacks.
    """
    skeleton = SKELETONS.get(str(config.get("model_type")))
    if skeleton is None:
        return None
    with _quiet():
        model = _model(skeleton, config, index)
        _load(model, skeleton, source, index)
        return _attention(model, skeleton, hidden)


def _model(skeleton: Skeleton, values: Mapping[str, Any], index: int) -> nn.Module:
    from transformers import AutoConfig, AutoModel

    values = {key: value for key, value in values.items() if key not in ("dtype", "torch_dtype", "quantization_config")}
    for name in skeleton.per_layer:
        if isinstance(values.get(name), list):
            values[name] = [values[name][index]]
    config = AutoConfig.for_model(**{**values, **skeleton.settings})
    for name in skeleton.per_layer:  # those that the configuration has worked out itself
        listed = getattr(config, name, None)
        if isinstance(listed, list) and len(listed) > 1:
            setattr(config, name, [listed[index]])
    setattr(config, skeleton.depth, 1)
    config.vocab_size = VOCABULARY
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if getattr(config, name, None) is not None:
            setattr(config, name, 0)
    for name in skeleton.wide:
        if getattr(config, name, None) is not None:
            setattr(config, name, 8)
    config._attn_implementation = "eager"
    model: nn.Module = AutoModel.from_config(config, attn_implementation="eager").float().eval()
    return model


def _layers(model: nn.Module, skeleton: Skeleton) -> nn.ModuleList:
    layers = model.get_submodule(skeleton.layers)
    assert isinstance(layers, nn.ModuleList)
    return layers


def _load(model: nn.Module, skeleton: Skeleton, source: Source, index: int) -> None:
    """The layer's own tensors, by transformers' names; each that attention has must be there."""
    own = dict(_layers(model, skeleton)[0].named_parameters())
    wanted = {name: f"{skeleton.layers}.{index}.{name}" for name in own if name.startswith(skeleton.parts)}
    missing = [full for full in wanted.values() if len(source.find(full)) != 1]
    if missing:
        raise CheckpointError(f"transformers' module has {some(missing)}, which {source.name} lacks")
    with torch.no_grad():
        for name, full in wanted.items():
            own[name].copy_(source.tensor(source.find(full)[0]))
        everything = dict(model.named_parameters())
        for name in skeleton.shared:
            everything[name].copy_(source.tensor(source.find(name)[0]))


def _attention(model: nn.Module, skeleton: Skeleton, hidden: Tensor) -> Tensor:
    def put_in(
        _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if arguments:
            return (hidden, *arguments[1:]), named
        return arguments, {**named, "hidden_states": hidden}

    layer = _layers(model, skeleton)[0]
    handle = layer.register_forward_pre_hook(put_in, with_kwargs=True)
    try:
        with torch.no_grad():
            ids = torch.ones(hidden.shape[:2], dtype=torch.long)
            answer = model(input_ids=ids, output_attentions=True)
    finally:
        handle.remove()
    weights: Tensor = answer.attentions[0]
    return weights


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers warns of much that makes no difference here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
