"""Small models of other people's architectures, initialised at random and saved as their library saves them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

VOCABULARY = 40
LAYERS = 3
POSITIONS = 64

Values = dict[str, Any]


def sizes(rng: random.Random) -> tuple[int, int]:
    """Heads and head_dim, the latter a multiple of 4."""
    return rng.choice((1, 2, 3, 4, 6)), rng.choice((4, 8, 12, 16))


def bert(rng: random.Random) -> Values:
    heads, head_dim = sizes(rng)
    return {
        "hidden_size": heads * head_dim,
        "num_attention_heads": heads,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 8,
        "max_position_embeddings": POSITIONS,
        "layer_norm_eps": rng.choice((1e-12, 1e-5)),
    }


def roberta(rng: random.Random) -> Values:
    return {**bert(rng), "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


def distilbert(rng: random.Random) -> Values:
    heads, head_dim = sizes(rng)
    return {
        "dim": heads * head_dim,
        "n_heads": heads,
        "n_layers": LAYERS,
        "hidden_dim": 8,
        "max_position_embeddings": POSITIONS,
        "sinusoidal_pos_embds": rng.random() < 0.5,
    }


def scaling(rng: random.Random, head_dim: int) -> Values:
    """Every kind of rope scaling."""
    pairs = head_dim // 2
    lengths: Values = {"original_max_position_embeddings": 16}
    return rng.choice(
        (
            {"rope_type": "default"},
            {"rope_type": "linear", "factor": 4.0},
            {"rope_type": "dynamic", "factor": 2.0},
            {"rope_type": "yarn", "factor": 4.0, **lengths},
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **lengths},
            {
                "rope_type": "longrope",
                "short_factor": [1 + i / 8 for i in range(pairs)],
                "long_factor": [2 + i for i in range(pairs)],
                "factor": 4.0,
                **lengths,
            },
        )
    )


def llama(rng: random.Random) -> Values:
    heads, head_dim = sizes(rng)
    key_heads = rng.choice([count for count in range(1, heads + 1) if heads % count == 0])
    return {
        "hidden_size": rng.choice((heads * head_dim, 20)),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": head_dim,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 8,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": rng.choice((1e-6, 1e-5)),
        "attention_bias": rng.random() < 0.5,
        "rope_parameters": {"rope_theta": rng.choice((1e4, 5e5)), **scaling(rng, head_dim)},
        "pad_token_id": 0,
    }


def mistral(rng: random.Random) -> Values:
    return {**llama(rng), "sliding_window": rng.choice((None, 4, 100))}


def qwen(rng: random.Random) -> Values:
    window = rng.choice((None, 5))
    values = {**llama(rng), "use_sliding_window": window is not None, "sliding_window": window, "max_window_layers": 1}
    return values | {"hidden_size": values["num_attention_heads"] * values["head_dim"]}


def smollm3(rng: random.Random) -> Values:
    return {**llama(rng), "no_rope_layers": rng.choice(([1, 0, 1], [0, 1, 1]))}


def phi(rng: random.Random) -> Values:
    values = llama(rng)
    heads, head_dim = values["num_attention_heads"], values["head_dim"]
    turning = {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": rng.choice((0.5, 1.0))}
    changed = {"hidden_size": heads * head_dim, "qk_layernorm": rng.random() < 0.5, "rope_parameters": turning}
    return {**values, **changed, "layer_norm_eps": 1e-5}


def phi3(rng: random.Random) -> Values:
    values = llama(rng)
    width = values["num_attention_heads"] * values["head_dim"]
    turning = {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 1.0}
    return {**values, "hidden_size": width, "rope_parameters": turning, "sliding_window": rng.choice((None, 4))}


def gemma(rng: random.Random) -> Values:
    return llama(rng)


def gemma2(rng: random.Random) -> Values:
    return {
        **llama(rng),
        "query_pre_attn_scalar": rng.choice((4, 24)),
        "attn_logit_softcapping": rng.choice((None, 1.5, 50.0)),
        "sliding_window": 4,
    }


def gemma3(rng: random.Random) -> Values:
    turning = {
        "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    }
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    values = llama(rng)
    return {
        **values,
        "hidden_size": values["num_attention_heads"] * values["head_dim"],
        "query_pre_attn_scalar": 24,
        "sliding_window": rng.choice((4, 7)),
        "rope_parameters": turning,
        "layer_types": kinds,
        "use_bidirectional_attention": rng.random() < 0.5,
    }


def olmo2(rng: random.Random) -> Values:
    values = llama(rng)
    return {**values, "hidden_size": values["num_attention_heads"] * values["head_dim"]}


def granite(rng: random.Random) -> Values:
    return {**llama(rng), "attention_multiplier": rng.choice((0.015625, 0.5))}


def starcoder2(rng: random.Random) -> Values:
    values = llama(rng)
    width = values["num_attention_heads"] * values["head_dim"]
    return {**values, "hidden_size": width, "norm_epsilon": 1e-5, "sliding_window": rng.choice((None, 4))}


def gpt_oss(rng: random.Random) -> Values:
    values = llama(rng)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    return {**values, "sliding_window": 4, "layer_types": kinds, **experts}


def gpt2(rng: random.Random) -> Values:
    heads, head_dim = sizes(rng)
    return {
        "n_embd": heads * head_dim,
        "n_head": heads,
        "n_layer": LAYERS,
        "n_inner": 8,
        "n_positions": POSITIONS,
        "scale_attn_weights": rng.random() < 0.7,
        "scale_attn_by_inverse_layer_idx": rng.random() < 0.5,
        "layer_norm_epsilon": rng.choice((1e-5, 1e-3)),
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def gpt_neox(rng: random.Random) -> Values:
    heads, head_dim = sizes(rng)
    return {
        "hidden_size": heads * head_dim,
        "num_attention_heads": heads,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 8,
        "attention_bias": rng.random() < 0.5,
        "use_parallel_residual": rng.random() < 0.5,
        "rope_parameters": {
            "rope_theta": rng.choice((1e4, 1e5)),
            "partial_rotary_factor": rng.choice((0.25, 0.5, 1.0) if head_dim % 8 == 0 else (0.5, 1.0)),
            "rope_type": "default",
        },
        "eos_token_id": 0,
    }


def gptj(rng: random.Random) -> Values:
    heads, head_dim = sizes(rng)
    return {
        "n_embd": heads * head_dim,
        "n_head": heads,
        "n_layer": LAYERS,
        "n_inner": 8,
        "rotary_dim": rng.choice((2, 4, head_dim)),
        "n_positions": POSITIONS,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def bloom(rng: random.Random) -> Values:
    heads, head_dim = sizes(rng)
    return {"hidden_size": heads * head_dim, "n_head": heads, "n_layer": LAYERS, "pad_token_id": 0} | {
        "apply_residual_connection_post_layernorm": rng.random() < 0.5
    }


def mpt(rng: random.Random) -> Values:
    heads, head_dim = sizes(rng)
    attention = {
        "clip_qkv": rng.choice((None, 0.75)),
        "softmax_scale": rng.choice((None, 0.2)),
        "alibi_bias_max": 8,  # transformers takes 8 whatever stands here
    }
    return {"d_model": heads * head_dim, "n_heads": heads, "n_layers": LAYERS, "attn_config": attention}


def falcon(rng: random.Random) -> Values:
    heads, head_dim = sizes(rng)
    groups = [count for count in range(1, heads + 1) if heads % count == 0]
    alibi = rng.random() < 0.4
    if alibi:  # transformers rounds the product of slope and position to bfloat16: exact for powers of two alone
        heads = rng.choice((1, 2, 4))
        groups = [1, heads]
    new = rng.random() < 0.5
    return {
        "hidden_size": heads * head_dim,
        "num_attention_heads": heads,
        "num_hidden_layers": LAYERS,
        "num_kv_heads": rng.choice(groups) if new else heads,
        "new_decoder_architecture": new,
        "multi_query": rng.random() < 0.5,
        "parallel_attn": new or rng.random() < 0.5,
        "num_ln_in_parallel_attn": rng.choice((None, 1, 2)) if new else None,
        "bias": rng.random() < 0.5,
        "alibi": alibi,
        "ffn_hidden_size": 8,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def t5(rng: random.Random) -> Values:
    heads, head_dim = sizes(rng)
    return {
        "d_model": rng.choice((12, 20)),
        "num_heads": heads,
        "d_kv": head_dim,
        "d_ff": 8,
        "num_layers": LAYERS,
        "num_decoder_layers": 1,
        "relative_attention_num_buckets": rng.choice((8, 32)),
        "relative_attention_max_distance": rng.choice((16, 128)),
        "decoder_start_token_id": 0,
    }


def deberta(rng: random.Random) -> Values:
    relative = rng.random() < 0.85
    return {
        **bert(rng),
        "relative_attention": relative,
        "max_relative_positions": rng.choice((-1, 8, 64)),
        "pos_att_type": rng.choice((["c2p", "p2c"], "c2p|p2c", ["c2p"], ["p2c"])) if relative else None,
        "position_biased_input": rng.random() < 0.5,
    }


def deberta_v2(rng: random.Random) -> Values:
    buckets = rng.choice((-1, 6, 16))
    values = deberta(rng)
    return {
        **values,
        "position_buckets": buckets,
        "max_relative_positions": values["max_relative_positions"] if buckets < 16 else 64,
        "norm_rel_ebd": rng.choice(("none", "layer_norm")),
        "share_att_key": rng.random() < 0.5,
        "conv_kernel_size": rng.choice((0, 3)),
    }


def xlnet(rng: random.Random) -> Values:
    heads, head_dim = sizes(rng)
    return {
        "d_model": heads * head_dim,
        "n_head": heads,
        "n_layer": LAYERS,
        "d_inner": 8,
        "attn_type": rng.choice(("bi", "uni")),
        "mem_len": None,
    }


def roformer(rng: random.Random) -> Values:
    return {**bert(rng), "embedding_size": rng.choice((None, 12)), "rotary_value": rng.random() < 0.5}


def modernbert(rng: random.Random) -> Values:
    heads, head_dim = sizes(rng)
    return {
        "hidden_size": heads * head_dim,
        "num_attention_heads": heads,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 8,
        "local_attention": rng.choice((6, 9, 128)),
        "norm_bias": rng.random() < 0.5,
        "attention_bias": rng.random() < 0.5,
        "rope_parameters": {
            "full_attention": {"rope_theta": 160_000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10_000.0, **rng.choice(({"rope_type": "default"}, LINEAR))},
        },
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
    }


LINEAR: Values = {"rope_type": "linear", "factor": 2.0}


def nomic_bert(rng: random.Random) -> Values:
    return {**bert(rng), "rope_parameters": {"rope_theta": rng.choice((1e3, 1e4)), "rope_type": "default"}}


MINIATURES: Mapping[str, Callable[[random.Random], Values]] = {
    "bert": bert,
    "roberta": roberta,
    "xlm-roberta": roberta,
    "camembert": roberta,
    "electra": lambda rng: {**bert(rng), "embedding_size": 12},
    "distilbert": distilbert,
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen,
    "qwen3": qwen,
    "smollm3": smollm3,
    "phi": phi,
    "phi3": phi3,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "olmo2": olmo2,
    "granite": granite,
    "starcoder2": starcoder2,
    "gpt_oss": gpt_oss,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "gptj": gptj,
    "bloom": bloom,
    "mpt": mpt,
    "falcon": falcon,
    "t5": t5,
    "mt5": t5,
    "umt5": t5,
    "mpnet": lambda rng: {**bert(rng), "relative_attention_num_buckets": 32},
    "deberta": deberta,
    "deberta-v2": deberta_v2,
    "xlnet": xlnet,
    "roformer": roformer,
    "modernbert": modernbert,
    "nomic_bert": nomic_bert,
}
