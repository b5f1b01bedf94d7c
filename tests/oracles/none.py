"""No encoding: scaled dot products."""

from __future__ import annotations

import torch
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertSelfAttention

from tests.oracles import hugging_face as hf
from tests.oracles.answer import Answer, Oracle
from tests.oracles.case import Case, Domain, anything
from tests.oracles.loop import Pair, dot, loop


def formula(pair: Pair) -> dict[str, float]:
    """S(m, n) = c q_m.k_n"""
    return {"content": pair.c * dot(pair.q, pair.k)}


def bert(case: Case) -> Answer:
    """BERT's attention, whose positions are in the embeddings and not here."""
    config = BertConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    module = BertSelfAttention(config).double().eval()
    hf.identity(module.query, module.key, module.value)
    with torch.no_grad():
        output, probabilities = module.double()(hf.hidden(case), hf.additive(case))[:2]
    return hf.answer(case, probabilities, output)


ORACLES = (
    Oracle("formula, pair by pair", loop(formula), anything(), 200),
    Oracle(
        "transformers BertSelfAttention",
        bert,
        Domain("self-attention, either mask", self_attention=True),
        60,
    ),
)
