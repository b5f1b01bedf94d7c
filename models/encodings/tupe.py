"""TUPE (Ke et al. 2021): content and position are correlated apart, each with its own projections."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import layer_norm

from models.encodings.card import Card, Initial, Paper, Parameter, PositionRule, Size, Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot
from models.encodings.t5 import BUCKETS, MAX_DISTANCE, bucket_bias


class TUPE(Encoding):
    """S(m, n) = [q_m.k_n + (U_q p^_m).(U_k p^_n)] / sqrt(2 d_h) + b_h[bucket(n - m)], p^ = LayerNorm(p).

    With `reset_cls` the positional part (both addends) of the first token's row is theta_1, and that of its column
    theta_2: [CLS] is no place.
    """

    card = Card(
        id="tupe",
        title="TUPE",
        summary="Positions meet positions under projections of their own, added to content's score; an optional"
        " relative bias and a reset for [CLS].",
        plain="S(m,n) = [q_m.k_n + (U_q p^_m).(U_k p^_n)]/sqrt(2 d_h) + b_h[bucket(n-m)], p^ = LayerNorm(table)",
        latex=r"S(m,n) = \frac{q_m^\top k_n + (U_q \hat p_m)^\top (U_k \hat p_n)}{\sqrt{2 d_h}} +"
        r" b_{h,\,\mathrm{bucket}(n-m)},\quad \hat p = \mathrm{LN}(p)",
        paper=Paper("Rethinking Positional Encoding in Language Pre-training", "Ke, He, Liu", 2021, "2006.15595"),
        aliases=("relative-3",),
        terms=(
            Term("content", "q_m.k_n / sqrt(2 d_h)"),
            Term("position", "(U_q p^_m).(U_k p^_n) / sqrt(2 d_h); theta_1 or theta_2 where [CLS] is reset"),
            Term("bias", "b_h[bucket(n-m)]; 0 where [CLS] is reset"),
        ),
        parameters=(
            Parameter(
                "table",
                "array",
                "one vector for each position, before the layer norm",
                shape=("positions", "width"),
                sizes={"positions": Size(default=0, minimum=1, maximum=8192)},
                initial=Initial("normal", deviation=0.02),
            ),
            Parameter(
                "norm_weight", "array", "gain of the layer norm on positions", shape=("width",), initial=Initial("ones")
            ),
            Parameter(
                "norm_bias",
                "array",
                "offset of the layer norm on positions",
                shape=("width",),
                initial=Initial("zeros"),
            ),
            Parameter(
                "u_q",
                "array",
                "U_q by head",
                shape=("heads", "head_dim", "width"),
                initial=Initial("normal", deviation=0.02),
            ),
            Parameter(
                "u_k",
                "array",
                "U_k by head",
                shape=("heads", "head_dim", "width"),
                initial=Initial("normal", deviation=0.02),
            ),
            Parameter(
                "bias",
                "array",
                "one scalar for each bucket and head (zeros for TUPE-A)",
                shape=("buckets", "heads"),
                sizes={"buckets": BUCKETS},
                initial=Initial("normal", deviation=0.02),
            ),
            MAX_DISTANCE,
            Parameter("reset_cls", "flag", "treat the token at position 0 as [CLS], which has no place", default=False),
            Parameter(
                "theta_1",
                "array",
                "positional score from [CLS] to every key",
                shape=("heads",),
                initial=Initial("normal", deviation=0.02),
            ),
            Parameter(
                "theta_2",
                "array",
                "positional score from every other query to [CLS]",
                shape=("heads",),
                initial=Initial("normal", deviation=0.02),
            ),
        ),
        conventions={
            "scale": "1/sqrt(2 head_dim) on content and on position: two terms of equal variance",
            "norm": "layer norm over the width of the position vectors, epsilon 1e-5",
            "bucket": "as T5: of n - m, and following the request's `causal`",
            "reset": "row of position 0: theta_1; column of position 0, other rows: theta_2",
        },
        positions=PositionRule(integer=True, minimum=0, rows_of="table"),
        seed_article="'How Positional Encoding Evolved' ascribes this form to the T5 paper; it is TUPE: terms 2 and 3"
        " are removed, U_q and U_k project"
        " positions, the bias is an optional addition, and both products are divided by sqrt(2 d_h).",
    )
    dims = {"scale": (), "position": ("heads", "queries", "keys"), "bias": ("heads", "queries", "keys")}

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        scale = at.scale(2)
        p_m, p_n = normed(at.query, parameters), normed(at.key, parameters)
        position = scale * dot(p_m @ parameters["u_q"].transpose(-1, -2), p_n @ parameters["u_k"].transpose(-1, -2))
        bias = bucket_bias(at, parameters["bias"], parameters["max_distance"])
        from_cls = (at.query == 0)[:, None] & parameters["reset_cls"]
        to_cls = (at.key == 0)[None, :] & parameters["reset_cls"]
        position = torch.where(to_cls, parameters["theta_2"][:, None, None], position)
        position = torch.where(from_cls, parameters["theta_1"][:, None, None], position)
        return {"scale": scale, "position": position, "bias": torch.where(from_cls | to_cls, 0.0, bias)}

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        return {"content": dot(q, k), "position": table["position"], "bias": table["bias"]}

    def scores(self, q: Heads, k: Heads, table: Tables) -> Scores:
        return dot(q, k) + (table["position"] + table["bias"])


def normed(positions: Float64[Tensor, " tokens"], parameters: Tables) -> Float[Tensor, "tokens width"]:
    """p^: the layer norm of the table's row for each position."""
    p = parameters["table"][positions.long()]
    return layer_norm(p, (p.shape[-1],), parameters["norm_weight"], parameters["norm_bias"], 1e-5)
