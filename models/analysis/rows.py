"""Statistics of one attention matrix, row by row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from models.analysis.diagonals import diagonal_sums
from models.analysis.prefix import half_mass_distance, prefix_sums
from models.analysis.probabilities import SMALLEST, Matrix, Rows, probabilities

WINDOWS = (1, 4, 16, 64)


class RowStatistics(nn.Module):
    """What each row of a matrix of attention weights is like; p is the row as a distribution over its visible keys.

    Most statistics are sum_j p_ij F_ij for some F that does not depend on the weights.
    """

    def forward(
        self,
        visible: Bool[Tensor, "#batch #heads queries keys"],
        query_tokens: Int64[Tensor, "#batch queries"],
        key_tokens: Int64[Tensor, "#batch keys"],
        tokens_before: Int64[Tensor, "#batch keys"],
        distances: Float[Tensor, "queries keys"],
        query_places: Int64[Tensor, " queries"],
        own_cells: Int64[Tensor, " queries"],
        previous_cells: Int64[Tensor, " queries"],
        profiled: Bool[Tensor, "#batch queries"],
        tolerance: Float64[Tensor, ""],
        exact: Bool[Tensor, ""],
        sinks: Bool[Tensor, ""],
        scores: Matrix,
        weights: Matrix,
    ) -> dict[str, Tensor]:
        """`query_places[i]` is the index of the key that is query i's own token, -1 where none is; `own_cells[i]` is
        i * keys + that index, and `previous_cells[i]` one less (any cell where there is none). `tokens_before[j]` is
        the token of key j - 1, and for j = 0 one that no query has. `profiled` are the rows that may be in the sums
        over diagonals. With `exact` on, weights are 0 where they are not visible and scores finite.
        """
        dtype, (queries, keys) = weights.dtype, weights.shape[-2:]
        tolerance = tolerance.to(dtype)
        p, row_sum, counted = probabilities(weights, visible, tolerance, exact, sinks)
        seen = torch.where(visible, torch.ones(queries, keys, dtype=dtype), 0.0)
        visible_keys = torch.zeros_like(row_sum) + seen.sum(-1)
        share = seen / visible_keys.clamp(min=1)[..., None]

        behind = query_places[:, None] - torch.arange(keys)
        duplicate = ((key_tokens[:, None] == query_tokens[..., None]) & (behind > 0))[:, None].to(dtype)
        induction = ((tokens_before[:, None] == query_tokens[..., None]) & (behind >= 0))[:, None].to(dtype)
        drawn = (counted & (visible_keys >= 2) & profiled[:, None])[..., None]
        cells = p.flatten(-2)
        return {
            "visible_keys": visible_keys,
            "row_sum": row_sum,
            "counted": counted.to(dtype),
            "nonfinite": (weights * 0).isnan().to(dtype).sum(-1),
            "leak": (weights - torch.where(visible, weights, 0.0)).abs().amax(-1),
            "entropy": -(p * p.clamp(min=SMALLEST).log()).sum(-1),
            "entropy_of_scores": _entropy_of_scores(p, scores, visible, exact),
            "max_weight": p.amax(-1),
            "distance": (p * distances).sum(-1),
            "half_mass_distance": half_mass_distance(prefix_sums(p), query_places, 0.5 - tolerance).to(dtype),
            **{f"local_mass_{w}": (p * (behind.abs() <= w).to(dtype)).sum(-1) for w in WINDOWS},
            "previous_token": cells.index_select(-1, previous_cells),
            "self_token": cells.index_select(-1, own_cells),
            "first_token": p[..., 0],
            "sink_mass_4": p[..., :4].sum(-1),
            "duplicate_token": (p * duplicate).sum(-1),
            "induction": (p * induction).sum(-1),
            "diagonals": diagonal_sums(torch.where(drawn, p, 0.0)),
            "uniform_diagonals": diagonal_sums(torch.where(drawn, share, 0.0)),
            "pair_diagonals": diagonal_sums(torch.where(drawn, seen, 0.0)),
        }


def _entropy_of_scores(p: Matrix, scores: Matrix, visible: Tensor, exact: Tensor) -> Rows:
    """log p is s - max s + log max p: no logarithm of each cell."""
    seen = torch.where(visible, scores, torch.finfo(torch.float32).min)
    below = scores - seen.amax(-1, keepdim=True)
    below = torch.where(exact, below, torch.where(visible, below, 0.0))
    return -(p * below).sum(-1) - p.amax(-1).clamp(min=SMALLEST).log()


def _described() -> dict[str, str]:
    linear = {
        "distance": "p-weighted distance",
        **{f"local_mass_{w}": f"mass of the keys at most {w} places from the query's own token" for w in WINDOWS},
        "previous_token": "p of the key before the query's own token, which is there from place 1 on",
        "self_token": "p of the query's own token, where it has a place",
        "first_token": "p of the first key",
        "sink_mass_4": "mass of the first 4 keys",
        "duplicate_token": "mass of earlier keys with the query's token",
        "induction": "mass of keys, up to the query's own, that follow a key with the query's token",
    }
    diagonals = "entry c is the sum over queries - c = i - j (row i of those given, key j), over rows that are counted,"
    return {
        "visible_keys": "how many keys the row sees",
        "row_sum": "sum of the visible weights as given",
        "counted": "1 where the row sums to 1 within `tolerance` (with sinks: to between 1e-30 and 1), else 0",
        "nonfinite": "cells, visible or not, that are NaN or infinite",
        "leak": "largest |weight| that is not visible",
        "entropy": "-sum p log p, nats",
        "entropy_of_scores": "the same from `scores`, whose softmax p is: cheaper",
        "max_weight": "largest p",
        "half_mass_distance": "least w such that keys at most w places from the query's own token have half the mass",
        **linear,
        "diagonals": f"{diagonals} see two keys or more and are `profiled`: of p",
        "uniform_diagonals": "diagonals if every visible key had the same weight",
        "pair_diagonals": "diagonals of visible cells: how many",
    }


DESCRIPTIONS: Mapping[str, str] = _described()
