"""DeBERTa's attention with a checkpoint's own keys and queries of each distance, projected once and for all."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from models.encodings.deberta import DeBERTa, delta, log_bucket
from models.encodings.encoding import Positions, Tables

OF_THE_TABLE = ("table", "w_kr", "w_qr", "norm", "norm_weight", "norm_bias")


class GivenDistances(DeBERTa):
    """S(m, n) = c [q_m.k_n + q_m.K_r[delta(m, n)] + k_n.Q_r[delta(m, n)]].

    K_r and Q_r are given, [heads, 2k, head_dim], with the biases of their projections, for which `DeBERTa` has no
    parameters. A term that the checkpoint lacks is 0.
    """

    def __init__(
        self, keys: Float[Tensor, "heads distances head_dim"], queries: Float[Tensor, "heads distances head_dim"]
    ) -> None:
        self.keys, self.queries = keys, queries
        rows = keys.shape[1]
        self.card = replace(
            DeBERTa.card,
            parameters=tuple(one for one in DeBERTa.card.parameters if one.name not in OF_THE_TABLE),
            conventions={**DeBERTa.card.conventions, "k": f"{rows // 2}, the checkpoint's: {rows} rows"},
        )

    def tables(self, at: Positions, parameters: Tables) -> dict[str, Tensor]:
        r = torch.where(parameters["buckets"] > 0, log_bucket(at.r, parameters), at.r)
        paper = parameters["p2c_index"] == 1
        rows = self.keys.shape[1]
        return {
            "scale": at.scale(3),
            "keys": self.keys.to(at.dtype),
            "queries": self.queries.to(at.dtype),
            "c2p_index": delta(r, rows),
            "p2c_index": delta(torch.where(paper, -r, r), rows).transpose(0, 1).contiguous(),
        }
