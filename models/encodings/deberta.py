"""DeBERTa (He et al. 2021): disentangled attention between content and relative position."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import layer_norm

from models.encodings.card import Card, Initial, Invariants, Paper, Parameter, PositionRule, Size, Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot, pick, whole


class DeBERTa(Encoding):
    """S(m, n) = [q_m.k_n + q_m.K_r[delta(m, n)] + k_n.Q_r[delta'(m, n)]] / sqrt(3 d_h), K_r = W_{k,r} P,
    Q_r = W_{q,r} P.

    delta(m, n) = clip(m - n, -k, k - 1) + k for a table P of 2k rows. The paper writes delta(n, m) in the third term;
    all released checkpoints use delta(m, n) for both.

    Versions 2 and 3 normalise P, and with `buckets` give far distances a logarithmic bucket before they are clipped:
    with h = buckets / 2, a distance beyond h becomes sign(r) (h + ceil((h - 1) ln(|r|/h) / ln((max_position - 1)/h))).
    """

    card = Card(
        id="deberta",
        title="DeBERTa disentangled attention",
        summary="Content meets relative position in both directions, under projections of their own; position never"
        " meets position.",
        plain="S(m,n) = [q_m.k_n + q_m.K_r[delta(m,n)] + k_n.Q_r[delta(m,n)]]/sqrt(3 d_h), delta = clip(m-n, -k, k-1)"
        " + k",
        latex=r"S(m,n) = \frac{q_m^\top k_n + q_m^\top K^r_{\delta(m,n)} + k_n^\top Q^r_{\delta(m,n)}}{\sqrt{3"
        r" d_h}},\quad"
        r" \delta(m,n) = \mathrm{clip}(m-n,\,-k,\,k-1) + k",
        paper=Paper(
            "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", "He, Liu, Gao, Chen", 2021, "2006.03654"
        ),
        aliases=("relative-4",),
        terms=(
            Term("content-content", "q_m.k_n / sqrt(3 d_h)"),
            Term("content-position", "q_m.K_r[delta(m,n)] / sqrt(3 d_h)"),
            Term("position-content", "k_n.Q_r[delta(m,n)] / sqrt(3 d_h)"),
        ),
        parameters=(
            Parameter(
                "table",
                "array",
                "P: one vector for each clipped distance, 2k rows",
                shape=("distances", "width"),
                sizes={"distances": Size(default=1024, minimum=2, maximum=8192, multiple=2)},
                initial=Initial("normal", deviation=0.02),
            ),
            Parameter(
                "w_kr",
                "array",
                "W_{k,r} by head",
                shape=("heads", "head_dim", "width"),
                initial=Initial("normal", deviation=0.02),
            ),
            Parameter(
                "w_qr",
                "array",
                "W_{q,r} by head",
                shape=("heads", "head_dim", "width"),
                initial=Initial("normal", deviation=0.02),
            ),
            Parameter(
                "p2c_index",
                "choice",
                "which distance the third term reads: delta(m,n) as every released checkpoint, or delta(n,m) as the"
                " paper's equation",
                choices=("released", "paper"),
                default="released",
            ),
            Parameter(
                "buckets",
                "integer",
                "position_buckets of versions 2 and 3: distances beyond half of it are bucketed; 0 for none",
                default=0,
                minimum=0,
                maximum=8192,
            ),
            Parameter(
                "max_position",
                "integer",
                "the distance that gets the last bucket (max_relative_positions)",
                default=512,
                minimum=2,
                maximum=10**9,
            ),
            Parameter(
                "norm", "flag", "layer norm on P before it is projected, as versions 2 and 3 have", default=False
            ),
            Parameter("norm_weight", "array", "gain of that norm", shape=("width",), initial=Initial("ones")),
            Parameter("norm_bias", "array", "offset of that norm", shape=("width",), initial=Initial("zeros")),
        ),
        conventions={
            "scale": "1/sqrt(3 head_dim): the number of active terms counts",
            "index": "delta(m,n) = clip(m - n, -k, k - 1) + k",
            "p2c_index": "released: both positional terms read delta(m,n); paper: the third reads delta(n,m)",
            "buckets": "versions 2 and 3 have 256 buckets, max_position 512 and a norm (epsilon 1e-7), with 512 rows",
            "k": "512 unless the request brings a table of another number of rows, 2k",
        },
        positions=PositionRule(integer=True),
        invariants=Invariants(shift=True, toeplitz=True, far_share=True),
        seed_article="'How Positional Encoding Evolved' writes p~_{m-n} with the content projections in the third"
        " term; DeBERTa has separate W_{q,r} and"
        " W_{k,r}, a clipped learned table, and divides by sqrt(3 d_h).",
    )
    dims = {
        "scale": (),
        "keys": ("heads", "distances", "head_dim"),
        "queries": ("heads", "distances", "head_dim"),
        "c2p_index": ("queries", "keys"),
        "p2c_index": ("keys", "queries"),
    }

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        p = parameters["table"]
        p = torch.where(parameters["norm"], normed(p, parameters), p)
        r = torch.where(parameters["buckets"] > 0, log_bucket(at.r, parameters), at.r)
        paper = parameters["p2c_index"] == 1
        return {
            "scale": at.scale(3),
            "keys": p @ parameters["w_kr"].transpose(-1, -2),
            "queries": p @ parameters["w_qr"].transpose(-1, -2),
            "c2p_index": delta(r, p.shape[0]),
            "p2c_index": delta(torch.where(paper, -r, r), p.shape[0]).transpose(0, 1).contiguous(),
        }

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        return {
            "content-content": dot(q, k),
            "content-position": pick(dot(q, table["keys"]), table["c2p_index"]),
            "position-content": pick(dot(table["scale"] * k, table["queries"]), table["p2c_index"]).transpose(-1, -2),
        }


def normed(p: Float[Tensor, "distances width"], parameters: Tables) -> Float[Tensor, "distances width"]:
    """The layer norm of versions 2 and 3."""
    return layer_norm(p, (p.shape[-1],), parameters["norm_weight"], parameters["norm_bias"], 1e-7)


def log_bucket(r: Float64[Tensor, "queries keys"], parameters: Tables) -> Float64[Tensor, "queries keys"]:
    """r up to half the buckets, then sign(r) times a bucket that grows with the logarithm of the distance."""
    half = torch.floor(parameters["buckets"].double() / 2).clamp(min=1)
    furthest = torch.maximum(parameters["max_position"].double() - 1, half + 1)
    share = torch.log(r.abs().clamp(min=1) / half) / torch.log(furthest / half)
    far = half - whole(-share * (half - 1))
    return torch.where(r.abs() <= half, r, r.sign() * far)


def delta(r: Tensor, rows: int) -> Tensor:
    """clip(r, -k, k - 1) + k for a table of 2k rows, int64."""
    k = rows // 2
    return r.clamp(-k, k - 1).long() + k
