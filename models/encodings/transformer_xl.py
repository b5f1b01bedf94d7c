"""Transformer-XL (Dai et al. 2019): the four-term expansion with relative sinusoids and two learned query vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from models.encodings.card import Card, Initial, Invariants, Paper, Parameter, Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot


class TransformerXL(Encoding):
    """S(m, n) = c [(q_m + u).k_n + (q_m + v).W R_{m-n}], R_r = [sin(r w) | cos(r w)], w_i = 10000^(-2i/d).

    By angle addition, with a = W^T (q + v) split into the halves a_s and a_c that meet sines and cosines,

        a.R_{m-n} = sum_i [a_s sin(m w) + a_c cos(m w)] cos(n w) + [a_c sin(m w) - a_s cos(m w)] sin(n w),

    so a term of all pairs is one matrix product: no [queries, keys, d] array, no gather, past and future keys and
    fractional positions alike.
    """

    card = Card(
        id="transformer-xl",
        title="Transformer-XL",
        summary="The four-term expansion made relative: sinusoids of m - n under their own key projection, and u, v"
        " in place of the query's position.",
        plain="S(m,n) = c [q_m.k_n + q_m.(W R_{m-n}) + u.k_n + v.(W R_{m-n})], R_r = [sin(r w) | cos(r w)], w_i ="
        " 10000^(-2i/d)",
        latex=r"S(m,n) = \frac{q_m^\top k_n + q_m^\top \tilde W_k R_{m-n} + u^\top k_n + v^\top \tilde W_k"
        r" R_{m-n}}{\sqrt{d_h}}",
        paper=Paper(
            "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context", "Dai et al.", 2019, "1901.02860"
        ),
        aliases=("relative-1",),
        terms=(
            Term("content-content", "c q_m.k_n"),
            Term("content-position", "c q_m.(W R_{m-n})"),
            Term("bias-content", "c u.k_n: a global bias toward the key's content"),
            Term("bias-position", "c v.(W R_{m-n}): a global bias toward the distance"),
        ),
        parameters=(
            Parameter(
                "u",
                "array",
                "the vector that meets keys' content",
                shape=("heads", "head_dim"),
                initial=Initial("normal", deviation=0.02),
            ),
            Parameter(
                "v",
                "array",
                "the vector that meets distances",
                shape=("heads", "head_dim"),
                initial=Initial("normal", deviation=0.02),
            ),
            Parameter(
                "w",
                "array",
                "W~_k, the key projection of relative sinusoids, by head",
                shape=("heads", "head_dim", "width"),
                initial=Initial("normal", deviation=0.02),
            ),
        ),
        conventions={
            "scale": "c = 1/sqrt(head_dim)",
            "distance": "r = m - n: positive for past keys; future keys have negative r, with their own sinusoid",
            "layout": "R_r is [all sines | all cosines], of the embeddings' width d",
            "u and v": "live in head space, one of each for every head",
        },
        invariants=Invariants(shift=True, toeplitz=True),
        even_width=True,
        seed_article="'How Positional Encoding Evolved' calls this Shaw et al. 2018 and writes u^T W_q^T W_k x_n; it"
        " is Transformer-XL,"
        " u and v live in head space (u^T k_n, v^T W~_k R_{m-n}), and W~_k stays in both positional terms.",
    )
    dims = {
        "scale": (),
        "query_sin": ("queries", "waves"),
        "query_cos": ("queries", "waves"),
        "key_sin": ("keys", "waves"),
        "key_cos": ("keys", "waves"),
        "u": ("heads", "head_dim"),
        "v": ("heads", "head_dim"),
        "w": ("heads", "head_dim", "width"),
    }

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        waves = parameters["w"].shape[-1] // 2
        w = 10000.0 ** (-torch.arange(waves, dtype=torch.float64) / waves)
        m, n = at.query[:, None] * w, at.key[:, None] * w
        return {
            "scale": at.scale(),
            "query_sin": m.sin().to(at.dtype),
            "query_cos": m.cos().to(at.dtype),
            "key_sin": n.sin().to(at.dtype),
            "key_cos": n.cos().to(at.dtype),
            "u": parameters["u"],
            "v": parameters["v"],
            "w": parameters["w"],
        }

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        u, v = table["scale"] * table["u"][:, None, :], table["scale"] * table["v"][:, None, :]
        return {
            "content-content": dot(q, k),
            "content-position": self.distance(q, table),
            "bias-content": dot(u, k),
            "bias-position": self.distance(v, table),
        }

    def scores(self, q: Heads, k: Heads, table: Tables) -> Scores:
        u, v = table["scale"] * table["u"][:, None, :], table["scale"] * table["v"][:, None, :]
        return dot(q + u, k) + self.distance(q + v, table)

    def distance(self, a: Tensor, table: Tables) -> Scores:
        """a.(W R_{m-n}) for every pair; a is [.., heads, queries or 1, head_dim]."""
        a = a @ table["w"]
        waves = a.shape[-1] // 2
        a_s, a_c = a[..., :waves], a[..., waves:]
        sin_m, cos_m = table["query_sin"], table["query_cos"]
        waves_m = torch.cat([a_s * sin_m + a_c * cos_m, a_c * sin_m - a_s * cos_m], dim=-1)
        waves_n = torch.cat([table["key_cos"], table["key_sin"]], dim=-1)
        return dot(waves_m, waves_n)
