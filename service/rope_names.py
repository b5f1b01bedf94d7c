"""The names that checkpoints' configurations have for what turns their queries and keys."""

from __future__ import annotations

from collections.abc import Mapping

SETTINGS = ("rope_scaling", "rope_parameters")
TYPE = ("rope_type", "type")
THETA = ("rope_theta", "rotary_emb_base", "rotary_base", "rope_base")
FRACTION = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_percentage", "rope_percentage")
ROTARY_DIM = "rotary_dim"
ORIGINAL = ("original_max_position_embeddings",)
LENGTH = ("max_position_embeddings", "n_positions", "seq_length")
HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
LATENT = ("qk_rope_head_dim",)
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
GLOBAL_HEAD_DIM = ("global_head_dim",)
INTERLEAVED = ("rope_interleave", "rope_interleaved", "rotary_interleaved", "rotary_emb_interleaved")
TEXT = ("text_config", "llm_config", "language_config", "thinker_config")
MSCALES = ("mscale", "mscale_all_dim")
LONGROPE_MSCALES = ("long_mscale", "short_mscale")
ONLY_SETTINGS = (
    "factor",
    "alpha",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
    *MSCALES,
    *LONGROPE_MSCALES,
)
"""Keys that stand in `rope_scaling` or `rope_parameters` and nowhere else."""
KNOWN = (
    *SETTINGS,
    *TYPE,
    *THETA,
    *FRACTION,
    *ORIGINAL,
    *LENGTH,
    *HIDDEN,
    *HEADS,
    *LATENT,
    *HEAD_DIM,
    *GLOBAL_HEAD_DIM,
    *INTERLEAVED,
    *ONLY_SETTINGS,
    "model_type",
    ROTARY_DIM,
    "rope_ratio",
    "rope_local_base_freq",
    "global_rope_theta",
    "local_rope_theta",
    "query_pre_attn_scalar",
    "attention_multiplier",
    "attn_logit_softcapping",
)

ROTARY = (
    "rope",
    "rotary",
    "theta",
    "position",
    "scal",
    "factor",
    "yarn",
    "mscale",
    "freq",
    "ntk",
)
"""A name with one of these in it may well be about positions, though it is not known here."""


def looks_rotary(name: str) -> bool:
    return any(part in name.lower() for part in ROTARY)


TYPES: Mapping[str, str] = {
    "default": "rope",
    "linear": "rope-linear",
    "ntk": "rope-ntk",
    "dynamic": "rope-dynamic",
    "yarn": "rope-yarn",
    "deepseek_yarn": "rope-yarn",
    "longrope": "rope-longrope",
    "su": "rope-longrope",
    "llama3": "rope-llama3",
    "proportional": "rope-proportional",
    "mrope": "rope",
}
"""Rope type -> the encoding served here."""

REASONS: Mapping[str, str] = {
    "num_key_value_heads": "every head turns alike; /attention takes it as key_heads",
    "qk_nope_head_dim": "these components do not turn",
    "qk_head_dim": "only its qk_rope_head_dim components turn",
    "v_head_dim": "values do not turn",
    "no_rope_layers": "the answer is for the layers that turn; the others are encoding=none",
    "no_rope_layer_interval": "the answer is for the layers that turn; the others are encoding=none",
    "layer_types": "says which keys a layer sees; its types turn alike unless the rope settings name them",
    "sliding_window": "hides keys and does not turn them; send a mask to /attention",
    "mrope_section": "gives each pair one of three positions, which are equal for text: plain RoPE",
    "mrope_interleaved": "orders the sections of mrope, which makes no difference for text",
    "llama_4_scaling_beta": "scales queries by their position, which no encoding here does",
    "attn_temperature_tuning": "scales queries by their position, which no encoding here does",
    "attn_factor": "a factor on attention_factor in vLLM; transformers does not read it",
    "extrapolation_factor": "a factor on YaRN's ramp in vLLM; transformers does not read it",
    "finetuned": "says how the model came about, nothing of frequencies",
    "final_logit_softcapping": "caps the logits of the vocabulary, not the scores of attention",
    "alibi": "is another encoding, without rotation",
}
"""Why keys that often stand near these have no part in the answer."""
