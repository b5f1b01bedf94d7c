"""T5 (Raffel et al. 2020): one learned scalar for each bucket of distances and head."""

from __future__ import annotations

import torch
from torch import Tensor

from models.encodings.card import Card, Initial, Invariants, Paper, Parameter, PositionRule, Size, Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot, whole

BUCKETS = Size(default=32, minimum=4, maximum=4096, multiple=4)
MAX_DISTANCE = Parameter(
    "max_distance",
    "integer",
    "distances from here on share the last bucket, at least those beyond half of one direction's buckets",
    default=128,
    minimum=8,
    maximum=10**9,
)


class T5(Encoding):
    """S(m, n) = q_m.k_n + bias[bucket(n - m), h]; no scale."""

    card = Card(
        id="t5",
        title="T5 relative bias",
        summary="A learned scalar for each head and bucket of distances is added to q.k; near distances have their"
        " own bucket, far ones share.",
        plain="S(m,n) = q_m.k_n + b_h[bucket(n-m)]",
        latex=r"S(m,n) = q_m^\top k_n + b_{h,\,\mathrm{bucket}(n-m)}",
        paper=Paper(
            "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
            "Raffel et al.",
            2020,
            "1910.10683",
        ),
        aliases=("relative-2",),
        terms=(Term("content", "q_m.k_n"), Term("bias", "b_h[bucket(n-m)]")),
        parameters=(
            Parameter(
                "bias",
                "array",
                "one scalar for each bucket and head; the number of rows is the number of buckets",
                shape=("buckets", "heads"),
                sizes={"buckets": BUCKETS},
                initial=Initial("normal", deviation=1.0),
            ),
            MAX_DISTANCE,
        ),
        conventions={
            "scale": "1: T5 does not divide by sqrt(head_dim)",
            "bucket": "of n - m: bidirectional, half the buckets for past and half for future keys; causal, all for"
            " the past",
            "causal": "the bucket function follows the request's `causal`",
            "bias": "N(0, 1) unless the request brings a trained table: what T5 looks like untrained",
        },
        positions=PositionRule(integer=True),
        invariants=Invariants(shift=True, toeplitz=True, far_share=True),
        seed_article="'How Positional Encoding Evolved' says the last three terms 'didn't contribute'; T5 simply adds"
        " one learned scalar for each"
        " (bucket, head), and does not divide by sqrt(d_h).",
    )
    dims = {"scale": (), "bias": ("heads", "queries", "keys")}

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        return {
            "scale": at.or_given(torch.ones((), dtype=torch.float64)),
            "bias": bucket_bias(at, parameters["bias"], parameters["max_distance"]),
        }

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        return {"content": dot(q, k), "bias": table["bias"]}


def bucket_bias(at: Positions, bias: Tensor, max_distance: Tensor) -> Tensor:
    """bias[bucket(n - m)] as [heads, queries, keys]; bias is [buckets, heads]."""
    return bias[bucket(at.r, bias.shape[0], max_distance, at.causal)].permute(2, 0, 1).contiguous()


def bucket(r: Tensor, buckets: int, max_distance: Tensor, causal: Tensor) -> Tensor:
    """The T5 bucket of each distance r = m - n, int64: exact up to half of one direction's buckets, then logarithmic.

    `whole` keeps distances that fall exactly on a border (16 of 128, say) in the upper bucket, where exact arithmetic
    puts them, whatever the last bit of the logarithm is.
    """
    directed = torch.where(causal, buckets, buckets // 2)
    distance = torch.where(causal, r.clamp(min=0), r.abs())
    exact = torch.floor(directed.double() / 2)
    furthest = torch.maximum(max_distance.double(), exact + 1)
    log_share = torch.log(distance.clamp(min=1) / exact) / torch.log(furthest / exact)
    far = exact + whole(log_share * (directed - exact))
    index = torch.where(distance < exact, torch.floor(distance), torch.minimum(far, directed.double() - 1))
    future = torch.where(causal, torch.zeros_like(r), (r < 0) * directed.double())
    return (index + future).long()
