"""A GGUF file in transformers' words: its configuration, its tensors' names, and its numbers, with what llama.cpp's
conversion did to them undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from models.checkpoints.errors import CheckpointError
from models.checkpoints.gguf_layouts import restored
from models.checkpoints.gguf_reader import Reader

MODEL_TYPES: Mapping[str, str] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
    "phi2": "phi",
    "phi3": "phi3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "olmo2": "olmo2",
    "granite": "granite",
    "starcoder2": "starcoder2",
}
"""GGUF's name of an architecture -> transformers' model type."""

PREFIXES = ("model.", "", "transformer.", "gpt_neox.", "bert.", "encoder.")

# The configuration's names of the metadata's, after the architecture's own prefix.
KEYS: Mapping[str, str] = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "attention.clamp_kqv": "clip_qkv",
}


class GgufFile:
    """Reads single tensors, by memory map, and dequantises them."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError."""
        self.path = path
        try:
            self._reader = Reader(path)
        except IndexError as error:
            raise CheckpointError(f"{path} cannot be read as GGUF: it ends before all that it announces") from error
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{path} cannot be read as GGUF: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.architecture = str(self.field("general.architecture"))
        if self.architecture not in MODEL_TYPES:
            raise CheckpointError(
                f"{path.name} has the architecture {self.architecture!r}, which is not read from GGUF files here; "
                f"known: {', '.join(sorted(MODEL_TYPES))}"
            )

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Made from the metadata. Raises CheckpointError."""
        config: dict[str, Any] = {"model_type": MODEL_TYPES[self.architecture]}
        for key, name in KEYS.items():
            value = self.field(f"{self.architecture}.{key}")
            if value is not None:
                config[name] = value
        config["norm_epsilon"] = config.get("layer_norm_eps")
        if isinstance(config.get("num_key_value_heads"), list):
            raise CheckpointError(
                f"{self.name} has layers with different numbers of key heads, which are not read here"
            )
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        turning = self.field(f"{self.architecture}.rope.dimension_count")
        if turning is not None and turning != head_dim:
            config["partial_rotary_factor"] = turning / head_dim
        if self.architecture == "gemma2":
            # llama.cpp's rule; the file does not say it.
            by_width = config["num_hidden_layers"] == 46
            config["query_pre_attn_scalar"] = (
                config["hidden_size"] // config["num_attention_heads"] if by_width else head_dim
            )
        return config | self._scaling(config)

    def _scaling(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """`rope_scaling` from the metadata, or from tensors with a factor for each frequency."""
        prefix = f"{self.architecture}.rope.scaling"
        kind, factor = self.field(f"{prefix}.type"), self.field(f"{prefix}.factor")
        original = self.field(f"{prefix}.original_context_length")
        settings: dict[str, Any] = {}
        if "rope_freqs.weight" in self._tensors:
            factors = self._numbers("rope_freqs.weight")
            # One list of factors for any length, and nothing else: Llama 3's bands, already worked out.
            settings = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "factor": 1.0}
            settings |= {"attention_factor": 1.0, "original_max_position_embeddings": config["max_position_embeddings"]}
        elif "rope_factors_long.weight" in self._tensors:
            settings = {
                "rope_type": "longrope",
                "short_factor": self._numbers("rope_factors_short.weight"),
                "long_factor": self._numbers("rope_factors_long.weight"),
                "original_max_position_embeddings": original,
            }
        elif kind in ("linear", "yarn"):
            settings = {"rope_type": kind, "factor": factor}
            if kind == "yarn" and original is not None:
                settings["original_max_position_embeddings"] = original
        elif kind not in (None, "none"):
            raise CheckpointError(f"{self.name} has rope scaling of type {kind!r}, which is not read here")
        return {"rope_scaling": settings} if settings else {}

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def find(self, name: str) -> list[str]:
        known = (self._names.get_name(f"{prefix}{name}", try_suffixes=(".weight", ".bias")) for prefix in PREFIXES)
        if name.endswith(".sinks"):
            known = (self._names.get_name(f"{prefix}{name}") for prefix in PREFIXES)
        return next(([one] for one in known if one in self._tensors), [])

    @cached_property
    def _names(self) -> gguf.TensorNameMap:
        kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == self.architecture)
        return gguf.get_tensor_name_map(kind, int(self.config["num_hidden_layers"]))

    def tensor(self, name: str) -> Tensor:
        return restored(self._dequantised(name), name, self.architecture, self.config).contiguous()

    def stored(self, name: str) -> Tensor:
        found = self._tensors[name]
        kind, shape = found.tensor_type, [int(size) for size in found.shape[::-1]]
        if kind not in (gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16):
            return self.tensor(name)
        half = torch.float16 if kind is gguf.GGMLQuantizationType.F16 else torch.bfloat16
        numbers = torch.from_numpy(np.array(found.data)).view(half).reshape(shape)
        return restored(numbers, name, self.architecture, self.config).contiguous()

    def _dequantised(self, name: str) -> Tensor:
        found = self._tensors[name]
        try:
            numbers = gguf.dequantize(found.data, found.tensor_type)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{name} of {self.name} is {found.tensor_type.name}, which cannot be read: {error}"
            ) from error
        # The shape is that of the file, last axis first.
        return torch.from_numpy(np.array(numbers, dtype=np.float32)).reshape([int(size) for size in found.shape[::-1]])

    def _numbers(self, name: str) -> list[float]:
        return [float(number) for number in self._dequantised(name).flatten()]

    def strings(self, key: str) -> list[str]:
        """A list of strings of the metadata; none where there is no such list."""
        return self._reader.strings(key) if key in self._reader.fields else []

    def field(self, key: str) -> Any:
        """What the metadata say, but for long lists of strings; None where they do not."""
        field = self._reader.fields.get(key)
        return None if field is None else field.contents()
