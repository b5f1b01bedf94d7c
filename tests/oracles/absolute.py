"""Encodings that add a vector p to the embedding: integer, sinusoidal, learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Model
from transformers.models.speecht5.modeling_speecht5 import SpeechT5ScaledPositionalEncoding

from tests.oracles import hugging_face as hf
from tests.oracles import none
from tests.oracles.answer import Answer, Oracle
from tests.oracles.case import Case, Domain, anything
from tests.oracles.loop import Pair, Vector, dot, loop

Position = Callable[[Pair, float], Vector]


def formula(p: Position) -> Callable[[Case], Answer]:
    """S(m, n) = c (x_m + p_m).(x_n + p_n), each product of the expansion on its own; the value is x_n + p_n."""

    def terms(pair: Pair) -> dict[str, float]:
        p_m, p_n = p(pair, pair.m), p(pair, pair.n)
        return {
            "content-content": pair.c * dot(pair.q, pair.k),
            "content-position": pair.c * dot(pair.q, p_n),
            "position-content": pair.c * dot(p_m, pair.k),
            "position-position": pair.c * dot(p_m, p_n),
        }

    return loop(terms, lambda pair: pair.k + p(pair, pair.n))


def integer(pair: Pair, position: float) -> Vector:
    """The position in every component."""
    return np.full(len(pair.q), position)


def sinusoidal(pair: Pair, position: float) -> Vector:
    """This head's share of sin(pos / base^(2t/d)) at 2t, cos of the same at 2t + 1, d the whole width."""
    base, d, d_h = pair.case.number("base"), pair.case.width, len(pair.q)
    components = []
    for j in range(pair.head * d_h, (pair.head + 1) * d_h):
        angle = position / base ** (2 * (j // 2) / d)
        components.append(math.sin(angle) if j % 2 == 0 else math.cos(angle))
    return np.array(components)


def learned(pair: Pair, position: float) -> Vector:
    """This head's share of a row."""
    row: Vector = pair.case.array("table")[int(position), pair.head * len(pair.q) : (pair.head + 1) * len(pair.q)]
    return row


def speech_t5(case: Case) -> Answer:
    """SpeechT5's interleaved table (float32), then BERT's attention over x + p."""
    table = SpeechT5ScaledPositionalEncoding(0.0, case.width, case.keys.shape[1])
    return none.bert(_added(case, table(torch.zeros(1, case.keys.shape[1], case.width))))


def gpt2(case: Case) -> Answer:
    """GPT-2's `wpe` looked up, then BERT's attention over x + p."""
    table = case.array("table")
    config = GPT2Config(n_positions=len(table), n_embd=case.width, n_head=case.heads, n_layer=0, vocab_size=1)
    wpe = GPT2Model(config).double().wpe
    wpe.weight.data = hf.tensor(table)
    return none.bert(_added(case, wpe(torch.from_numpy(case.n).long())))


def _added(case: Case, p: torch.Tensor) -> Case:
    x = case.keys + p.detach().double().numpy().reshape(1, -1, case.heads, case.head_dim)
    return replace(case, queries=x, keys=x)


SELF = Domain("self-attention, either mask", self_attention=True)
INTEGER = (Oracle("formula, pair by pair", formula(integer), anything(), 200),)
SINUSOIDAL = (
    Oracle("formula, pair by pair", formula(sinusoidal), anything(), 200),
    Oracle(
        "transformers SpeechT5ScaledPositionalEncoding + BertSelfAttention",
        speech_t5,
        Domain(
            "self-attention from position 0, base 10000, even width; float32 table",
            self_attention=True,
            positions=("from 0",),
            head_dims=(2, 4, 6, 8, 16, 32, 64),
            parameters={"base": 10000.0},
        ),
        60,
    ),
)
LEARNED = (
    Oracle("formula, pair by pair", formula(learned), anything(), 200),
    Oracle("transformers GPT2Model.wpe + BertSelfAttention", gpt2, SELF, 60),
)
