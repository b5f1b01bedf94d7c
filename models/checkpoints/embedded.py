"""Learned positions whose sum with the token embedding is normalised before it is projected, as in BERT's and GPT-2's
first layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from models.checkpoints.layer import Embedding
from models.checkpoints.projections import LayerProjections, Normed
from models.encodings.encoding import Heads, Positions, Tables
from models.encodings.learned import Learned

if TYPE_CHECKING:
    from models.projections import Projections


class Embedded(Learned):
    """S(m, n) = c (W_q N(x_m + p_m)).(W_k N(x_n + p_n)), N(y) = g (y - mean y)/sqrt(var y + e) + b.

    Given the deviation of the sum, N is linear, so the four terms of absolute positions remain exact: x carries b and
    p does not, and both are divided by the deviation of x + p.
    """

    dims = Learned.dims | {"query_positions": ("queries", "width"), "key_positions": ("keys", "width")}

    def __init__(self, embedding: Embedding) -> None:
        self.norm = Normed(embedding.norm)
        self.segment = embedding.segment
        norm = "(y - mean y)/sqrt(var y + e) g + b" if embedding.norm.kind == "layer" else "y/sqrt(mean y^2 + e) g"
        self.card = replace(
            Learned.card,
            plain="S(m,n) = c (W_q N(x_m + p_m)).(W_k N(x_n + p_n)), p_m = table[m], N the norm of the embeddings",
            latex=r"S(m,n) = \frac{\left(W_q N(x_m+p_m)\right)^\top W_k N(x_n+p_n)}{\sqrt{d_h}},\quad p_m = T_{m}",
            conventions={
                **Learned.card.conventions,
                "table": "the checkpoint's",
                "input": "token embeddings, not yet normalised, without positions"
                + ("" if embedding.segment is None else "; the vector of segment 0 is added here, with the content"),
                "norm": f"N(y) = {norm}, of the sum y = x + p; in the terms x and p are each divided by the sum's"
                " deviation, so they add up",
            },
        )

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        p_m, p_n = self.vectors(at.query, at, parameters), self.vectors(at.key, at, parameters)
        norm = self.norm
        query, key = norm.gained(norm.centred(p_m)), norm.gained(norm.centred(p_n))
        return {
            "scale": at.scale(),
            "query_vectors": at.project_query(query),
            "key_vectors": at.project_key(key),
            "value_vectors": at.project_value(key),
            "query_positions": p_m,
            "key_positions": p_n,
        }

    def projected(
        self,
        projections: Projections,
        queries: Float[Tensor, "batch queries width"],
        keys: Float[Tensor, "batch keys width"],
        table: Tables,
    ) -> tuple[Heads, Heads, Heads, Tables]:
        assert isinstance(projections, LayerProjections)
        norm = self.norm
        if self.segment is not None:
            segment = self.segment.to(queries.dtype)
            queries, keys = queries + segment, keys + segment
        shrink_m = norm.shrink(queries + table["query_positions"])
        shrink_n = norm.shrink(keys + table["key_positions"])
        queries = norm.affine(norm.centred(queries) * shrink_m)
        keys = norm.affine(norm.centred(keys) * shrink_n)
        shrunk = {
            "query_vectors": table["query_vectors"] * shrink_m[:, None],
            "key_vectors": table["key_vectors"] * shrink_n[:, None],
            "value_vectors": table["value_vectors"] * shrink_n[:, None],
        }
        q = projections.query_of(queries) * table["scale"]
        k, v = projections.key_of(keys), projections.value_of(keys)
        return q, k, v, {**table, **shrunk}
