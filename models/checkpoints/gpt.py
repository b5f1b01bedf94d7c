"""Decoders with a layer norm before the projections: GPT-2, GPT-NeoX, GPT-J, BLOOM, MPT, Falcon."""

from __future__ import annotations

import math

import torch

from models.checkpoints.errors import CheckpointError
from models.checkpoints.fused import by_group, by_head, stacked
from models.checkpoints.layer import Embedding, Layer, Positional, Projection
from models.checkpoints.rotary import rotary
from models.checkpoints.slopes import alibi
from models.checkpoints.source import Config, Tensors
from models.encodings.alibi import ALiBi, slopes
from models.encodings.encoding import Encoding
from models.encodings.none import NoEncoding

PUBLISHED = 8.0  # alibi_bias_max of the published slopes


def gpt2(tensors: Tensors, config: Config, index: int) -> Layer:
    """Positions are learned and added to the embeddings; the first layer's norm is of their sum."""
    width, heads = config.whole("n_embd", "hidden_size"), config.whole("n_head", "num_attention_heads")
    name = f"h.{index}.attn.c_attn"
    # Its modules multiply from the right: [width, 3 width].
    whole = Projection(tensors.shaped((width, 3 * width), f"{name}.weight").T, tensors.get(f"{name}.bias"))
    scale = (width // heads) ** -0.5 if config.flag("scale_attn_weights", default=True) else 1.0
    if config.flag("scale_attn_by_inverse_layer_idx"):
        scale /= index + 1
    norm = tensors.layer_norm(f"h.{index}.ln_1", config.number("layer_norm_epsilon", default=1e-5))
    return Layer.ungrouped(
        width,
        heads,
        stacked(whole, heads, heads, width // heads),
        Positional(NoEncoding()),
        scale=scale,
        norm=norm,
        causal=True,
        embedding=Embedding(tensors.get("wpe.weight"), norm) if index == 0 else None,
    )


def gpt_neox(tensors: Tensors, config: Config, index: int) -> Layer:
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    layer = f"layers.{index}"
    whole = tensors.linear(f"{layer}.attention.query_key_value", 3 * width, width)
    return Layer.ungrouped(
        width,
        heads,
        by_head(whole, heads, width // heads),
        rotary(config, width // heads).positional,
        norm=tensors.layer_norm(f"{layer}.input_layernorm", config.number("layer_norm_eps", default=1e-5)),
        causal=True,
    )


def gptj(tensors: Tensors, config: Config, index: int) -> Layer:
    width, heads = config.whole("n_embd", "hidden_size"), config.whole("n_head", "num_attention_heads")
    if config.value("rotary_dim") is None:
        raise CheckpointError(
            f"the configuration of {config.name} has no rotary_dim, so how far its heads turn is open"
        )
    layer = f"h.{index}"
    return Layer.ungrouped(
        width,
        heads,
        tensors.three(f"{layer}.attn", ("q_proj", "k_proj", "v_proj"), width, width),
        rotary(config, width // heads).positional,
        norm=tensors.layer_norm(f"{layer}.ln_1", config.number("layer_norm_epsilon", default=1e-5)),
        causal=True,
    )


def bloom(tensors: Tensors, config: Config, index: int) -> Layer:
    width = config.whole("hidden_size", "n_embed", "n_embd")
    heads = config.whole("n_head", "num_attention_heads")
    layer = f"h.{index}"
    whole = tensors.linear(f"{layer}.self_attention.query_key_value", 3 * width, width)
    return Layer.ungrouped(
        width,
        heads,
        by_head(whole, heads, width // heads),
        Positional(ALiBi()),
        norm=tensors.layer_norm(f"{layer}.input_layernorm", config.number("layer_norm_epsilon", default=1e-5)),
        causal=True,
    )


def mpt(tensors: Tensors, config: Config, index: int) -> Layer:
    width, heads = config.whole("d_model"), config.whole("n_heads")
    inner = config.value("attn_config")
    attention = Config(inner if isinstance(inner, dict) else {}, f"{config.name} (attn_config)")
    _refuse_unserved(attention)
    largest = attention.number("alibi_bias_max", default=PUBLISHED)
    layer = f"blocks.{index}"
    whole = tensors.linear(f"{layer}.attn.Wqkv", 3 * width, width)
    return Layer.ungrouped(
        width,
        heads,
        stacked(whole, heads, heads, width // heads),
        Positional(mpt_alibi(heads, largest)),
        scale=attention.number("softmax_scale", default=(width // heads) ** -0.5),
        norm=tensors.layer_norm(f"{layer}.norm_1", config.number("layer_norm_epsilon", default=1e-5)),
        clip=attention.number("clip_qkv") if attention.value("clip_qkv") else None,
        causal=True,
        notes=() if largest == PUBLISHED else (f"alibi_bias_max is {largest:g}; transformers takes 8 all the same",),
    )


def _refuse_unserved(attention: Config) -> None:
    for name, wanted, default in (("alibi", True, True), ("qk_ln", False, False), ("prefix_lm", False, False)):
        if attention.flag(name, default=default) is not wanted:
            raise CheckpointError(
                f"{name} is {str(not wanted).lower()} in the configuration of {attention.name}; only layers with "
                f"{name} {str(wanted).lower()} are read here, as transformers has them"
            )


def mpt_alibi(heads: int, largest: float) -> Encoding:
    """Slopes 2^(-largest i/P), P the power of two from the number of heads on; where that is larger, every second
    one first.
    """
    power = 2 ** math.ceil(math.log2(heads))
    given = 2.0 ** (-largest * torch.arange(1, power + 1, dtype=torch.float64) / power)
    if power != heads:
        given = torch.cat([given[1::2], given[::2]])[:heads]
    return alibi(given.float(), f"2^(-{largest:g} i/{power}), as alibi_bias_max says")


def falcon(tensors: Tensors, config: Config, index: int) -> Layer:
    width = config.whole("hidden_size", "n_embed")
    heads = config.whole("num_attention_heads", "n_head")
    head_dim = width // heads
    layer = f"h.{index}"
    new = config.flag("new_decoder_architecture")
    if new:
        key_heads = config.whole("num_kv_heads", "n_head_kv", default=heads)
    else:
        key_heads = 1 if config.flag("multi_query", default=True) else heads
    rows = (heads + 2 * key_heads) * head_dim
    whole = tensors.linear(f"{layer}.self_attention.query_key_value", rows, width)
    query, key, value = by_group(whole, key_heads, heads // key_heads, head_dim)
    two_norms = new and config.whole("num_ln_in_parallel_attn", default=2) == 2
    norm = f"{layer}.{'ln_attn' if two_norms else 'input_layernorm'}"
    positional, notes = _falcon_positions(config, heads, head_dim)
    return Layer(
        width=width,
        heads=heads,
        key_heads=key_heads,
        head_dim=head_dim,
        query=query,
        key=key,
        value=value,
        positional=positional,
        scale=head_dim**-0.5,
        norm=tensors.layer_norm(norm, config.number("layer_norm_epsilon", default=1e-5)),
        causal=True,
        notes=notes,
    )


def _falcon_positions(config: Config, heads: int, head_dim: int) -> tuple[Positional, tuple[str, ...]]:
    if not config.flag("alibi"):
        return rotary(config, head_dim).positional, ()
    given = slopes(heads).bfloat16().double() * head_dim**-0.5
    why = "the published ones in bfloat16, over sqrt(head_dim): Falcon adds the bias before it scales"
    notes = (
        "the bias is added once, as where transformers uses sdpa; its eager attention adds it twice",
        "transformers rounds slope x position to bfloat16 as well: its bias is up to 0.4 % off this",
    )
    return Positional(alibi(given.float(), why)), notes
