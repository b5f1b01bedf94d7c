"""Transformer-XL, section 3.3 of Dai et al. 2019."""

from __future__ import annotations

import math

import numpy as np
import torch
from transformers.models.wav2vec2_bert.configuration_wav2vec2_bert import Wav2Vec2BertConfig
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import (
    Wav2Vec2BertRelPositionalEmbedding,
    Wav2Vec2BertSelfAttention,
)
from transformers.models.xlnet.configuration_xlnet import XLNetConfig
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from tests.oracles import hugging_face as hf
from tests.oracles.answer import Answer, Oracle
from tests.oracles.case import Case, Domain, anything
from tests.oracles.loop import Pair, dot, loop


def formula(pair: Pair) -> dict[str, float]:
    """A = q.k + q.(W R_{i-j}) + u.k + v.(W R_{i-j}), times c; R_r = [sin(r w) | cos(r w)], w_i = 10000^(-2i/d)."""
    d, r = pair.case.width, pair.m - pair.n
    w = [10000 ** (-2 * i / d) for i in range(d // 2)]
    waves = np.array([math.sin(r * w_i) for w_i in w] + [math.cos(r * w_i) for w_i in w])
    distance = pair.case.array("w")[pair.head] @ waves
    return {
        "content-content": pair.c * dot(pair.q, pair.k),
        "content-position": pair.c * dot(pair.q, distance),
        "bias-content": pair.c * dot(pair.case.array("u")[pair.head], pair.k),
        "bias-position": pair.c * dot(pair.case.array("v")[pair.head], distance),
    }


def xlnet(case: Case) -> Answer:
    """XLNetRelativeAttention; its output is inside a residual and a norm, so ours is made of its weights."""
    config = XLNetConfig(
        d_model=case.width, n_head=case.heads, d_inner=4, n_layer=0, vocab_size=1, dropout=0.0, attn_type="bi"
    )
    module = XLNetRelativeAttention(config).double().eval()
    eye = torch.eye(case.width, dtype=torch.float64).reshape(case.width, case.heads, case.head_dim)
    for weight in (module.q, module.k, module.v, module.o):
        weight.data = eye
    module.r.data = hf.tensor(case.array("w")).permute(2, 0, 1).contiguous()
    module.r_w_bias.data, module.r_r_bias.data = hf.tensor(case.array("u")), hf.tensor(case.array("v"))
    tokens = case.keys.shape[1]
    r = XLNetModel(config).relative_positional_encoding(tokens, tokens, bsz=case.keys.shape[0])
    masked = (~hf.visible(case)).double().permute(2, 3, 0, 1)
    with torch.no_grad():
        _, _, probabilities = module(
            hf.hidden(case).transpose(0, 1), None, masked, None, r.double(), None, output_attentions=True
        )
    probabilities = probabilities.permute(2, 3, 0, 1)
    output = torch.einsum("bhmn,bnhd->bmhd", probabilities, torch.from_numpy(case.keys))
    return hf.answer(case, probabilities, output)


def wav2vec2_bert(case: Case) -> Answer:
    """`relative`, whose R interleaves sines and cosines: our W~ with its columns dealt out accordingly."""
    config = Wav2Vec2BertConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        attention_dropout=0.0,
        position_embeddings_type="relative",
        max_source_positions=case.keys.shape[1],
        attn_implementation="eager",
    )
    module = Wav2Vec2BertSelfAttention(config).eval()
    hf.identity(module.linear_q, module.linear_k, module.linear_v, module.linear_out)
    w = hf.tensor(case.array("w")).flatten(0, 1)
    sines, cosines = w.chunk(2, dim=-1)
    module.linear_pos.weight.data = torch.stack([sines, cosines], -1).flatten(1)
    module.pos_bias_u.data, module.pos_bias_v.data = hf.tensor(case.array("u")), hf.tensor(case.array("v"))
    x = hf.hidden(case)
    with torch.no_grad():
        r = Wav2Vec2BertRelPositionalEmbedding(config)(x)
        output, probabilities = module.double()(x, hf.additive(case), r.double())
    return hf.answer(case, probabilities, output)


# Noise that keeps W~ R of the size of the content, whatever the width.
W = {"w": lambda rng, sizes: rng.normal(size=(sizes.heads, sizes.head_dim, sizes.width)) / math.sqrt(sizes.width)}
CONSECUTIVE = Domain(
    "self-attention, consecutive positions, either mask; float32 sinusoids",
    self_attention=True,
    positions=("from 0", "offset", "negative"),
    longest=24,
    parameters=W,
)
ORACLES = (
    Oracle(
        "formula, pair by pair",
        loop(formula),
        anything(W),
        200,
    ),
    Oracle("transformers XLNetRelativeAttention", xlnet, CONSECUTIVE, 60),
    Oracle("transformers Wav2Vec2BertSelfAttention (relative)", wav2vec2_bert, CONSECUTIVE, 60),
)
