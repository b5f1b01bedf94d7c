"""CoPE (Golovneva et al. 2024): positions that count what the query finds worth counting."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from models.encodings.card import Card, Initial, Invariants, Paper, Parameter, Size, Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot


class CoPE(Encoding):
    """S(m, n) = c q_m.(k_n + e[p_mn]), p_mn = min(sum_{t: n <= t <= m} g_mt, N), g_mt = sigmoid(c q_m.k_t).

    t runs over the positions of the keys; e has the rows 0 .. N, and between two rows q.e is interpolated.
    """

    card = Card(
        id="cope",
        title="CoPE: contextual position encoding",
        summary="The distance to a key is the sum of the gates of the tokens in between, and gates depend on query and"
        " key: a head may count words, sentences or mentions instead of tokens.",
        plain="S(m,n) = c q_m.(k_n + e[p_mn]), p_mn = min(sum of g_mt over keys t with n <= t <= m, N),"
        " g_mt = sigmoid(c q_m.k_t)",
        latex=r"S(m,n) = \frac{q_m^\top\left(k_n + e_{p_{mn}}\right)}{\sqrt{d_h}},\quad p_{mn} ="
        r" \min\left(\sum_{t=n}^{m}\sigma\left(\frac{q_m^\top k_t}{\sqrt{d_h}}\right),\,N\right)",
        paper=Paper(
            "Contextual Position Encoding: Learning to Count What's Important",
            "Golovneva, Wang, Weston, Sukhbaatar",
            2024,
            "2405.18719",
        ),
        terms=(Term("content", "c q_m.k_n"), Term("position", "c q_m.e[p_mn]")),
        parameters=(
            Parameter(
                "e",
                "array",
                "one vector for each whole position 0 .. N, shared by the heads; N + 1 rows",
                shape=("rows", "head_dim"),
                sizes={"rows": Size(default=65, minimum=2, maximum=16_385)},
                initial=Initial("normal", deviation=1.0),
            ),
        ),
        conventions={
            "scale": "c = 1/sqrt(head_dim) on both terms, as in the released code; the paper's listing does not scale"
            " q.e: bring e times sqrt(head_dim) for it",
            "gates": "sigmoid of the scaled product c q.k, as in the released code and the listing",
            "position": "includes the gates of the key itself and of the query's own token; future keys have p = 0",
            "order": "by the keys' positions, not by the order they are sent in; keys at one position count together",
            "mask": "gates of masked keys count as well: only positions decide what lies between",
            "interpolation": "linear between q.e at floor(p) and at ceil(p)",
            "e": "N = 64 and N(0, 1) unless the request brings a trained table; training starts from zeros, which would"
            " score as no encoding at all",
        },
        invariants=Invariants(shift=True),
        causal="required",
    )
    dims = {
        "scale": (),
        "e": ("rows", "head_dim"),
        "order": ("keys",),
        "past": ("keys", "queries"),
        "last": ("keys",),
    }

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        order, last = ordered(at.key, descending=True)
        return {
            "scale": at.scale(),
            "e": parameters["e"],
            "order": order,
            "past": (at.key[order][:, None] <= at.query).to(at.dtype),
            "last": last,
        }

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        # Keys come before queries: the CPU's sums and gathers over rows take a fifth of those within rows.
        g = torch.sigmoid(dot(k.index_select(-2, table["order"]), q)) * table["past"]
        # In float64: thousands of gates summed in float32 would move a key by a hundredth of a position.
        p = g.double().cumsum(-2).index_select(-2, table["last"]).clamp(max=table["e"].shape[0] - 1)
        index = p.long()
        share = (p - index).to(q.dtype)
        e_q = dot(table["e"], q)
        step = pad(e_q[..., 1:, :] - e_q[..., :-1, :], (0, 0, 0, 1))
        position = e_q.gather(-2, index) + share * step.gather(-2, index)
        return {"content": dot(q, k), "position": position.transpose(-1, -2)}


def ordered(
    positions: Float64[Tensor, " tokens"], descending: bool = False
) -> tuple[Int64[Tensor, " tokens"], Int64[Tensor, " tokens"]]:
    """The order that sorts the tokens, and for each token the place, in that order, of the last one at its position."""
    order = positions.argsort(descending=descending)
    run = (positions[order].diff(prepend=positions[order][:1]) != 0).cumsum(0)
    size = torch.zeros_like(run).scatter_add(0, run, torch.ones_like(run))
    last = (size.cumsum(0) - 1)[run]
    return order, torch.zeros_like(order).scatter(0, order, last)
