"""Llama and its kin: an RMS norm before the projections, grouped key heads, rotary positions in the half layout."""

from __future__ import annotations

from dataclasses import dataclass

from models.checkpoints.errors import CheckpointError
from models.checkpoints.fused import stacked
from models.checkpoints.layer import HeadNorm, Layer, Norm, Positional, Window
from models.checkpoints.rotary import rotary
from models.checkpoints.source import Config, Tensors
from models.encodings.none import NoEncoding

SLIDING = "sliding_attention"
FULL = "full_attention"


@dataclass(frozen=True)
class Traits:
    """What tells one member from another. `plus` is added to the weights of its norms; `norm` None: there is none
    before the projections. `head_norms` are the names of the q and k norms, `together` whether they are of all heads at
    once, `optional` whether the configuration decides. `alternating`: without `layer_types`, every so many layers one
    sees all keys. `sliding`: without `layer_types`, whether a window is of every layer.
    """

    norm: str | None = "input_layernorm"
    kind: str = "rms"
    epsilon: str = "rms_norm_eps"
    plus: float = 0.0
    head_norms: tuple[str, str] | None = None
    head_kind: str = "rms"
    together: bool = False
    optional: str | None = None
    alternating: int | None = None
    sliding: bool = False
    switch: str | None = None
    sinks: bool = False
    bidirectional: str | None = None
    fused: str | None = None
    head_dim: int | None = None


QK = ("q_norm", "k_norm")
TRAITS = {
    "llama": Traits(),
    "mistral": Traits(sliding=True),
    "qwen2": Traits(switch="use_sliding_window"),
    "qwen3": Traits(head_norms=QK, switch="use_sliding_window", head_dim=128),
    "smollm3": Traits(switch="use_sliding_window"),
    "phi": Traits(
        kind="layer", epsilon="layer_norm_eps", head_norms=("q_layernorm", "k_layernorm"), head_kind="layer",
        optional="qk_layernorm",
    ),
    "phi3": Traits(sliding=True, fused="qkv_proj"),
    "gemma": Traits(plus=1.0, head_dim=256),
    "gemma2": Traits(plus=1.0, alternating=2, head_dim=256),
    "gemma3_text": Traits(
        plus=1.0, head_norms=QK, alternating=6, head_dim=256, bidirectional="use_bidirectional_attention"
    ),
    "olmo2": Traits(norm=None, head_norms=QK, together=True),
    "granite": Traits(),
    "starcoder2": Traits(kind="layer", epsilon="norm_epsilon", sliding=True),
    "gpt_oss": Traits(sinks=True, alternating=2, head_dim=64),
}  # fmt: skip


def llama(tensors: Tensors, config: Config, index: int) -> Layer:
    """One layer of any model in `TRAITS`."""
    traits = TRAITS[config.model_type or "llama"]
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    key_heads = config.whole("num_key_value_heads", default=heads)
    head_dim = config.whole("head_dim", default=traits.head_dim or width // heads)
    if heads % key_heads:
        raise CheckpointError(f"{config.name} has {heads} heads, which cannot share {key_heads} key heads evenly")
    layer = f"layers.{index}"
    attention = f"{layer}.self_attn"
    if traits.fused is None:
        query = tensors.linear(f"{attention}.q_proj", heads * head_dim, width)
        key = tensors.linear(f"{attention}.k_proj", key_heads * head_dim, width)
        value = tensors.linear(f"{attention}.v_proj", key_heads * head_dim, width)
    else:
        whole = tensors.linear(f"{attention}.{traits.fused}", (heads + 2 * key_heads) * head_dim, width)
        query, key, value = stacked(whole, heads, key_heads, head_dim)

    kind = _layer_type(config, traits, index)
    turning = rotary(config, head_dim, kind)
    positional = turning.positional if _turns(config, index) else Positional(NoEncoding())
    query_norm, key_norm = _head_norms(tensors, config, traits, attention)
    return Layer(
        width=width,
        heads=heads,
        key_heads=key_heads,
        head_dim=head_dim,
        query=query,
        key=key,
        value=value,
        positional=positional,
        scale=head_dim**-0.5 if turning.scale is None else turning.scale,
        norm=_norm(tensors, config, traits, f"{layer}.{traits.norm}") if traits.norm is not None else None,
        query_norm=query_norm,
        key_norm=key_norm,
        softcap=turning.softcap,
        sinks=tensors.shaped((heads,), f"{attention}.sinks") if traits.sinks else None,
        causal=not _bidirectional(config, traits),
        window=_window(config, kind, _bidirectional(config, traits)),
    )


def _norm(tensors: Tensors, config: Config, traits: Traits, name: str) -> Norm:
    if traits.kind == "layer":
        return tensors.layer_norm(name, config.number(traits.epsilon, default=1e-5))
    return tensors.rms_norm(name, config.number(traits.epsilon, default=1e-6), traits.plus)


def _head_norms(
    tensors: Tensors, config: Config, traits: Traits, attention: str
) -> tuple[HeadNorm | None, HeadNorm | None]:
    if traits.head_norms is None or (traits.optional is not None and not config.flag(traits.optional)):
        return None, None
    epsilon = config.number(traits.epsilon, default=1e-6)
    names = [f"{attention}.{name}" for name in traits.head_norms]
    if traits.head_kind == "layer":
        norms = [tensors.layer_norm(name, epsilon) for name in names]
    else:
        norms = [tensors.rms_norm(name, epsilon, traits.plus) for name in names]
    query, key = (HeadNorm(norm, traits.together) for norm in norms)
    return query, key


def _layer_type(config: Config, traits: Traits, index: int) -> str | None:
    """Which keys the layer sees, by name; None where the model has one type and no window."""
    listed = config.choice(index, "layer_types")
    if listed is not None:
        return str(listed)
    if config.value("sliding_window") is None:
        return None
    if traits.alternating is not None:
        every = config.whole("sliding_window_pattern", default=traits.alternating)
        return SLIDING if (index + 1) % every else FULL
    if traits.switch is not None and config.flag(traits.switch):
        return SLIDING if index >= config.whole("max_window_layers", default=1 << 30) else FULL
    return SLIDING if traits.sliding else None


def _turns(config: Config, index: int) -> bool:
    """SmolLM3 has layers without positions, one in `no_rope_layer_interval` or as listed (0: it does not turn)."""
    listed = config.choice(index, "no_rope_layers")
    if listed is not None:
        return bool(listed)
    if config.model_type == "smollm3":
        return bool((index + 1) % config.whole("no_rope_layer_interval", default=4))
    return True


def _bidirectional(config: Config, traits: Traits) -> bool:
    return traits.bidirectional is not None and config.flag(traits.bidirectional)


def _window(config: Config, kind: str | None, bidirectional: bool) -> Window | None:
    """So many tokens, the query among them; of an encoder half of them on either side."""
    if kind in (None, FULL):
        return None
    if kind != SLIDING:
        raise CheckpointError(f"this layer of {config.name} has attention of type {kind}, which is not served here")
    width = config.whole("sliding_window")
    return Window(width // 2, width // 2) if bidirectional else Window(width - 1, 0)
