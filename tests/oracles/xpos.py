"""xPos (Sun et al. 2022, section 3), in complex numbers."""

from __future__ import annotations

import cmath
import math
from typing import Any

import torch
from rotary_embedding_torch import RotaryEmbedding

from tests.oracles.answer import Answer, Oracle, from_scores
from tests.oracles.case import Case, anything, log_uniform
from tests.oracles.loop import Pair, dot, loop
from tests.oracles.lucidrains import RotaryEmbedding as XRotaryEmbedding
from tests.oracles.lucidrains import apply_rotary_pos_emb
from tests.oracles.rope import BANDS, EVERYTHING, PARAMETERS, PARTIAL, complex_pairs, geometric, library, pair_count


def formula(pair: Pair) -> dict[str, float]:
    """c sum_i zeta_i^((m - n) / B) Re(q_i conj(k_i) e^{i (m - n) theta_i}), zeta_i = (2i/D + gamma) / (1 + gamma)"""
    case, r = pair.case, pair.m - pair.n
    count, gamma = pair_count(case), case.number("gamma")
    q, k = complex_pairs(pair.q, count, case), complex_pairs(pair.k, count, case)
    sums = dict.fromkeys(BANDS, 0.0)
    for i, theta in enumerate(geometric(case, case.number("theta"))):
        zeta = (2 * i / (2 * count) + gamma) / (1 + gamma)
        turned = q[i] * k[i].conjugate() * cmath.exp(1j * r * theta)
        sums[BANDS[3 * i // count]] += pair.c * zeta ** (r / case.number("scale_base")) * turned.real
    sums["unrotated"] = pair.c * dot(pair.q[2 * count :], pair.k[2 * count :])
    return sums


def rotary_embedding_torch(case: Case) -> Answer:
    """RotaryEmbedding(use_xpos): raw scores."""
    module = RotaryEmbedding(
        2 * pair_count(case),
        theta=case.number("theta"),
        use_xpos=True,
        xpos_scale_base=case.number("scale_base"),
        cache_if_possible=False,
    ).double()
    x = torch.from_numpy(case.keys).transpose(1, 2)
    with torch.no_grad():
        q, k = module.rotate_queries_and_keys(x, x)
    return from_scores(case, (q @ k.transpose(-1, -2) / math.sqrt(case.head_dim)).numpy())


def x_transformers(case: Case) -> Answer:
    """RotaryEmbedding(use_xpos), its scale on q and the inverse on k: raw scores."""
    module = XRotaryEmbedding(
        2 * pair_count(case), use_xpos=True, scale_base=case.number("scale_base"), base=case.number("theta")
    ).double()
    x = torch.from_numpy(case.keys).transpose(1, 2)
    with torch.no_grad():
        angles, scale = module(torch.from_numpy(case.n))
        q, k = (apply_rotary_pos_emb(x, angles, factor) for factor in (scale, scale**-1))
    return from_scores(case, (q @ k.transpose(-1, -2) / math.sqrt(case.head_dim)).numpy())


GAMMA = {"gamma": log_uniform(0.05, 4), "scale_base": log_uniform(64, 2048)}
LIBRARY: dict[str, Any] = {**PARTIAL, **GAMMA, "gamma": 0.4, "layout": "interleaved"}
DOMAIN = library("interleaved, part of each head, gamma 0.4", parameters=LIBRARY, head_dims=(16, 32, 64))
ORACLES = (
    Oracle("formula, pair by pair, complex numbers", loop(formula), anything({**PARAMETERS, **GAMMA}, EVERYTHING), 200),
    Oracle("rotary-embedding-torch RotaryEmbedding (xpos)", rotary_embedding_torch, DOMAIN, 60),
    Oracle("x-transformers RotaryEmbedding (xpos)", x_transformers, DOMAIN, 60),
)
