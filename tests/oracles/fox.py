"""FoX (Lin et al. 2025), equations 2 to 4: forget gates between query and key."""

from __future__ import annotations

import math

import torch
from scipy.linalg import block_diag

from tests.oracles.answer import Answer, Oracle, from_visible_scores
from tests.oracles.case import Case, Domain, anything
from tests.oracles.loop import Pair, dot, loop
from tests.oracles.lucidrains import DataDependentAlibi


def formula(pair: Pair) -> dict[str, float]:
    """c q.k + sum of ln f_l over n < l <= m, f_l = sigmoid(w_f.x_l + b_f)"""
    w, b = pair.case.array("w_f")[pair.head], float(pair.case.array("b_f")[pair.head])
    between = [pair.case.keys[pair.member, t, pair.head] for t, at in enumerate(pair.case.n) if pair.n < at <= pair.m]
    return {
        "content": pair.c * dot(pair.q, pair.k),
        "forgetting": -math.fsum(math.log1p(math.exp(-(dot(w, x) + b))) for x in between),
    }


def x_transformers(case: Case) -> Answer:
    """DataDependentAlibi, its gates given one block of the input for each head."""
    module = DataDependentAlibi(case.width, case.heads).double()
    linear = module.to_forget_gates[0]
    linear.weight.data = torch.from_numpy(block_diag(*case.array("w_f")))
    linear.bias.data = torch.from_numpy(case.array("b_f"))
    x = torch.from_numpy(case.keys)
    with torch.no_grad():
        forgetting = module(x.flatten(2))
        x = x.transpose(1, 2)
        scores = x @ x.transpose(-1, -2) / math.sqrt(case.head_dim) + forgetting
    return from_visible_scores(case, scores.numpy())


ORACLES = (
    Oracle("formula, pair by pair", loop(formula), anything(but="future keys"), 200),
    Oracle(
        "x-transformers DataDependentAlibi",
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
