"""Statistics of two attention matrices over the same queries, keys and mask, row by row."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from models.analysis.prefix import prefix_sums
from models.analysis.probabilities import SMALLEST, Matrix, Rows, probabilities


class PairStatistics(nn.Module):
    """How far apart the rows a and b of two matrices are, each as a distribution over its visible keys."""

    def forward(
        self,
        visible: Bool[Tensor, "#batch #heads queries keys"],
        tolerance: Float64[Tensor, ""],
        top: Float[Tensor, " k"],
        real_keys: Bool[Tensor, "batch keys"],
        exact: Bool[Tensor, ""],
        padded: Bool[Tensor, ""],
        sinks_a: Bool[Tensor, ""],
        sinks_b: Bool[Tensor, ""],
        scores_a: Matrix,
        scores_b: Matrix,
        weights_a: Matrix,
        weights_b: Matrix,
    ) -> dict[str, Tensor]:
        """Of `top` only the length matters: how many of each row's largest weights are compared. With `exact` on,
        weights are 0 where they are not visible. With `padded` on, keys that are not `real_keys` are none, and no query
        sees one; only `w1` needs to be told, for what is left of both sums after the last key would count for each.
        """
        dtype, (queries, keys) = weights_a.dtype, weights_a.shape[-2:]
        tolerance = tolerance.to(dtype)
        visible_keys = torch.where(visible, torch.ones(queries, keys, dtype=dtype), 0.0).sum(-1)
        fair = visible_keys.clamp(min=1)
        a, sum_a, counted_a = probabilities(weights_a, visible, tolerance, exact, sinks_a)
        b, sum_b, counted_b = probabilities(weights_b, visible, tolerance, exact, sinks_b)
        difference = a - b
        moved = prefix_sums(difference)
        among_real = moved.sums * moved.alike(real_keys[:, None, None].to(dtype))

        # Masked cells are below every visible one, so that they are chosen last and their hits can be told.
        ranked_a, ranked_b = (torch.where(visible, x, -1.0) for x in (a, b))
        values_a, indices_a = ranked_a.topk(top.shape[0])
        _, indices_b = ranked_b.topk(top.shape[0])
        chosen = torch.zeros_like(a).scatter(-1, indices_a, (values_a >= 0).to(dtype))
        most = torch.minimum(fair, torch.full((), top.shape[0], dtype=dtype))

        centred_a, centred_b = (
            torch.where(visible, s - (torch.where(visible, s, 0.0).sum(-1) / fair)[..., None], 0.0)
            for s in (scores_a, scores_b)
        )
        centred_difference = centred_a - centred_b
        return {
            "visible_keys": torch.zeros_like(sum_a) + visible_keys,
            "row_sum_a": sum_a,
            "row_sum_b": sum_b,
            "counted": (counted_a & counted_b).to(dtype),
            "jsd": _jensen_shannon(a, b),
            "kl": _kullback_leibler(a, b),
            "tv": difference.abs().sum(-1) / 2,
            "w1": torch.where(padded, among_real, moved.sums).abs().sum(-1),
            "argmax_agree": (a.topk(1).indices == b.topk(1).indices)[..., 0].to(dtype),
            "topk_overlap": chosen.gather(-1, indices_b).sum(-1) / most,
            "squares_a": (a * a).sum(-1),
            "squares_difference": (difference * difference).sum(-1),
            "logit_squares_a": (centred_a * centred_a).sum(-1),
            "logit_squares_b": (centred_b * centred_b).sum(-1),
            "logit_products": (centred_a * centred_b).sum(-1),
            "logit_squares_difference": (centred_difference * centred_difference).sum(-1),
        }


def _jensen_shannon(a: Matrix, b: Matrix) -> Rows:
    """In bits. With m = (a + b) / 2 and r = (a - b) / (a + b), a log(a/m) + b log(b/m) is
    m ((1 + r) log(1 + r) + (1 - r) log(1 - r)): no cell's part is negative, so nothing cancels between cells.
    """
    total = a + b
    r = (a - b) / total.clamp(min=SMALLEST)
    more, less = 1 + r, 1 - r
    parts = more * more.clamp(min=SMALLEST).log() + less * less.clamp(min=SMALLEST).log()
    return (total * parts).sum(-1) / (4 * math.log(2))


def _kullback_leibler(a: Matrix, b: Matrix) -> Rows:
    """In bits; infinite where b is 0, or too small to divide by, and a is not."""
    parts = torch.where(a > 0, a * (a / b).log(), 0.0)
    return parts.sum(-1) / math.log(2)


DESCRIPTIONS: Mapping[str, str] = {
    "visible_keys": "how many keys the row sees",
    "row_sum_a": "sum of the visible weights of a as given",
    "row_sum_b": "sum of the visible weights of b as given",
    "counted": "1 where both rows sum to 1 within `tolerance` (with sinks: to between 1e-30 and 1), else 0",
    "jsd": "Jensen-Shannon divergence, bits",
    "kl": "Kullback-Leibler divergence of a from b, bits; infinite where b is 0 and a is not",
    "tv": "total variation, sum |a - b| / 2",
    "w1": "sum over keys of |a's cumulative mass - b's|: keys that mass must be moved by",
    "argmax_agree": "1 where the largest weights are of the same key, the first of equals",
    "topk_overlap": "keys that are among the k largest of both, over min(k, visible keys); k is the length of `top`",
    "squares_a": "sum of a^2",
    "squares_difference": "sum of (a - b)^2",
    "logit_squares_a": "sum of squares of a's visible scores less their mean",
    "logit_squares_b": "sum of squares of b's visible scores less their mean",
    "logit_products": "sum of the products of both",
    "logit_squares_difference": "sum of squares of their differences",
}
