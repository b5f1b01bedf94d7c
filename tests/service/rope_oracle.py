"""What transformers makes of a configuration: a fresh rotary embedding for each question, in float64."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from jaxtyping import Float64
from transformers import CONFIG_MAPPING, LlamaConfig, logging, modeling_rope_utils
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

logging.set_verbosity_error()  # it warns of configurations that are read all the same

Frequencies = tuple[Float64[np.ndarray, " pairs"], float]


class Double:
    """torch, where float is float64: transformers' own code, without its rounding."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def _double(*modules: ModuleType) -> Iterator[None]:
    patches = [mock.patch.object(module, "torch", Double()) for module in modules]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def checkpoint(document: Mapping[str, Any], length: int | None = None) -> dict[str | None, Frequencies]:
    """By layer type, of the model's own configuration class and rotary embedding."""
    document = deepcopy(dict(document))
    config = CONFIG_MAPPING[document["model_type"]].from_dict(document)
    config = getattr(config, "text_config", config)
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    classes: list[Any] = [
        one
        for name, one in inspect.getmembers(module, inspect.isclass)
        if name.endswith("RotaryEmbedding")
        and one.__module__ == module.__name__
        and "Vision" not in name
        and "Audio" not in name
    ]
    (rotary,) = classes
    with _double(modeling_rope_utils, module):
        return _read(rotary(config), length)


def llama(length: int | None = None, **fields: Any) -> Frequencies:
    """Of LlamaRotaryEmbedding over any configuration."""
    module = inspect.getmodule(LlamaRotaryEmbedding)
    assert module is not None
    with _double(modeling_rope_utils, module):
        return _read(LlamaRotaryEmbedding(LlamaConfig(**deepcopy(fields))), length)[None]


def _read(rotary: Any, length: int | None) -> dict[str | None, Frequencies]:
    layer_types = [name.removesuffix("_inv_freq") for name, _ in rotary.named_buffers() if name.endswith("_inv_freq")]
    layer_types = [name for name in layer_types if not name.endswith("original")]
    if length is not None:
        rotary(torch.zeros(1), torch.tensor([[length - 1]]))
    if not layer_types:
        return {None: (rotary.inv_freq.double().numpy(), float(rotary.attention_scaling))}
    return {
        name: (
            getattr(rotary, f"{name}_inv_freq").double().numpy(),
            float(getattr(rotary, f"{name}_attention_scaling")),
        )
        for name in layer_types
    }
