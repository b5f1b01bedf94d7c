"""CoPE (Golovneva et al. 2024), equations 3 to 5: a position is a sum of gates."""

from __future__ import annotations

import math

import torch

from tests.oracles.answer import Answer, Oracle, from_visible_scores
from tests.oracles.case import Case, Domain, anything
from tests.oracles.loop import Pair, dot, loop
from tests.oracles.lucidrains import CoPE


def formula(pair: Pair) -> dict[str, float]:
    """c q.(k + e[p]), p = min(sum of sigmoid(c q.k_t) over n <= t <= m, N), q.e linear between rows."""
    e = pair.case.array("e")
    between = [pair.case.keys[pair.member, t, pair.head] for t, at in enumerate(pair.case.n) if pair.n <= at <= pair.m]
    p = min(math.fsum(1 / (1 + math.exp(-pair.c * dot(pair.q, k))) for k in between), len(e) - 1)
    below, above = math.floor(p), math.ceil(p)
    z = (1 - (p - below)) * dot(pair.q, e[below]) + (p - below) * dot(pair.q, e[above])
    return {"content": pair.c * dot(pair.q, pair.k), "position": pair.c * z}


def x_transformers(case: Case) -> Answer:
    """CoPE, given the scaled scores with future keys at -infinity, whose gates are then 0."""
    e = case.array("e")
    module = CoPE(case.head_dim, case.heads, len(e)).double()
    module.pos_emb.data = torch.from_numpy(e)
    x = torch.from_numpy(case.keys).transpose(1, 2)
    q = x / math.sqrt(case.head_dim)
    past = torch.from_numpy(case.n[None, :] <= case.m[:, None])
    with torch.no_grad():
        content = q @ x.transpose(-1, -2)
        gated = content.masked_fill(~past, -torch.inf)
        position = module(q, gated)
    return from_visible_scores(case, (content + position).numpy())


ORACLES = (
    Oracle("formula, pair by pair", loop(formula), anything(but="future keys"), 200),
    Oracle(
        "x-transformers CoPE",
        x_transformers,
        Domain(
            "causal self-attention, consecutive positions",
            self_attention=True,
            positions=("from 0", "offset", "negative"),
            longest=24,
        ),
        60,
    ),
)
