"""No position at all."""

from __future__ import annotations

from torch import Tensor

from models.encodings.card import Card, Invariants, Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot


class NoEncoding(Encoding):
    """S(m, n) = c q_m.k_n."""

    card = Card(
        id="none",
        title="No positional encoding",
        summary="Content alone decides: what attention would be without any notion of order.",
        plain="S(m,n) = c q_m.k_n",
        latex=r"S(m,n) = \frac{q_m^\top k_n}{\sqrt{d_h}}",
        paper=None,
        terms=(Term("content", "c q_m.k_n"),),
        conventions={"scale": "c = 1/sqrt(head_dim)"},
        invariants=Invariants(shift=True, permutation=True, toeplitz=True, diagonal=True),
    )
    dims = {"scale": ()}

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        return {"scale": at.scale()}

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        return {"content": dot(q, k)}
