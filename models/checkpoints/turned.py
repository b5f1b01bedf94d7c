"""Encoders whose heads turn: RoFormer, ModernBERT, NomicBERT."""

from __future__ import annotations

from models.checkpoints.errors import CheckpointError
from models.checkpoints.fused import stacked
from models.checkpoints.layer import Layer, Window
from models.checkpoints.rotary import rotary
from models.checkpoints.source import Config, Tensors

FULL, SLIDING = "full_attention", "sliding_attention"


def roformer(tensors: Tensors, config: Config, index: int) -> Layer:
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    attention = f"encoder.layer.{index}.attention.self"
    notes = ("its values turn too (rotary_value): attention is right, output is not",)
    return Layer(
        width=width,
        heads=heads,
        key_heads=heads,
        head_dim=width // heads,
        query=tensors.linear(f"{attention}.query", width, width),
        key=tensors.linear(f"{attention}.key", width, width),
        value=tensors.linear(f"{attention}.value", width, width),
        positional=rotary(config, width // heads).positional,
        scale=(width // heads) ** -0.5,
        causal=config.flag("is_decoder"),
        notes=notes if config.flag("rotary_value") else (),
    )


def modernbert(tensors: Tensors, config: Config, index: int) -> Layer:
    """Two kinds of layers in turn, one that sees all and one with a window, each with its own base. The first layer has
    no norm: the embeddings have just had theirs.
    """
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    kind = config.choice(index, "layer_types")
    if kind is None:
        kind = SLIDING if index % config.whole("global_attn_every_n_layers", default=3) else FULL
    if kind not in (FULL, SLIDING):
        raise CheckpointError(f"layer {index} of {config.name} has attention of type {kind}, which is not served here")
    half = config.whole("local_attention", default=128) // 2
    layer = f"layers.{index}"
    query, key, value = stacked(tensors.linear(f"{layer}.attn.Wqkv", 3 * width, width), heads, heads, width // heads)
    epsilon = config.number("norm_eps", default=1e-5)
    return Layer(
        width=width,
        heads=heads,
        key_heads=heads,
        head_dim=width // heads,
        query=query,
        key=key,
        value=value,
        positional=rotary(config, width // heads, kind).positional,
        scale=(width // heads) ** -0.5,
        norm=tensors.layer_norm(f"{layer}.attn_norm", epsilon) if index else None,
        window=Window(half, half) if kind == SLIDING else None,
    )


def nomic_bert(tensors: Tensors, config: Config, index: int) -> Layer:
    """As transformers saves it, or as published: projections in one matrix, and GPT-2's names for the sizes."""
    width, heads = config.whole("hidden_size", "n_embd"), config.whole("num_attention_heads", "n_head")
    head_dim = config.whole("head_dim", default=width // heads)
    rows = heads * head_dim
    fused, attention = f"layers.{index}.attn.Wqkv", f"layers.{index}.self_attn"
    if config.flag("prenorm"):
        raise CheckpointError(f"{config.name} has its norms before attention (prenorm), which is not read here")
    if config.value("rotary_scaling_factor") is not None:
        raise CheckpointError(f"{config.name} scales its rotation (rotary_scaling_factor), which is not read here")
    if tensors.has(f"{fused}.weight"):
        query, key, value = stacked(tensors.linear(fused, 3 * rows, width), heads, heads, head_dim)
    else:
        query, key, value = (tensors.linear(f"{attention}.{part}_proj", rows, width) for part in "qkv")
    turning = dict(config.values)
    if config.value("rotary_emb_fraction") is not None:
        turning["partial_rotary_factor"] = config.number("rotary_emb_fraction")
    return Layer(
        width=width,
        heads=heads,
        key_heads=heads,
        head_dim=head_dim,
        query=query,
        key=key,
        value=value,
        positional=rotary(Config(turning, config.name), head_dim).positional,
        scale=head_dim**-0.5,
    )
