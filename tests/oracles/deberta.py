"""DeBERTa, equations 3 and 4 of He et al. 2021."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from transformers.models.deberta import modeling_deberta as v1
from transformers.models.deberta.configuration_deberta import DebertaConfig
from transformers.models.deberta_v2 import modeling_deberta_v2 as v2
from transformers.models.deberta_v2.configuration_deberta_v2 import DebertaV2Config

from tests.oracles import hugging_face as hf
from tests.oracles.answer import Answer, Oracle
from tests.oracles.case import Case, Domain, Sizes, anything
from tests.oracles.loop import Pair, Vector, dot, loop


def formula(case: Case) -> Answer:
    """[q.k + q.K^r[delta(m, n)] + k.Q^r[delta']] / sqrt(3 d_h).

    delta' is delta(n, m) in the paper and delta(m, n) in everything that was released.
    """
    k_r, q_r = _projected(case, "w_kr"), _projected(case, "w_qr")
    k = len(case.array("table")) // 2
    buckets, max_position = case.parameters["buckets"], case.parameters["max_position"]

    def bucket(r: float) -> float:
        """make_log_bucket_position of version 2, in exact steps: how far along the logarithm the distance lies."""
        half = buckets // 2
        if not buckets or abs(r) <= half:
            return r
        along = math.log(abs(r) / half) / math.log((max_position - 1) / half) * (half - 1)
        steps = round(along) if abs(along - round(along)) < 1e-9 else math.ceil(along)
        return math.copysign(half + steps, r)

    def delta(i: float, j: float) -> int:
        """Equation 3."""
        r = bucket(i - j)
        if r <= -k:
            return 0
        if r >= k:
            return 2 * k - 1
        return int(r) + k

    def terms(pair: Pair) -> dict[str, float]:
        scale = pair.scale(1 / math.sqrt(3 * len(pair.q)))
        as_paper = case.parameters["p2c_index"] == "paper"
        third = delta(pair.n, pair.m) if as_paper else delta(pair.m, pair.n)
        return {
            "content-content": scale * dot(pair.q, pair.k),
            "content-position": scale * dot(pair.q, k_r(pair.head, delta(pair.m, pair.n))),
            "position-content": scale * dot(pair.k, q_r(pair.head, third)),
        }

    return loop(terms)(case)


def _projected(case: Case, name: str) -> Callable[[int, int], Vector]:
    known: dict[tuple[int, int], Vector] = {}

    def projected(head: int, row: int) -> Vector:
        if (head, row) not in known:
            known[head, row] = case.array(name)[head] @ _row(case, row)
        return known[head, row]

    return projected


def _row(case: Case, row: int) -> Vector:
    p: Vector = case.array("table")[row]
    if not case.parameters["norm"]:
        return p
    mean = sum(p) / len(p)
    variance = sum((one - mean) ** 2 for one in p) / len(p)
    normal: Vector = (p - mean) / math.sqrt(variance + 1e-7)
    moved: Vector = normal * case.array("norm_weight") + case.array("norm_bias")
    return moved


def deberta(case: Case) -> Answer:
    """DisentangledSelfAttention of version 1."""
    config = DebertaConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        relative_attention=True,
        max_relative_positions=len(case.array("table")) // 2,
        pos_att_type=["c2p", "p2c"],
    )
    module = v1.DisentangledSelfAttention(config).eval()
    hf.identity_by_head(module.in_proj, case.heads)
    _copy(case, module.pos_proj, module.pos_q_proj)
    x = hf.hidden(case)
    with torch.no_grad():
        output, probabilities = module.double()(
            x, hf.visible(case), True, None, v1.build_relative_position(x, x), hf.tensor(case.array("table"))
        )
    return hf.answer(case, probabilities, output)


def deberta_v2(case: Case) -> Answer:
    """DisentangledSelfAttention of version 2, with or without its logarithmic buckets and its norm."""
    buckets = case.parameters["buckets"]
    config = DebertaV2Config(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        relative_attention=True,
        max_relative_positions=case.parameters["max_position"] if buckets else len(case.array("table")) // 2,
        position_buckets=buckets or -1,
        pos_att_type=["c2p", "p2c"],
    )
    module = v2.DisentangledSelfAttention(config).eval()
    hf.identity(module.query_proj, module.key_proj, module.value_proj)
    _copy(case, module.pos_key_proj, module.pos_query_proj)
    x = hf.hidden(case)
    with torch.no_grad():
        output, probabilities = module.double()(
            x,
            hf.visible(case),
            True,
            None,
            v2.build_relative_position(x, x, bucket_size=buckets or -1, max_position=config.max_relative_positions),
            hf.tensor([_row(case, row) for row in range(len(case.array("table")))]),
        )
    return hf.answer(case, probabilities, output)


def _copy(case: Case, keys: torch.nn.Linear, queries: torch.nn.Linear) -> None:
    for layer, name in ((keys, "w_kr"), (queries, "w_qr")):
        layer.weight.data = hf.tensor(case.array(name)).flatten(0, 1)
        if layer.bias is not None:
            layer.bias.data.zero_()


def _small(shape: Callable[[Sizes], tuple[int, ...]]) -> Callable[[np.random.Generator, Sizes], np.ndarray]:
    """Noise that keeps the projected vectors of the size of the content, whatever the width."""
    return lambda rng, sizes: rng.normal(size=shape(sizes)) / math.sqrt(sizes.width)


PROJECTIONS = {name: _small(lambda sizes: (sizes.heads, sizes.head_dim, sizes.width)) for name in ("w_kr", "w_qr")}
BUCKETS = 16
ANYTHING = anything(
    {
        **PROJECTIONS,
        "buckets": lambda rng, _: int(rng.choice((0, 4, 10, BUCKETS))),
        "max_position": lambda rng, _: int(rng.choice((24, 64, 512))),
    },
    "future keys, either mask, both indices; log buckets and norm, on and off",
    head_dims=(1, 2, 3, 4, 6, 8, 16),
)
CONSECUTIVE = Domain(
    "self-attention, consecutive positions, either mask, the released index",
    self_attention=True,
    positions=("from 0", "offset", "negative"),
    head_dims=(1, 2, 3, 4, 6, 8, 16),
    parameters={**PROJECTIONS, "p2c_index": "released", "buckets": 0, "norm": False},
)
VERSION_2 = replace(
    CONSECUTIVE,
    description="self-attention, consecutive positions, either mask; log buckets and norm, on and off",
    parameters={
        **PROJECTIONS,
        "p2c_index": "released",
        "buckets": lambda rng, _: int(rng.choice((0, BUCKETS))),
        "table": lambda rng, sizes: rng.normal(size=(2 * BUCKETS, sizes.width)),
        "max_position": lambda rng, _: int(rng.choice((24, 64, 512))),
    },
)
ORACLES = (
    Oracle("formula, pair by pair", formula, ANYTHING, 200),
    Oracle("transformers DisentangledSelfAttention (deberta)", deberta, CONSECUTIVE, 60),
    Oracle("transformers DisentangledSelfAttention (deberta-v2)", deberta_v2, VERSION_2, 60),
)
