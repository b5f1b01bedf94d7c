"""Shaw et al. 2018, equations 3 to 5."""

from __future__ import annotations

import numpy as np
import torch
from transformers.models.wav2vec2_bert.configuration_wav2vec2_bert import Wav2Vec2BertConfig
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

from tests.oracles import hugging_face as hf
from tests.oracles.answer import Answer, Oracle
from tests.oracles.case import Case, Domain, anything
from tests.oracles.loop import Pair, Vector, dot, loop


def formula(pair: Pair) -> dict[str, float]:
    """e_ij = x_i W_q (x_j W_k + a^K_ij) / sqrt(d_z), a^K_ij = w^K_clip(j - i, k)"""
    return {
        "content": pair.c * dot(pair.q, pair.k),
        "position": pair.c * dot(pair.q, _clipped(pair, "keys")),
    }


def value(pair: Pair) -> Vector:
    """z_i = sum_j alpha_ij (x_j W_v + a^V_ij)"""
    taken: Vector = pair.k + _clipped(pair, "values")
    return taken


def _clipped(pair: Pair, table: str) -> Vector:
    rows = pair.case.array(table)
    k = (len(rows) - 1) // 2
    row: Vector = rows[int(max(-k, min(k, pair.n - pair.m))) + k]
    return row


def wav2vec2_bert(case: Case) -> Answer:
    """`relative_key`; it has no vectors for values."""
    table = case.array("keys")
    config = Wav2Vec2BertConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        attention_dropout=0.0,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=len(table) // 2,
        right_max_position_embeddings=len(table) // 2,
        attn_implementation="eager",
    )
    module = Wav2Vec2BertSelfAttention(config).eval()
    hf.identity(module.linear_q, module.linear_k, module.linear_v, module.linear_out)
    module.distance_embedding.weight.data = hf.tensor(table)
    with torch.no_grad():
        output, probabilities = module.double()(hf.hidden(case), hf.additive(case))
    return hf.answer(case, probabilities, output)


ORACLES = (
    Oracle("formula, pair by pair", loop(formula, value), anything(), 200),
    Oracle(
        "transformers Wav2Vec2BertSelfAttention (relative_key)",
        wav2vec2_bert,
        Domain(
            "self-attention, consecutive positions, either mask, no vectors for values",
            self_attention=True,
            positions=("from 0", "offset", "negative"),
            parameters={"values": lambda rng, sizes: np.zeros((3, sizes.head_dim))},
        ),
        60,
    ),
)
