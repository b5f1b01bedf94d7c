"""The summary of one matrix, from the numbers of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from service.summaries.definition import measure
from service.summaries.layout import Layout
from service.summaries.lists import known_only, listed
from service.summaries.metric import Metric
from service.summaries.metrics import DEFAULT, DEFINITIONS, KEYLESS, RATIO
from service.summaries.profile import PROFILE, Profile, profile_of
from service.summaries.rows import RowNumbers
from service.summaries.shapes import Heads

SINK_THRESHOLD = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """One matrix. Of the rows that are no padding, `rows_counted` and `rows_invalid` make all; forced rows are counted.

    `row_sum_error`, `mask_leak` and `nonfinite_cells` are there where they were asked for.
    """

    rows_counted: Int64[np.ndarray, "batch heads"]
    rows_forced: Int64[np.ndarray, "batch heads"]
    rows_invalid: Int64[np.ndarray, "batch heads"]
    metrics: Mapping[str, Metric]
    profile: Profile | None = None
    is_sink: Bool[np.ndarray, "batch heads"] | None = None
    row_sum_error: Heads | None = None
    mask_leak: Heads | None = None
    nonfinite_cells: Int64[np.ndarray, "batch heads"] | None = None
    reasons: Mapping[str, str] | None = None
    """Why what is not a metric is undefined, by name."""

    def json(self) -> dict[str, Any]:
        """Plain dictionaries and lists; no NaN."""
        arrays = {
            "rows_counted": self.rows_counted,
            "rows_forced": self.rows_forced,
            "rows_invalid": self.rows_invalid,
            "row_sum_error": self.row_sum_error,
            "mask_leak": self.mask_leak,
            "nonfinite_cells": self.nonfinite_cells,
        }
        answer: dict[str, Any] = {name: listed(array) for name, array in arrays.items() if array is not None}
        if self.is_sink is not None:
            answer["is_sink"] = known_only(self.is_sink, np.isfinite(self.metrics["alpha_0"].mean))
        answer |= {name: metric.json() for name, metric in self.metrics.items()}
        if self.profile is not None:
            answer["distance_profile"] = self.profile.json()
        return answer | ({"reasons": dict(self.reasons)} if self.reasons else {})


def summarise(
    rows: Mapping[str, np.ndarray],
    layout: Layout,
    *,
    metrics: Iterable[str] = DEFAULT,
    padding: Bool[np.ndarray, "#batch queries"] | None = None,
    sinks: bool = False,
) -> Summary:
    """The summary of a matrix from its graph's outputs (`outputs_for`) over all rows; blocks of rows are put together
    by `concatenate`.

    `padding` is true for queries that are none. Computed in float64.
    """
    asked = tuple(dict.fromkeys(metrics))
    of = RowNumbers.of(rows, layout, padding)
    chosen = [DEFINITIONS[name] for name in asked if name in DEFINITIONS]
    if RATIO in asked and "mean_distance" not in asked:
        chosen.append(DEFINITIONS["mean_distance"])
    chosen += [KEYLESS] if sinks else []
    with np.errstate(all="ignore"):
        found = measure(chosen, of, layout)
        reasons: dict[str, str] = {}
        ratio = {RATIO: _ratio(found["mean_distance"])} if RATIO in asked else {}
        if "mean_distance" not in asked:
            found.pop("mean_distance", None)
        row_sum_error = _row_sum_error(of, sinks, reasons) if "row_sum_error" in asked else None
        leak = _leak(of) if "mask_leak" in asked else None
    profile = profile_of(rows, of, layout, reasons) if PROFILE in asked else None
    return Summary(
        rows_counted=of.counted.sum(-1),
        rows_forced=of.forced.sum(-1),
        rows_invalid=(of.real & ~of.counted).sum(-1),
        metrics={**found, **ratio},
        profile=profile,
        is_sink=found["alpha_0"].mean > SINK_THRESHOLD if "alpha_0" in found else None,
        row_sum_error=row_sum_error,
        mask_leak=leak,
        nonfinite_cells=np.where(of.real, of["nonfinite"], 0).sum(-1).astype(int)
        if "nonfinite_cells" in asked
        else None,
        reasons=reasons,
    )


def _ratio(distance: Metric) -> Metric:
    """Of means, over the same rows and under the same mask: 1 for uniform attention."""
    assert distance.uniform is not None
    ratio = np.where(distance.uniform > 0, distance.mean / distance.uniform, np.nan)
    reason = distance.reason
    if reason is None and np.isnan(ratio).any():
        reason = "all visible keys are at the query's own position"
    return Metric(ratio, distance.rows, reason=reason)


def _row_sum_error(of: RowNumbers, sinks: bool, reasons: dict[str, str]) -> Heads:
    error = np.abs(of["row_sum"] - 1)
    over = of.real & (of.visible_keys >= 1) & np.isfinite(error)
    if sinks:
        reasons["row_sum_error"] = "rows with sinks need not sum to 1"
        return np.full(over.shape[:2], np.nan)
    if not over.any(-1).all():
        reasons["row_sum_error"] = "no row sees a key and is finite"
    return np.where(over.any(-1), np.where(over, error, 0).max(-1, initial=0), np.nan)


def _leak(of: RowNumbers) -> Heads:
    """0 where nothing is masked."""
    if "leak" not in of.numbers:
        return np.zeros(of.real.shape[:2])
    leak = of["leak"]
    largest: Heads = np.where(of.real & np.isfinite(leak), leak, 0).max(-1, initial=0)
    return largest
