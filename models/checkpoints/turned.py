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
    return Layer.ungrouped(
        width,
        heads,
        tensors.three(attention, ("query", "key", "value"), width, width),
        rotary(config, width // heads).positional,
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
    epsilon = config.number("norm_eps", default=1e-5)
    return Layer.ungrouped(
        width,
        heads,
        stacked(tensors.linear(f"{layer}.attn.Wqkv", 3 * width, width), heads, heads, width // heads),
        rotary(config, width // heads, kind).positional,
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
        projections = stacked(tensors.linear(fused, 3 * rows, width), heads, heads, head_dim)
    else:
        projections = tensors.three(attention, ("q_proj", "k_proj", "v_proj"), rows, width)
    turning = dict(config.values)
    if config.value("rotary_emb_fraction") is not None:
        turning["partial_rotary_factor"] = config.number("rotary_emb_fraction")
    return Layer.ungrouped(
        width,
        heads,
        projections,
        rotary(Config(turning, config.name), head_dim).positional,
    )
