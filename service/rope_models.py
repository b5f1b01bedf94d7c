"""What a checkpoint's `model_type` says of its rotary embedding, and what transformers takes where its config.json is
silent. Facts to be looked up, written down from transformers 5.24; a test compares each row with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True, slots=True)
class RopeModel:
    """Defaults of one model type. `head_dim` is None where it is hidden_size / num_attention_heads."""

    layout: Layout
    theta: float
    rotary_fraction: float
    hidden_size: int
    heads: int
    head_dim: int | None


@dataclass(frozen=True, slots=True)
class LayerTypes:
    """The old spelling of models that turn by two bases: the key of each, the default of the second, and whether
    `rope_scaling` is of both."""

    full: str
    sliding: str
    sliding_theta: float
    both: bool = False


# model_type, layout, theta, rotary fraction, hidden_size, num_attention_heads, head_dim
_TABLE = """
afmoe half 10000 1 2048 16 128
apertus half 12000000 1 4096 32 -
apertus1p5_text half 12000000 1 4096 32 -
arcee half 10000 1 2560 32 -
aria_text half 10000 1 4096 32 -
axk1 interleaved 10000 1 7168 64 64
axk2 interleaved 10000 1 2048 32 32
bailing_hybrid interleaved 6000000 1 2560 32 64
bamba half 10000 0.5 4096 32 -
bitnet half 500000 1 2560 20 -
chameleon half 10000 1 4096 32 -
chatglm interleaved 10000 0.5 4096 32 -
codegen interleaved 10000 0.25 4096 16 -
cohere interleaved 500000 1 8192 64 -
cohere2 interleaved 10000 1 8192 64 -
cohere2_moe interleaved 10000 1 8192 64 128
cosmos3_edge_text half 100000000 1 2048 16 128
cwm half 1000000 1 6144 48 128
dbrx half 10000 1 2048 16 -
deepseek_ocr2_text half 10000 1 4096 32 -
deepseek_v2 interleaved 10000 1 4096 32 64
deepseek_v3 interleaved 10000 1 7168 128 64
deepseek_v32 interleaved 10000 1 7168 128 64
diffllama half 10000 1 2048 32 -
doge half 10000 1 1024 8 -
dots1 half 10000 1 4608 32 -
emu3_text_model half 1000000 1 4096 32 -
ernie4_5 interleaved 500000 1 1024 16 128
ernie4_5_moe interleaved 500000 1 2560 20 -
esm half 10000 1 768 12 -
eurobert half 10000 1 768 12 -
evolla half 500000 1 4096 32 -
exaone half 500000 1 4096 32 -
exaone4 half 10000 1 4096 32 -
exaone_moe half 10000 1 4096 32 -
falcon half 10000 1 4544 71 -
falcon_h1 half 10000 1 4096 32 -
flex_olmo half 500000 1 4096 32 -
flint half 10000 1 2048 32 128
gemma half 10000 1 3072 16 256
gemma2 half 10000 1 2304 8 256
gemma3_text half 1000000 1 2304 8 256
gemma3n_text half 1000000 1 2048 8 256
gemma4_text half 1000000 1 2304 8 256
gemma4_unified_text half 1000000 1 2304 8 256
glm interleaved 10000 0.5 4096 32 128
glm4 interleaved 10000 0.5 4096 32 128
glm4_moe half 10000 0.5 4096 96 -
glm4_moe_lite interleaved 10000 1 2048 20 64
glm4v_moe_text half 10000 0.5 4096 96 -
glm4v_text interleaved 10000 1 4096 32 -
glm_image_text half 10000 1 4096 32 -
glm_moe_dsa interleaved 10000 1 6144 64 64
glm_ocr_text interleaved 10000 1 1024 16 -
gpt_neox half 10000 0.25 6144 64 -
gpt_neox_japanese half 10000 1 2560 32 -
gpt_oss half 150000 1 2880 64 64
gptj interleaved 10000 0.25 4096 16 -
granite half 10000 1 4096 32 -
granite_docling_text half 10000 1 1024 16 -
granite_swa half 10000 1 2560 20 -
granitemoe half 10000 1 4096 32 -
granitemoe_swa half 10000 1 4096 32 -
granitemoehybrid half 10000 1 4096 32 -
granitemoeshared half 10000 1 4096 32 -
gte half 160000 1 768 12 -
helium interleaved 100000 1 2560 20 128
hrm_text half 10000 1 1536 12 128
hunyuan_v1_dense half 10000 1 4096 32 -
hunyuan_v1_moe half 10000 1 4096 32 -
hunyuan_vl_text half 10000 1 4096 32 -
hy_v3 half 11158840 1 4096 64 128
hy_v4 half 10000 1 2816 32 64
hy_v4_vl_text interleaved 10000 1 6144 64 64
hyperclovax half 10000 1 4096 32 -
idefics half 10000 1 4096 32 -
internlm3 half 10000 1 4096 32 128
jais2 half 10000 1 3328 26 -
jetmoe half 10000 1 2048 32 128
jina_embeddings_v3 half 20000 1 1024 16 -
kolibri1 half 10000 1 2560 48 128
lfm2 half 1000000 1 2560 32 -
lfm2_moe half 1000000 1 2048 32 -
llama half 10000 1 4096 32 -
llama4_text interleaved 500000 1 5120 40 128
longcat_flash interleaved 10000000 1 6144 64 64
minicpm3 half 10000 1 2560 40 32
minimax half 1000000 1 4096 32 -
minimax_m2 half 5000000 1 3072 48 128
ministral half 10000 1 4096 32 -
ministral3 half 1000000 1 4096 32 128
mistral half 10000 1 4096 32 -
mistral4 interleaved 10000 1 4096 32 64
mixtral half 1000000 1 4096 32 -
mllama_text_model half 500000 1 4096 32 -
modernbert half 160000 1 768 12 -
modernbert-decoder half 160000 1 768 12 -
molmo2_text half 10000 1 4096 32 128
muse_glimmer_assistant half 500000 1 6656 32 128
muse_glimmer_text half 10000 1 6656 32 128
muse_spark_text half 500000 1 8192 128 64
nanochat half 10000 1 768 6 -
nemotron half 10000 0.5 6144 48 -
nomic_bert half 1000 1 768 12 -
olmo half 10000 1 4096 32 -
olmo2 half 10000 1 4096 32 -
olmo3 half 500000 1 4096 32 -
olmo_hybrid half 10000 1 3840 30 -
olmoe half 10000 1 2048 16 -
openai_privacy_filter interleaved 150000 1 640 14 64
paddleocr_vl_text half 500000 1 1024 16 128
persimmon half 10000 0.5 4096 64 -
phi half 10000 0.5 2048 32 -
phi3 half 10000 1 3072 32 -
phi4_multimodal half 10000 1 3072 32 -
phimoe half 1000000 1 4096 32 -
qwen2 half 10000 1 4096 32 -
qwen2_5_omni_talker half 1000000 1 3584 28 128
qwen2_5_omni_text half 1000000 1 3584 28 -
qwen2_5_vl_text half 1000000 1 8192 64 -
qwen2_moe half 10000 1 2048 16 -
qwen2_vl_text half 1000000 1 8192 64 -
qwen3 half 10000 1 4096 32 128
qwen3_5_moe_text half 10000 0.25 2048 16 256
qwen3_5_text half 10000 0.25 4096 16 256
qwen3_moe half 10000 1 2048 32 -
qwen3_next half 10000 0.25 2048 16 256
qwen3_omni_moe_talker_text half 10000 1 1024 16 -
qwen3_omni_moe_text half 1000000 1 2048 28 -
qwen3_vl_moe_text half 500000 1 2048 16 -
qwen3_vl_text half 500000 1 4096 32 128
qwen4_exp_text half 10000 1 2048 16 256
recurrent_gemma half 10000 0.5 2560 10 -
roformer interleaved 10000 1 768 12 -
seed_oss half 10000 1 4096 80 128
smollm3 half 2000000 1 2048 16 -
solar_open half 1000000 1 4096 64 128
stablelm half 10000 0.25 2560 32 -
starcoder2 half 10000 1 3072 24 -
t5_gemma_module half 10000 1 2304 8 256
t5gemma2_text half 1000000 1 2304 8 256
unlimited_ocr_text half 10000 1 1280 10 -
vaultgemma half 10000 1 2304 8 256
voxtral_realtime_text half 10000 1 4096 32 -
youtu interleaved 10000 1 2048 16 64
zamba2 half 10000 1 2560 32 160
"""


def _rows(table: str) -> dict[str, RopeModel]:
    rows = {}
    for line in table.split("\n")[1:-1]:
        name, layout, theta, fraction, hidden_size, heads, head_dim = line.split()
        rows[name] = RopeModel(
            "half" if layout == "half" else "interleaved",
            float(theta),
            float(fraction),
            int(hidden_size),
            int(heads),
            None if head_dim == "-" else int(head_dim),
        )
    return rows


ROPE_MODELS: Mapping[str, RopeModel] = _rows(_TABLE)

_GEMMA = LayerTypes("rope_theta", "rope_local_base_freq", 1e4)
_MODERNBERT = LayerTypes("global_rope_theta", "local_rope_theta", 1e4, both=True)
LAYER_TYPES: Mapping[str, LayerTypes] = {
    "gemma3_text": _GEMMA,
    "gemma3n_text": _GEMMA,
    "t5gemma2_text": _GEMMA,
    "modernbert": _MODERNBERT,
    "modernbert-decoder": _MODERNBERT,
    "olmo3": LayerTypes("rope_theta", "rope_theta", 5e5),
}

_APERTUS = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_GPT_OSS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_MISTRAL = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
_GEMMA4 = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
DEFAULT_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "apertus": _APERTUS,
    "apertus1p5_text": _APERTUS,
    "cwm": {**_APERTUS, "factor": 16.0},
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "gpt_oss": _GPT_OSS,
    "ministral3": {**_MISTRAL, "factor": 16.0, "original_max_position_embeddings": 16384},
    "mistral4": {**_MISTRAL, "factor": 128.0, "original_max_position_embeddings": 8192},
    "openai_privacy_filter": _GPT_OSS,
}
"""What takes the place of a missing `rope_scaling` or `rope_parameters`; plain RoPE elsewhere."""

GLOBAL_HEAD_DIMS: Mapping[str, int] = {"gemma4_text": 512, "gemma4_unified_text": 512}
"""head_dim of `full_attention` layers where they differ from the others."""

LATENT_STILL: Mapping[str, int] = {
    **dict.fromkeys(
        ("axk1", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "longcat_flash", "youtu"), 128
    ),
    **dict.fromkeys(("glm4_moe_lite", "glm_moe_dsa", "hy_v4", "hy_v4_vl_text"), 192),
    **dict.fromkeys(("axk2", "minicpm3", "mistral4"), 64),
}
"""`qk_nope_head_dim` of models that multiply their softmax scale by the square of YaRN's magnitude under
`mscale_all_dim`."""

STILL: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("albert", "bart", "bert", "biogpt", "camembert", "distilbert", "electra", "ernie", "gpt2"),
            *(
                "gpt_bigcode",
                "gpt_neo",
                "longformer",
                "mbart",
                "mobilebert",
                "openai-gpt",
                "opt",
                "roberta",
                "xlm-roberta",
            ),
        ),
        "learned",
    ),
    **dict.fromkeys(("m2m_100", "marian", "pegasus", "xglm"), "sinusoidal"),
    **dict.fromkeys(("longt5", "mt5", "switch_transformers", "t5", "umt5"), "t5"),
    **dict.fromkeys(("bloom", "mpt"), "alibi"),
    **dict.fromkeys(("deberta", "deberta-v2"), "deberta"),
    "xlnet": "transformer-xl",
}
"""Model types without rotation, and the encoding here that is theirs or nearest to it."""
