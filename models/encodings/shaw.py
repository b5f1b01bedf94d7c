"""Shaw et al. 2018: a learned vector for each clipped distance, added to the key (and to the value)."""

from __future__ import annotations

from torch import Tensor

from models.encodings.card import Card, Initial, Invariants, Paper, Parameter, PositionRule, Size, Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot, pick

ROWS = Size(default=33, minimum=1, maximum=4097, multiple=2, offset=1)


class Shaw(Encoding):
    """S(m, n) = c q_m.(k_n + a[clip(n - m, -K, K) + K])."""

    card = Card(
        id="shaw",
        title="Relative positions of Shaw et al.",
        summary="A learned vector for each signed distance up to K, added to the key before the dot product; farther"
        " keys share the last one.",
        plain="S(m,n) = c q_m.(k_n + a[clip(n-m, -K, K) + K])",
        latex=r"S(m,n) = \frac{q_m^\top\left(k_n + a^K_{\mathrm{clip}(n-m,\,-K,\,K)}\right)}{\sqrt{d_h}}",
        paper=Paper(
            "Self-Attention with Relative Position Representations", "Shaw, Uszkoreit, Vaswani", 2018, "1803.02155"
        ),
        terms=(Term("content", "c q_m.k_n"), Term("position", "c q_m.a[clip(n-m)]")),
        parameters=(
            Parameter(
                "keys",
                "array",
                "a^K: one key vector for each distance n - m from -K to K, shared by the heads; 2K + 1 rows",
                shape=("distances", "head_dim"),
                sizes={"distances": ROWS},
                initial=Initial("xavier_uniform"),
            ),
            Parameter(
                "values",
                "array",
                "a^V: the same for values; affects output only",
                shape=("value_distances", "head_dim"),
                sizes={"value_distances": ROWS},
                initial=Initial("xavier_uniform"),
            ),
        ),
        conventions={
            "scale": "c = 1/sqrt(head_dim)",
            "index": "clip(n - m, -K, K) + K: row 0 is the farthest past key, the last row the farthest future key",
            "K": "16 unless the request brings a table of another number of rows, 2K + 1",
        },
        positions=PositionRule(integer=True),
        invariants=Invariants(shift=True, toeplitz=True, far_share=True),
        seed_article="'How Positional Encoding Evolved' credits this paper with u, v and a tilde W; those are"
        " Transformer-XL's (relative-1).",
    )
    dims = {
        "scale": (),
        "keys": ("distances", "head_dim"),
        "index": ("queries", "keys"),
        "values": ("value_distances", "head_dim"),
        "value_index": ("queries", "keys"),
    }

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        return {
            "scale": at.scale(),
            "keys": parameters["keys"],
            "index": clipped(at, parameters["keys"].shape[0]),
            "values": parameters["values"],
            "value_index": clipped(at, parameters["values"].shape[0]),
        }

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        return {"content": dot(q, k), "position": pick(dot(q, table["keys"]), table["index"])}

    def output(self, weights: Scores, v: Heads, table: Tables) -> Heads:
        """Weights are first summed by distance, so that nothing of shape [queries, keys, head_dim] is ever built."""
        a = table["values"]
        by_distance = weights.new_zeros((*weights.shape[:3], a.shape[0]))
        by_distance = by_distance.scatter_add(-1, table["value_index"].expand(weights.shape), weights)
        return weights @ v + by_distance @ a


def clipped(at: Positions, rows: int) -> Tensor:
    """clip(n - m, -K, K) + K for a table of 2K + 1 rows, int64 [queries, keys]."""
    furthest = (rows - 1) // 2
    return (-at.r).clamp(-furthest, furthest).long() + furthest
