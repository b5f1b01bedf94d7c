"""ALiBi (Press et al. 2022), with the slopes of its released code."""

from __future__ import annotations

import math

import torch
from transformers.models.bloom.configuration_bloom import BloomConfig
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor
from transformers.models.mpt.configuration_mpt import MptConfig
from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor

from tests.oracles import hugging_face as hf
from tests.oracles.answer import Answer, Oracle, from_scores
from tests.oracles.case import Case, Domain, anything
from tests.oracles.loop import Pair, dot, loop
from tests.oracles.lucidrains import AlibiPositionalBias


def formula(pair: Pair) -> dict[str, float]:
    """c q.k - s_h (m - n), or - s_h |m - n| where both directions are seen."""
    r = pair.m - pair.n
    return {
        "content": pair.c * dot(pair.q, pair.k),
        "bias": -slopes(pair.case.heads)[pair.head] * (r if pair.case.causal else abs(r)),
    }


def slopes(heads: int) -> list[float]:
    """The released `get_slopes`: a geometric sequence, or parts of two where the heads are no power of two."""
    if heads & (heads - 1) == 0:
        return [2 ** (-8 * h / heads) for h in range(1, heads + 1)]
    below = 1
    while 2 * below < heads:
        below *= 2
    return slopes(below) + slopes(2 * below)[0::2][: heads - below]


def bloom(case: Case) -> Answer:
    """BloomAttention, whose bias s_h n differs from -s_h (m - n) by a constant of the row."""
    config = BloomConfig(hidden_size=case.width, n_head=case.heads, hidden_dropout=0.0, attention_dropout=0.0)
    module = BloomAttention(config, layer_idx=0).eval()
    hf.identity_by_head(module.query_key_value, case.heads)
    hf.identity(module.dense)
    x = hf.hidden(case)
    alibi = build_alibi_tensor(torch.ones(x.shape[:2]), case.heads, torch.float64)
    with torch.no_grad():
        output, probabilities = module.double()(
            x, torch.zeros_like(x), alibi, hf.additive(case), output_attentions=True
        )
    return hf.answer(case, probabilities, output)


def mpt(case: Case) -> Answer:
    """MptAttention, with slopes of its own making for a number of heads that is no power of two."""
    config = MptConfig(d_model=case.width, n_heads=case.heads)
    module = MptAttention(config, layer_idx=0).eval()
    hf.identity(module.Wqkv, module.out_proj)
    bias = build_mpt_alibi_tensor(case.heads, case.keys.shape[1])
    with torch.no_grad():
        output, probabilities = module.double()(hf.hidden(case), bias.double(), attention_mask=~hf.visible(case))
    return hf.answer(case, probabilities, output)


def x_transformers(case: Case) -> Answer:
    """AlibiPositionalBias, bidirectional. Raw scores."""
    module = AlibiPositionalBias(case.heads).double()
    with torch.no_grad():
        bias = module.forward_custom_pos(torch.from_numpy(case.m), torch.from_numpy(case.n))
        q, k = (torch.from_numpy(x).transpose(1, 2) for x in (case.queries, case.keys))
        scores = q @ k.transpose(-1, -2) / math.sqrt(case.head_dim) + bias
    return from_scores(case, scores.numpy())


CAUSAL = Domain(
    "causal self-attention, consecutive positions; float32 softmax",
    self_attention=True,
    positions=("from 0", "offset", "negative"),
    causal=True,
)
ORACLES = (
    Oracle("formula, pair by pair", loop(formula), anything(), 200),
    Oracle("transformers BloomAttention", bloom, CAUSAL, 60),
    Oracle("transformers MptAttention", mpt, CAUSAL, 60),
    Oracle(
        "x-transformers AlibiPositionalBias",
        x_transformers,
        Domain("any queries, keys and positions; not causal; float32 slopes", causal=False),
        60,
    ),
)
