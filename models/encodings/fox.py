"""FoX, the Forgetting Transformer (Lin et al. 2025): every token between query and key makes the key fade a little."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from models.encodings.card import Card, Initial, Invariants, Paper, Parameter, Term
from models.encodings.cope import ordered
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot


class FoX(Encoding):
    """S(m, n) = c q_m.k_n + sum_{l: n < l <= m} ln f_l, f_l = sigmoid(w_f.x_l + b_f), by head.

    l runs over the positions of the keys, x_l is the key's own head vector. With F(x) = sum_{l <= x} ln f_l, which only
    falls, the sum is min(F(m) - F(n), 0), for past and future keys alike.
    """

    card = Card(
        id="fox",
        title="FoX: forgetting attention",
        summary="Each token has a forget gate between 0 and 1, read off its content; a key's score is lowered by the"
        " gates of all tokens after it, up to the query's own.",
        plain="S(m,n) = c q_m.k_n + sum of ln f_l over keys l with n < l <= m, f_l = sigmoid(w_f.x_l + b_f)",
        latex=r"S(m,n) = \frac{q_m^\top k_n}{\sqrt{d_h}} + \sum_{l=n+1}^{m}\ln f_l,\quad"
        r" f_l = \sigma\left(w_f^\top x_l + b_f\right)",
        paper=Paper(
            "Forgetting Transformer: Softmax Attention with a Forget Gate",
            "Lin, Nikishin, He, Courville",
            2025,
            "2503.02130",
        ),
        terms=(Term("content", "c q_m.k_n"), Term("forgetting", "sum of ln f_l over keys l with n < l <= m")),
        parameters=(
            Parameter(
                "w_f",
                "array",
                "weights of each head's forget gate on its key vector",
                shape=("heads", "head_dim"),
                initial=Initial("normal", deviation=0.02),
            ),
            Parameter("b_f", "array", "bias of each head's forget gate", shape=("heads",), initial=Initial("zeros")),
        ),
        conventions={
            "scale": "c = 1/sqrt(head_dim); the forget gates are added after scaling",
            "gates": "x_l is the key vector of the gate's own head; the paper's gates read the layer's whole input",
            "w_f and b_f": "N(0, 0.02) and 0 unless the request brings trained ones, as the released code starts: gates"
            " near 1/2, about -0.7 for each token",
            "sum": "without the key's own gate, with the query's; future keys get 0",
            "order": "by the keys' positions, not by the order they are sent in; keys at one position count together",
            "mask": "gates of masked keys count as well: only positions decide what lies between",
        },
        invariants=Invariants(shift=True, diagonal=True),
        causal="required",
    )
    dims = {
        "scale": (),
        "w_f": ("heads", "head_dim"),
        "b_f": ("heads",),
        "order": ("keys",),
        "up_to_query": ("queries",),
        "up_to_key": ("keys",),
    }

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        order, last = ordered(at.key)
        return {
            "scale": at.scale(),
            "w_f": parameters["w_f"],
            "b_f": parameters["b_f"],
            "order": order,
            "up_to_query": (at.key <= at.query[:, None]).sum(-1),
            "up_to_key": last + 1,
        }

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        return {"content": dot(q, k), "forgetting": -self.forgotten(k, table)}

    def scores(self, q: Heads, k: Heads, table: Tables) -> Scores:
        return dot(q, k) - self.forgotten(k, table)

    def forgotten(self, k: Heads, table: Tables) -> Scores:
        """F(n) - F(m), or 0 where the key lies in the future."""
        # In float64: F grows with every token, and what counts is a small difference of two large ones.
        z = (k @ table["w_f"][:, :, None]).squeeze(-1).double() + table["b_f"][:, None]
        ln_f = z.clamp(max=0) - torch.log(1 + torch.exp(-z.abs()))
        F = pad(ln_f.index_select(-1, table["order"]).cumsum(-1), (1, 0))
        F_m, F_n = F.index_select(-1, table["up_to_query"]), F.index_select(-1, table["up_to_key"])
        return torch.relu((F_n[..., None, :] - F_m[..., :, None]).to(k.dtype))
