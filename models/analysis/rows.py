"""Statistics of one attention matrix, row by row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor, nn

from models.analysis.diagonals import diagonal_sums
from models.analysis.prefix import half_mass_distance, prefix_sums
from models.analysis.probabilities import SMALLEST, Matrix, Rows, probabilities

WINDOWS = (1, 4, 16, 64)
FIRST_KEYS = (1, 4)


class RowStatistics(nn.Module):
    """What each row of a matrix of attention weights is like; p is the row as a distribution over its visible keys.

    Most statistics are sum_j p_ij F_ij for some F that does not depend on the weights. `uniform_<name>` is the same
    for a row that gives every visible key the same: the mean of F over them.
    """

    def forward(
        self,
        visible: Bool[Tensor, "#batch #heads queries keys"],
        query_tokens: Int64[Tensor, "#batch queries"],
        key_tokens: Int64[Tensor, "#batch keys"],
        tokens_before: Int64[Tensor, "#batch keys"],
        query_positions: Float64[Tensor, " queries"],
        key_positions: Float64[Tensor, " keys"],
        query_places: Int64[Tensor, " queries"],
        tolerance: Float64[Tensor, ""],
        sinks: Bool[Tensor, ""],
        scores: Matrix,
        weights: Matrix,
    ) -> dict[str, Tensor]:
        """`query_places[i]` is the index of the key that is query i's own token, -1 where none is. `tokens_before[j]`
        is the token of key j - 1, and for j = 0 one that no query has.
        """
        dtype, (queries, keys) = weights.dtype, weights.shape[-2:]
        tolerance = tolerance.to(dtype)
        p, kept, row_sum, counted = probabilities(weights, visible, tolerance, sinks)
        zero = torch.zeros_like(row_sum)
        seen = torch.where(visible, torch.ones(queries, keys, dtype=dtype), 0.0)
        visible_keys = zero + seen.sum(-1)
        fair = visible_keys.clamp(min=1)

        def uniform(feature: Tensor) -> Rows:
            return torch.where(visible, feature, 0.0).sum(-1) / fair

        index = torch.arange(keys)
        behind = query_places[:, None] - index
        distance = (query_positions[:, None] - key_positions).abs().to(dtype)
        windows = {w: (behind.abs() <= w).to(dtype) for w in WINDOWS}
        first = {k: (index < k).to(dtype).expand(queries, -1) for k in FIRST_KEYS}
        duplicate = ((key_tokens[:, None] == query_tokens[..., None]) & (behind > 0))[:, None].to(dtype)
        induction = ((tokens_before[:, None] == query_tokens[..., None]) & (behind >= 0))[:, None].to(dtype)
        profiled = (counted & (visible_keys >= 2) & (query_places >= 0))[..., None]
        return {
            "visible_keys": visible_keys,
            "row_sum": row_sum,
            "counted": counted.to(dtype),
            "nonfinite": (weights * 0).isnan().to(dtype).sum(-1),
            "leak": (weights - kept).abs().amax(-1),
            "entropy": -(p * p.clamp(min=SMALLEST).log()).sum(-1),
            "entropy_of_scores": _entropy_of_scores(p, scores, visible),
            "max_weight": p.amax(-1),
            "distance": (p * distance).sum(-1),
            "uniform_distance": uniform(distance),
            "half_mass_distance": half_mass_distance(prefix_sums(p), query_places, 0.5 - tolerance).to(dtype),
            **{f"local_mass_{w}": (p * near).sum(-1) for w, near in windows.items()},
            **{f"uniform_local_mass_{w}": uniform(near) for w, near in windows.items()},
            "previous_token": _column(p, query_places - 1),
            "uniform_previous_token": uniform((behind == 1).to(dtype)),
            "self_token": _column(p, query_places),
            "uniform_self_token": uniform((behind == 0).to(dtype)),
            "first_token": p[..., 0],
            "uniform_first_token": uniform(first[1]),
            **{f"sink_mass_{k}": p[..., :k].sum(-1) for k in FIRST_KEYS},
            **{f"uniform_sink_mass_{k}": uniform(feature) for k, feature in first.items()},
            "duplicate_token": (p * duplicate).sum(-1),
            "uniform_duplicate_token": uniform(duplicate),
            "induction": (p * induction).sum(-1),
            "uniform_induction": uniform(induction),
            "diagonals": diagonal_sums(torch.where(profiled, p, 0.0)),
            "uniform_diagonals": diagonal_sums(torch.where(profiled, seen / fair[..., None], 0.0)),
            "pair_diagonals": diagonal_sums(torch.where(profiled, seen, 0.0)),
        }


def _entropy_of_scores(p: Matrix, scores: Matrix, visible: Tensor) -> Rows:
    """log p is s - max s + log max p: no logarithm of each cell."""
    seen = torch.where(visible, scores, torch.finfo(torch.float32).min)
    below = torch.where(visible, scores - seen.amax(-1, keepdim=True), 0.0)
    return -(p * below).sum(-1) - p.amax(-1).clamp(min=SMALLEST).log()


def _column(p: Matrix, which: Int64[Tensor, " queries"]) -> Rows:
    """One cell of each row; 0 where there is no such key."""
    inside = (which >= 0) & (which < p.shape[-1])
    column = torch.where(inside, which, 0)[:, None].expand(*p.shape[:3], 1)
    return torch.where(inside, p.gather(-1, column)[..., 0], 0.0)


def _described() -> dict[str, str]:
    linear = {
        "distance": "p-weighted |query position - key position|",
        **{f"local_mass_{w}": f"mass of the keys at most {w} places from the query's own token" for w in WINDOWS},
        "previous_token": "weight of the key before the query's own token",
        "self_token": "weight of the query's own token",
        "first_token": "weight of the first key",
        **{f"sink_mass_{k}": f"mass of the first {k} keys" for k in FIRST_KEYS},
        "duplicate_token": "mass of earlier keys with the query's token",
        "induction": "mass of keys, up to the query's own, that follow a key with the query's token",
    }
    diagonals = "entry c is the sum over queries - c = i - j (row i of those given, key j), over rows that are counted,"
    return {
        "visible_keys": "how many keys the row sees",
        "row_sum": "sum of the visible weights as given",
        "counted": "1 where the row sums to 1 within `tolerance` (with sinks: to between `tolerance` and 1), else 0",
        "nonfinite": "cells, visible or not, that are NaN or infinite",
        "leak": "largest |weight| that is not visible",
        "entropy": "-sum p log p, nats",
        "entropy_of_scores": "the same from `scores`, whose softmax p is: cheaper",
        "max_weight": "largest p",
        "half_mass_distance": "least w such that keys at most w places from the query's own token have half the mass",
        **linear,
        **{f"uniform_{name}": f"{name} if every visible key had the same weight" for name in linear},
        "diagonals": f"{diagonals} see two keys or more and have a place: of p",
        "uniform_diagonals": "diagonals if every visible key had the same weight",
        "pair_diagonals": "diagonals of visible cells: how many",
    }


DESCRIPTIONS: Mapping[str, str] = _described()
