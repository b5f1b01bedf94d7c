"""The reference library's own attention, with one layer of the checkpoint: what an import is compared with.

A model of that one layer is made from the checkpoint's configuration, its layer loaded by the names that transformers
has for it (so none of this package's reading is in it), and the hidden states put in where the layer begins.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from models.checkpoints.architectures import configuration
from models.checkpoints.errors import CheckpointError, some
from models.checkpoints.llama import TRAITS
from models.checkpoints.reading import open_source
from models.checkpoints.source import Source

VOCABULARY = 64
QUESTION, ANSWER = "hidden.safetensors", "weights.safetensors"


@dataclass(frozen=True)
class Skeleton:
    """Where a model's layers are, and what sizes in its configuration attention does not need.

    `layers` is the module list's name within the model, as tensors have it; `parts` are the modules of a layer that
    attention is made of; `shared` are tensors outside the layers that it needs where the model has them. `depth` is the
    configuration's entry for the number of layers, `wide` its entries for widths that may shrink. `first`: whether the
    first layer is unlike the others.
    """

    layers: str
    parts: tuple[str, ...]
    depth: str = "num_hidden_layers"
    wide: tuple[str, ...] = ("intermediate_size",)
    shared: tuple[str, ...] = ()
    first: bool = False


BERT = Skeleton("encoder.layer", ("attention.self",))
LLAMA = Skeleton("layers", ("self_attn", "input_layernorm"))
T5 = Skeleton(
    "encoder.block",
    ("layer.0.SelfAttention", "layer.0.layer_norm"),
    depth="num_layers",
    wide=("d_ff",),
    shared=("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",),
    first=True,
)
RELATIVE = ("encoder.rel_embeddings.weight", "encoder.LayerNorm.weight", "encoder.LayerNorm.bias")
MPNET = ("encoder.relative_attention_bias.weight",)

SKELETONS: Mapping[str, Skeleton] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra", "roformer"), BERT),
    "distilbert": Skeleton("transformer.layer", ("attention",), depth="n_layers", wide=("hidden_dim",)),
    "mpnet": replace(BERT, parts=("attention.attn",), shared=MPNET),
    **dict.fromkeys(("deberta", "deberta-v2"), replace(BERT, shared=RELATIVE)),
    **dict.fromkeys(TRAITS, LLAMA),
    "nomic_bert": replace(LLAMA, parts=tuple(f"self_attn.{part}_proj" for part in "qkv")),
    "modernbert": replace(LLAMA, parts=("attn", "attn_norm"), first=True),
    "gpt2": Skeleton("h", ("attn", "ln_1"), depth="n_layer", wide=("n_inner",)),
    "gptj": Skeleton("h", ("attn", "ln_1"), depth="n_layer", wide=("n_inner",)),
    "gpt_neox": replace(LLAMA, parts=("attention", "input_layernorm")),
    "bloom": Skeleton("h", ("self_attention", "input_layernorm"), depth="n_layer"),
    "falcon": Skeleton("h", ("self_attention", "input_layernorm", "ln_attn"), wide=("ffn_hidden_size",)),
    "mpt": Skeleton("blocks", ("attn", "norm_1"), depth="n_layers"),
    **dict.fromkeys(("t5", "mt5", "umt5"), T5),
    "xlnet": Skeleton("layer", ("rel_attn",), depth="n_layer", wide=("d_inner",)),
}
PER_LAYER = ("layer_types", "no_rope_layers")
"""Entries of a configuration that have an item for each layer."""


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
        place = min(index, 1) if skeleton.first else 0
        model = _model(skeleton, config, index, place)
        _load(model, skeleton, source, index, place)
        return _attention(model, skeleton, hidden, place)


def _model(skeleton: Skeleton, values: Mapping[str, Any], index: int, place: int) -> nn.Module:
    """A model whose last layer, at `place`, is like that at `index`."""
    from transformers import AutoConfig, AutoModel

    left_out = ("dtype", "torch_dtype", "quantization_config")
    config = AutoConfig.for_model(**{key: value for key, value in values.items() if key not in left_out})
    for name in PER_LAYER:
        listed = getattr(config, name, None)
        if isinstance(listed, list) and len(listed) > index:
            setattr(config, name, [listed[index]] * (place + 1))
    setattr(config, skeleton.depth, place + 1)
    config.vocab_size = VOCABULARY
    for name in vars(config):
        if name.endswith("_token_id") and getattr(config, name) is not None:
            setattr(config, name, 0)
    for name in skeleton.wide:
        if hasattr(config, name):
            setattr(config, name, 8)
    model: nn.Module = AutoModel.from_config(config, attn_implementation="eager").float().eval()
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        attention: Any = _layers(model, skeleton)[place].get_submodule("attn")
        attention.scaling /= index + 1
    return model


def _layers(model: nn.Module, skeleton: Skeleton) -> nn.ModuleList:
    layers = model.get_submodule(skeleton.layers)
    assert isinstance(layers, nn.ModuleList)
    return layers


def _load(model: nn.Module, skeleton: Skeleton, source: Source, index: int, place: int) -> None:
    """The layer's own tensors, by transformers' names; each that attention has must be there."""
    own = dict(_layers(model, skeleton)[place].named_parameters())
    wanted = {own[name]: f"{skeleton.layers}.{index}.{name}" for name in own if name.startswith(skeleton.parts)}
    everything = dict(model.named_parameters())
    wanted |= {everything[name]: name for name in skeleton.shared if name in everything}
    found = {parameter: _tensor(source, full) for parameter, full in wanted.items()}
    missing = [wanted[parameter] for parameter, tensor in found.items() if tensor is None]
    if missing:
        raise CheckpointError(f"transformers' module has {some(missing)}, which {source.name} lacks")
    with torch.no_grad():
        for parameter, tensor in found.items():
            assert tensor is not None
            parameter.copy_(tensor)


def _tensor(source: Source, name: str) -> Tensor | None:
    """By transformers' name, or by NomicBERT's published one, which transformers translates when it loads."""
    if len(places := source.find(name)) == 1:
        return source.tensor(places[0])
    part = re.fullmatch(r"(.*)self_attn\.([qkv])_proj\.weight", name)
    if part is None or len(places := source.find(f"{part[1]}attn.Wqkv.weight")) != 1:
        return None
    return source.tensor(places[0]).chunk(3)["qkv".index(part[2])]


def _attention(model: Any, skeleton: Skeleton, hidden: Tensor, place: int) -> Tensor:
    def put_in(_: nn.Module, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        states = hidden.transpose(0, 1) if model.config.model_type == "xlnet" else hidden
        return ((states, *arguments[1:]), named) if arguments else ((), {**named, "hidden_states": states})

    handle = _layers(model, skeleton)[place].register_forward_pre_hook(put_in, with_kwargs=True)
    ids = torch.ones(hidden.shape[:2], dtype=torch.long)
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    try:
        with torch.no_grad(), bias_once(model):
            weights: Tensor = encoder(input_ids=ids, output_attentions=True).attentions[place]
    finally:
        handle.remove()
    return weights


@contextmanager
def bias_once(model: Any) -> Iterator[None]:
    """Falcon's eager attention adds ALiBi, and so does the mask that it is given; only the latter reaches its other
    kinds of attention, so once is how the model is used.
    """

    def plain(_: nn.Module, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = named["attention_mask"]
        least = torch.finfo(mask.dtype).min
        return arguments, {**named, "attention_mask": torch.where(mask == least, least, 0.0)}

    handles = []
    if model.config.model_type == "falcon" and model.config.alibi:
        for layer in model.get_submodule("h").children():
            attention = layer.get_submodule("self_attention")
            handles.append(attention.register_forward_pre_hook(plain, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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


def main(checkpoint: str, index: str, folder: str) -> None:
    """The answer to the question in the folder, beside it; none where it is not known how to ask."""
    source = open_source(Path(checkpoint))
    hidden = load_file(Path(folder) / QUESTION)["hidden"]
    weights = reference(source, configuration(source).values, int(index), hidden)
    if weights is not None:
        save_file({"weights": weights.contiguous()}, Path(folder) / ANSWER)


if __name__ == "__main__":
    main(*sys.argv[1:])
