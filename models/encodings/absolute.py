"""Encodings that add a vector p to the embedding: S = c (W_q(x_m + p_m)).(W_k(x_n + p_n))."""

from __future__ import annotations

from abc import abstractmethod

from jaxtyping import Float, Float64
from torch import Tensor

from models.encodings.card import Term
from models.encodings.encoding import Encoding, Heads, Positions, Scores, Tables, dot

TERMS = (
    Term("content-content", "c (W_q x_m).(W_k x_n)"),
    Term("content-position", "c (W_q x_m).(W_k p_n)"),
    Term("position-content", "c (W_q p_m).(W_k x_n)"),
    Term("position-position", "c (W_q p_m).(W_k p_n)"),
)


class Absolute(Encoding):
    """The four-term expansion of the articles. The value of a token carries its position too, v = W_v(x + p): this
    affects `output` only.
    """

    dims = {
        "scale": (),
        "query_vectors": ("heads", "queries", "head_dim"),
        "key_vectors": ("heads", "keys", "head_dim"),
        "value_vectors": ("heads", "keys", "head_dim"),
    }

    @abstractmethod
    def vectors(
        self, positions: Float64[Tensor, " tokens"], at: Positions, parameters: Tables
    ) -> Float[Tensor, "tokens width"]:
        """p for each position, in the space of the embeddings."""

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        p_m = self.vectors(at.query, at, parameters).to(at.dtype)
        p_n = self.vectors(at.key, at, parameters).to(at.dtype)
        return {
            "scale": at.scale(),
            "query_vectors": at.project_query(p_m),
            "key_vectors": at.project_key(p_n),
            "value_vectors": at.project_value(p_n),
        }

    def terms(self, q: Heads, k: Heads, table: Tables) -> dict[str, Scores]:
        p_m, p_n = table["scale"] * table["query_vectors"], table["key_vectors"]
        return {
            "content-content": dot(q, k),
            "content-position": dot(q, p_n),
            "position-content": dot(p_m, k),
            "position-position": dot(p_m, p_n),
        }

    def scores(self, q: Heads, k: Heads, table: Tables) -> Scores:
        return dot(q + table["scale"] * table["query_vectors"], k + table["key_vectors"])

    def output(self, weights: Scores, v: Heads, table: Tables) -> Heads:
        return weights @ (v + table["value_vectors"])
