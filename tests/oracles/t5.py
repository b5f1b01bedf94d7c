"""T5's bucketed bias. Buckets are decided in whole numbers: no logarithm can fall on the wrong side of a border."""

from __future__ import annotations

from functools import cache

import torch
from transformers.models.t5.configuration_t5 import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from tests.oracles import hugging_face as hf
from tests.oracles.answer import Answer, Oracle, from_scores
from tests.oracles.case import Case, Domain, anything
from tests.oracles.loop import Pair, dot, loop
from tests.oracles.lucidrains import RelativePositionBias


def formula(pair: Pair) -> dict[str, float]:
    """S(m, n) = q_m.k_n + b_h[bucket(n - m)], not scaled."""
    table = pair.case.array("bias")
    row = bucket(int(pair.n - pair.m), len(table), int(pair.case.number("max_distance")), pair.case.causal)
    return {"content": pair.scale(1.0) * dot(pair.q, pair.k), "bias": float(table[row, pair.head])}


@cache
def bucket(offset: int, buckets: int, max_distance: int, causal: bool) -> int:
    """Of n - m: one for each distance below half of a direction's buckets, then by equal ratios up to max_distance."""
    first = 0
    if causal:
        distance = max(-offset, 0)
    else:
        buckets //= 2
        first = buckets if offset > 0 else 0
        distance = abs(offset)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    ratios = buckets - exact
    step = 0
    # distance >= exact (max_distance / exact)^(step / ratios), raised to the power of ratios
    while step < ratios - 1 and distance**ratios * exact ** (step + 1) >= exact**ratios * max_distance ** (step + 1):
        step += 1
    return first + exact + step


def t5_attention(case: Case) -> Answer:
    """T5Attention; a decoder where causal."""
    table = case.array("bias")
    config = T5Config(
        d_model=case.width,
        d_kv=case.head_dim,
        num_heads=case.heads,
        relative_attention_num_buckets=len(table),
        relative_attention_max_distance=int(case.number("max_distance")),
        dropout_rate=0.0,
        is_decoder=case.causal,
        attn_implementation="eager",
    )
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    hf.identity(module.q, module.k, module.v, module.o)
    module.relative_attention_bias.weight.data = hf.tensor(table)
    with torch.no_grad():
        output, _, probabilities = module.double()(hf.hidden(case), hf.additive(case))
    return hf.answer(case, probabilities, output)


def x_transformers(case: Case) -> Answer:
    """RelativePositionBias, asked for a scale of 1 (by default it undoes attention's 1 / sqrt(d_h)). Raw scores."""
    table = case.array("bias")
    module = RelativePositionBias(
        1.0, causal=case.causal, num_buckets=len(table), max_distance=int(case.number("max_distance")), heads=case.heads
    ).double()
    module.relative_attention_bias.weight.data = hf.tensor(table)
    with torch.no_grad():
        bias = module(len(case.m), len(case.n))
        x = torch.from_numpy(case.keys).transpose(1, 2)
        scores = x @ x.transpose(-1, -2) + bias
    return from_scores(case, scores.numpy())


# Libraries take the logarithm in float32; these sizes are known not to put a distance on the wrong side of a border.
PUBLISHED = {
    "max_distance": lambda rng, sizes: int(rng.choice((64, 128, 256))),
    "bias": lambda rng, sizes: rng.normal(size=(int(rng.choice((16, 32, 64))), sizes.heads)),
}
CONSECUTIVE = Domain(
    "self-attention, consecutive positions, either mask",
    self_attention=True,
    positions=("from 0", "offset", "negative"),
    longest=40,
    heads=(1, 2, 3, 4),
    head_dims=(2, 4, 8),
    parameters=PUBLISHED,
)
# A table of more rows than the distances it must tell apart has no logarithmic part, in any implementation.
WIDE = {"max_distance": lambda rng, sizes: int(rng.choice((32, 100, 128, 500)))}
ORACLES = (
    Oracle("formula, pair by pair, integer buckets", loop(formula), anything(WIDE), 200),
    Oracle("transformers T5Attention", t5_attention, CONSECUTIVE, 60),
    Oracle("x-transformers RelativePositionBias", x_transformers, CONSECUTIVE, 60),
)
