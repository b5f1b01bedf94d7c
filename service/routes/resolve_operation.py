"""`POST /encodings/rope/resolve` in the words of OpenAPI."""

from __future__ import annotations

from typing import Any

from service.wire import media

EXAMPLES: dict[str, dict[str, Any]] = {
    "llama": {
        "summary": "Llama 3.1 8B",
        "value": {
            "model_type": "llama",
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
        },
    },
    "small": {
        "summary": "YaRN over a head of 8",
        "value": {
            "model_type": "qwen2",
            "head_dim": 8,
            "rope_theta": 10000.0,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        },
    },
    "layers": {
        "summary": "Layer types that turn differently",
        "value": {
            "model_type": "gemma3_text",
            "head_dim": 256,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    },
}
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_RESULT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "layer_type": {"type": ["string", "null"], "description": "null where all layers turn alike"},
        "encoding": {"type": "string", "description": "as /attention takes it"},
        "parameters": {"type": "object"},
        "head_dim": {"type": "integer"},
        "length": {"type": ["integer", "null"], "description": "of the request, where frequencies depend on it"},
        "attention_factor": {"type": "number", "description": "on the rotated q and on the rotated k"},
        "inverse_frequencies": {**_NUMBERS, "description": "of each pair, radians per position"},
        "wavelengths": {
            "type": "array",
            "items": {"type": ["number", "null"]},
            "description": "positions per turn; null for a pair that does not turn",
        },
        "bands": {"type": "array", "items": {"type": "string"}, "description": "the term that each pair is a part of"},
        "pairs": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {"type": "integer"}},
            "description": "llama3 and yarn: the pairs that are kept as in plain RoPE, divided by factor, or between",
        },
        "query": {"type": "string", "description": "of /attention, under the same encoding"},
        "curl": {"type": "string"},
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "model_type": {"type": ["string", "null"]},
        "results": {"type": "array", "items": _RESULT, "description": "one for each layer type"},
        "used": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "each key that was used, and for what",
        },
        "warnings": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "kind": {"type": "string", "enum": ["contradiction", "default", "note", "unused"]},
                    "key": {"type": "string"},
                    "message": {"type": "string"},
                },
            },
            "description": "contradictions first",
        },
        "ignored": {
            "type": "array",
            "items": {"type": "string"},
            "description": "keys that have nothing to do with positions, as far as their names tell",
        },
    },
}

_QUERY = (
    "encoding=rope-yarn&rope-yarn.original_length=512&rope-yarn.factor=4&rope-yarn.beta_fast=32&rope-yarn.beta_slow=1"
    "&rope-yarn.truncate=true&rope-yarn.theta=10000&rope-yarn.rotary_fraction=1&rope-yarn.layout=half"
)
ANSWER: dict[str, Any] = {
    "model_type": "qwen2",
    "results": [
        {
            "layer_type": None,
            "encoding": "rope-yarn",
            "parameters": {
                "factor": 4.0,
                "original_length": 512,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": True,
                "theta": 10000.0,
                "layout": "half",
                "rotary_fraction": 1.0,
            },
            "head_dim": 8,
            "length": None,
            "attention_factor": 1.13863,
            "inverse_frequencies": [1.0, 0.0625, 0.0025, 0.00025],
            "wavelengths": [6.28319, 100.531, 2513.27, 25132.7],
            "bands": ["fast", "fast", "medium", "slow"],
            "pairs": {"kept": [0], "blended": [1], "divided": [2, 3]},
            "query": _QUERY,
            "curl": f"curl -s 'http://127.0.0.1:8000/attention?{_QUERY}' -H 'Content-Type: application/json' "
            "-d '{\"embeddings\":[[1,1,1,1,1,1,1,1],[1,1,1,1,1,1,1,1]]}'",
        }
    ],
    "used": {
        "rope_scaling.type": "encoding",
        "head_dim": "head_dim",
        "rope_scaling.original_max_position_embeddings": "original_length",
        "rope_scaling.factor": "factor",
        "rope_theta": "theta",
        "model_type": "layout",
    },
    "warnings": [
        {"kind": "default", "key": "rope_scaling.beta_fast", "message": "absent: 32 was taken"},
        {"kind": "default", "key": "rope_scaling.beta_slow", "message": "absent: 1 was taken"},
        {"kind": "default", "key": "rope_scaling.truncate", "message": "absent: true was taken"},
        {"kind": "default", "key": "rope_scaling.attention_factor", "message": "absent: 0.1 ln(factor) + 1 was taken"},
        {
            "kind": "default",
            "key": "partial_rotary_factor",
            "message": "absent: 1 was taken, transformers' default for qwen2",
        },
    ],
    "ignored": [],
}
"""What `small` is answered with, its numbers rounded."""

REQUEST: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {media.JSON: {"schema": {"type": "object"}, "examples": EXAMPLES}},
    }
}
RESPONSES: dict[int | str, Any] = {
    200: {
        "description": "Frequencies, bands, the query that reproduces them.",
        "content": {media.JSON: {"schema": SCHEMA, "example": ANSWER}},
    }
}
