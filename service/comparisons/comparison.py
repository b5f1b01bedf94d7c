"""The comparison of two matrices, from the numbers of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Num

from service.comparisons.metrics import DEFAULT, DEFINITIONS, FROBENIUS, OF_SCORES, PROFILE_TV, TOPK
from service.summaries.definition import ONE_KEY, Ground, measure
from service.summaries.layout import Layout
from service.summaries.lists import known_only, plain, written
from service.summaries.measured import Measured
from service.summaries.metric import Metric
from service.summaries.profile import Profile
from service.summaries.rows import RowNumbers
from service.summaries.shapes import Heads, Selection

FLOORS: Mapping[str, Mapping[str, float]] = {
    "float16": {"jsd": 1e-4, "tv": 2e-3},
    "float32": {"jsd": 1e-6, "tv": 1e-4},
    "float64": {"jsd": 1e-6, "tv": 1e-4},
}
"""By the coarser precision of the two: what arithmetic alone makes of equal matrices. For float16, tv is as far as its
rows may be from summing to 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two matrices, the first the reference: `frobenius_rel` and `kl` are not symmetric.

    `identical` heads differ by less than `floor`, which arithmetic alone may do.
    """

    rows_counted: Int64[np.ndarray, "batch heads"]
    rows_forced: Int64[np.ndarray, "batch heads"]
    rows_invalid: Int64[np.ndarray, "batch heads"]
    rows_padding: Int64[np.ndarray, "batch heads"]
    metrics: Measured
    floor: Mapping[str, float]
    identical: Bool[np.ndarray, "batch heads"] | None = None
    """None where jsd or tv was not asked for."""
    top: int | None = None
    """The k of `topk_overlap`."""

    def document(self, batched: bool = True) -> dict[str, Any]:
        """As `orjson` writes it: arrays [batch, heads], without `batched` [heads]; what is not finite as null."""
        answer: dict[str, Any] = {
            "rows_counted": written(self.rows_counted, batched),
            "rows_forced": written(self.rows_forced, batched),
            "rows_invalid": written(self.rows_invalid, batched),
            "rows_padding": written(self.rows_padding, batched),
            **self.metrics.documents(batched),
        }
        if TOPK in answer and self.top is not None:
            answer[TOPK]["k"] = self.top
        if self.identical is not None:
            answer["identical"] = known_only(self.identical, np.isfinite(self.metrics["jsd"].mean), batched)
        return {**answer, "floor": dict(self.floor)}

    def json(self, batched: bool = True) -> Any:
        """Plain dictionaries and lists; no NaN."""
        return plain(self.document(batched))


def compare(
    rows: Mapping[str, np.ndarray],
    layout: Layout,
    *,
    visible_keys: Num[np.ndarray, "#batch #heads queries"] | None = None,
    metrics: Iterable[str] = DEFAULT,
    padding: Bool[np.ndarray, "#batch queries"] | None = None,
    profiles: tuple[Profile, Profile] | None = None,
    precision: str = "float32",
    top: int | None = None,
    valid: Selection | None = None,
) -> Comparison:
    """The comparison of two matrices from the graph's outputs (`outputs_for`) over all rows; blocks of rows are put
    together by `service.summaries.rows.concatenate`. `visible_keys` is None where nothing is masked.

    Metrics of scores are there if the graph was given scores, `profile_tv` if `profiles` are given: those of the two
    summaries, each over its own counted rows. `precision` is the coarser one of the two matrices. `valid` is false for
    rows that are not counted whatever they sum to. In float64.
    """
    asked = tuple(dict.fromkeys(metrics))
    counted = rows["counted"] > 0.5
    if valid is not None:
        counted &= valid
    of = RowNumbers.of(rows, counted, layout, visible_keys=visible_keys, padding=padding)
    floor = FLOORS[precision]
    scored = "logit_products" in rows or "logit_squares_difference" in rows
    chosen = [DEFINITIONS[n] for n in asked if n in DEFINITIONS and (scored or n not in OF_SCORES)]
    ground = Ground.of(chosen, of, layout)
    found = measure(ground, of)
    others = {FROBENIUS: _frobenius(of)} if FROBENIUS in asked else {}
    if profiles is not None and PROFILE_TV in asked:
        others[PROFILE_TV] = _profile_tv(*profiles, of)
    identical = None
    if {"jsd", "tv"} <= found.keys():
        identical = np.logical_and(*(found[name].mean < floor[name] for name in ("jsd", "tv")))
    total, forced, invalid, padded = ground.tally + np.zeros(of.heads, int)
    return Comparison(
        rows_counted=total,
        rows_forced=forced,
        rows_invalid=invalid,
        rows_padding=padded,
        metrics=found.chosen(tuple(name for name in asked if name in found or name in others), others),
        floor=floor,
        identical=identical,
        top=top,
    )


def _frobenius(of: RowNumbers) -> Metric:
    """norm(a - b) / norm(a) over all rows at once."""
    count = of.free.sum(-1)
    difference, reference = (np.where(of.free, of[name], 0).sum(-1) for name in ("squares_difference", "squares_a"))
    with np.errstate(all="ignore"):
        relative: Heads = np.sqrt(np.where(count > 0, difference / reference, np.nan))
    return Metric(relative, count, reason=None if count.all() else of.why_none or ONE_KEY)


def _profile_tv(a: Profile, b: Profile, of: RowNumbers) -> Metric:
    distance = np.abs(a.weights - b.weights).sum(-1) / 2
    rows = np.minimum(a.rows, b.rows)
    return Metric(distance, rows, reason=None if rows.all() else of.why_none or ONE_KEY)
