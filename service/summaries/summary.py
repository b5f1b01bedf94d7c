"""The summary of one matrix, from the numbers of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Num

from service.summaries.definition import Definition, Ground, measure
from service.summaries.graph import TOLERANCES
from service.summaries.layout import Layout
from service.summaries.lists import known_only, plain, written
from service.summaries.measured import Measured
from service.summaries.metric import Metric
from service.summaries.metrics import DEFAULT, DEFINITIONS, KEYLESS, RATIO
from service.summaries.profile import PROFILE, Profile, profile_of
from service.summaries.rows import RowNumbers, counts, spent
from service.summaries.shapes import Heads, Selection

SINK_THRESHOLD = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """One matrix. Rows are counted, invalid or padding; forced ones are among the counted.

    `row_sum_error`, `mask_leak` and `nonfinite_cells` are there where they were asked for.
    """

    rows_counted: Int64[np.ndarray, "batch heads"]
    rows_forced: Int64[np.ndarray, "batch heads"]
    rows_invalid: Int64[np.ndarray, "batch heads"]
    rows_padding: Int64[np.ndarray, "batch heads"]
    metrics: Measured
    profile: Profile | None = None
    is_sink: Bool[np.ndarray, "batch heads"] | None = None
    row_sum_error: Heads | None = None
    mask_leak: Heads | None = None
    nonfinite_cells: Int64[np.ndarray, "batch heads"] | None = None
    reasons: Mapping[str, str] | None = None
    """Why what is not a metric is undefined, by name."""

    @property
    def explained(self) -> bool:
        """Whether something is undefined, or infinite, that might be defined for other numbers."""
        return bool(self.metrics.reasons or self.reasons)

    def part(self, items: slice) -> Summary:
        """Of some of the batch, without the profile."""

        def cut(array: np.ndarray | None) -> Any:
            return None if array is None else array[items]

        return Summary(
            self.rows_counted[items],
            self.rows_forced[items],
            self.rows_invalid[items],
            self.rows_padding[items],
            self.metrics.part(items),
            None,
            cut(self.is_sink),
            cut(self.row_sum_error),
            cut(self.mask_leak),
            cut(self.nonfinite_cells),
            self.reasons,
        )

    def document(self, batched: bool = True) -> dict[str, Any]:
        """All but the profile, as `orjson` writes it: arrays [batch, heads], without `batched` [heads]; what is not
        finite as null.
        """
        arrays: Mapping[str, np.ndarray | None] = {
            "rows_counted": self.rows_counted,
            "rows_forced": self.rows_forced,
            "rows_invalid": self.rows_invalid,
            "rows_padding": self.rows_padding,
            "row_sum_error": self.row_sum_error,
            "mask_leak": self.mask_leak,
            "nonfinite_cells": self.nonfinite_cells,
        }
        answer: dict[str, Any] = {name: written(array, batched) for name, array in arrays.items() if array is not None}
        if self.is_sink is not None:
            answer["is_sink"] = known_only(self.is_sink, np.isfinite(self.metrics["alpha_0"].mean), batched)
        answer |= self.metrics.documents(batched)
        return answer | ({"reasons": dict(self.reasons)} if self.reasons else {})

    def json(self, batched: bool = True) -> Any:
        """Plain dictionaries and lists, with the profile; no NaN."""
        profile = {} if self.profile is None else {PROFILE: self.profile.document(batched)}
        return plain(self.document(batched) | profile)


def summarise(
    rows: Mapping[str, np.ndarray],
    layout: Layout,
    *,
    uniform: Mapping[str, np.ndarray] | None = None,
    visible_keys: Num[np.ndarray, "#batch #heads queries"] | None = None,
    metrics: Iterable[str] = DEFAULT,
    padding: Bool[np.ndarray, "#batch queries"] | None = None,
    sinks: bool = False,
    tolerance: float = TOLERANCES["float32"],
    ground: Ground | None = None,
    valid: Selection | None = None,
) -> Summary:
    """The summary of a matrix from its graph's outputs (`outputs_for`) over all rows; blocks of rows are put together
    by `concatenate`. `uniform` are those of uniform attention under the same mask.

    `visible_keys` is None where nothing is masked, `padding` true for queries that are none. `ground` is what
    `ground_of` gives for the same; it serves where all rows count. `valid` is false for rows that are not counted
    whatever they sum to. Computed in float64.
    """
    asked = tuple(dict.fromkeys(metrics))
    count = counts(rows["row_sum"], tolerance, sinks=sinks)
    if valid is not None:
        count &= valid
    if ground is not None and count.all():
        of = ground.rows.with_numbers(rows, count.shape[:2])
    else:
        of = RowNumbers.of(
            rows,
            count,
            layout,
            visible_keys=visible_keys,
            padding=padding,
            uniform=uniform,
            spent=spent(rows["row_sum"]) if sinks else None,
        )
        ground = Ground.of(_chosen(asked, sinks), of, layout)
    found = measure(ground, of)
    reasons: dict[str, str] = {}
    if RATIO in asked:
        names = tuple(name for name in found if name in asked or name == KEYLESS.name)
        found = found.chosen((*names, RATIO), {RATIO: _ratio(found["mean_distance"])})
    counted, forced, invalid, padded = ground.tally + np.zeros(of.heads, int)
    return Summary(
        rows_counted=counted,
        rows_forced=forced,
        rows_invalid=invalid,
        rows_padding=padded,
        metrics=found,
        profile=profile_of(rows, of, layout, reasons) if PROFILE in asked else None,
        is_sink=found["alpha_0"].mean > SINK_THRESHOLD if "alpha_0" in found else None,
        row_sum_error=_row_sum_error(of, sinks, reasons) if "row_sum_error" in asked else None,
        mask_leak=_leak(of) if "mask_leak" in asked else None,
        nonfinite_cells=_nonfinite(of) if "nonfinite_cells" in asked else None,
        reasons=reasons,
    )


def ground_of(
    layout: Layout,
    *,
    uniform: Mapping[str, np.ndarray],
    visible_keys: Num[np.ndarray, "#batch #heads queries"] | None,
    metrics: Iterable[str],
    sinks: bool,
) -> Ground:
    """What all summaries have in common that are of rows which see so many keys, and count, without padding."""
    shape = (1, 1, layout.queries) if visible_keys is None else visible_keys.shape
    of = RowNumbers.of({}, np.ones(shape, bool), layout, visible_keys=visible_keys, padding=None, uniform=uniform)
    return Ground.of(_chosen(tuple(dict.fromkeys(metrics)), sinks), of, layout)


def _chosen(asked: Sequence[str], sinks: bool) -> list[Definition]:
    chosen = [DEFINITIONS[name] for name in asked if name in DEFINITIONS]
    if RATIO in asked and "mean_distance" not in asked:
        chosen.append(DEFINITIONS["mean_distance"])
    return [*chosen, KEYLESS] if sinks else chosen


def _ratio(distance: Metric) -> Metric:
    """Of means, over the same rows and under the same mask: 1 for uniform attention."""
    assert distance.uniform is not None
    with np.errstate(all="ignore"):
        ratio = np.where(distance.uniform > 0, distance.mean / distance.uniform, np.nan)
    reason = distance.reason
    if reason is None and np.isnan(ratio).any():
        reason = "all visible keys are at the query's own position"
    return Metric(ratio, distance.rows, reason=reason)


def _row_sum_error(of: RowNumbers, sinks: bool, reasons: dict[str, str]) -> Heads:
    error = np.abs(of["row_sum"] - 1)
    if not sinks and of.counted.all():
        largest: Heads = error.max(-1)
        return largest
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
        return np.zeros(of.heads)
    leak = of["leak"]
    largest: Heads = np.where(of.real & np.isfinite(leak), leak, 0).max(-1, initial=0)
    return largest


def _nonfinite(of: RowNumbers) -> Int64[np.ndarray, "batch heads"]:
    cells: Int64[np.ndarray, "batch heads"] = np.where(of.real, of["nonfinite"], 0).sum(-1).astype(int)
    return cells
