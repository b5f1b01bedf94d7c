"""Rotary configurations as published checkpoints have them, the rest of each config.json cut short."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

SHORT = [1.0, 1.02, 1.03, 1.03, 1.05, 1.05, 1.07, 1.08, 1.1, 1.1, 1.12, 1.14, 1.15, 1.17, 1.2, 1.2]
SHORT_FACTOR = [*SHORT, *(round(1.2 + 0.05 * i, 2) for i in range(32))]
LONG_FACTOR = [round(1.05 * 1.09**i, 4) for i in range(48)]

LLAMA_3_1_8B: Document = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
LLAMA_2_LINEAR: Document = {
    "hidden_size": 4096,
    "max_position_embeddings": 32768,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "rope_scaling": {"factor": 8.0, "type": "linear"},
}
LLAMA_DYNAMIC: Document = {
    "hidden_size": 5120,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 40,
    "rope_scaling": {"factor": 4.0, "type": "dynamic"},
    "rope_theta": 10000.0,
}
QWEN_2_5_YARN: Document = {
    "hidden_size": 3584,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "use_sliding_window": False,
}
DEEPSEEK_V3: Document = {
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "v_head_dim": 128,
}
DEEPSEEK_V2: Document = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v2",
    "hidden_size": 5120,
    "rope_scaling": {**DEEPSEEK_V3["rope_scaling"], "mscale": 0.707, "mscale_all_dim": 0.707},
}
PHI_3_128K: Document = {
    "hidden_size": 3072,
    "max_position_embeddings": 131072,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "rope_scaling": {"long_factor": LONG_FACTOR, "short_factor": SHORT_FACTOR, "type": "longrope"},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
}
PHI_4_MINI: Document = {
    **PHI_3_128K,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.75,
}
GPT_OSS_20B: Document = {
    "head_dim": 64,
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
}
GEMMA_3_4B: Document = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "image_token_index": 262144,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "num_attention_heads": 16},
}
GEMMA_3_1B: Document = {
    "head_dim": 256,
    "hidden_size": 1152,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
}
GEMMA_3_NEW: Document = {
    "head_dim": 256,
    "hidden_size": 2560,
    "layer_types": ["sliding_attention", "full_attention"],
    "model_type": "gemma3_text",
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "rope_parameters": {
        "full_attention": {"factor": 8.0, "rope_theta": 1000000.0, "rope_type": "linear"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
}
GEMMA_4: Document = {
    "model_type": "gemma4_text",
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_size": 2304,
    "num_attention_heads": 8,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
}
PYTHIA: Document = {
    "hidden_size": 2048,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 16,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
}
PHI_2: Document = {
    "hidden_size": 2560,
    "max_position_embeddings": 2048,
    "model_type": "phi",
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "partial_rotary_factor": 0.4,
    "rope_scaling": None,
    "rope_theta": 10000.0,
}
SMOLLM3: Document = {
    "hidden_size": 2048,
    "max_position_embeddings": 65536,
    "model_type": "smollm3",
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
}
HUNYUAN: Document = {
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 32768,
    "model_type": "hunyuan_v1_dense",
    "num_attention_heads": 32,
    "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "type": "dynamic"},
    "rope_theta": 10000.0,
}
GLM_4: Document = {
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "model_type": "glm",
    "num_attention_heads": 32,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
}
MINISTRAL_3: Document = {
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 262144,
    "model_type": "ministral3",
    "num_attention_heads": 32,
    "rope_parameters": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 16.0,
        "llama_4_scaling_beta": 0.1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16384,
        "rope_theta": 1000000.0,
        "rope_type": "yarn",
        "type": "yarn",
    },
}
LLAVA: Document = {
    "model_type": "llava",
    "text_config": {"max_position_embeddings": 4096, "model_type": "llama", "vocab_size": 32064},
    "vision_config": {"hidden_size": 1024, "num_attention_heads": 16},
}
GPT_J: Document = {
    "model_type": "gptj",
    "n_ctx": 2048,
    "n_embd": 4096,
    "n_head": 16,
    "n_positions": 2048,
    "rotary_dim": 64,
}
MODERNBERT: Document = {
    "global_rope_theta": 160000.0,
    "hidden_size": 768,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "model_type": "modernbert",
    "num_attention_heads": 12,
}

CHECKPOINTS: dict[str, Document] = {
    name.lower(): value for name, value in list(globals().items()) if name.isupper() and isinstance(value, dict)
}
