"""A metric as the mean of a number over some of the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from service.summaries.layout import Layout
from service.summaries.measured import Measured
from service.summaries.metric import undefined
from service.summaries.rows import RowNumbers
from service.summaries.shapes import Rows, Selection
from service.summaries.spread import Quantiles, mean_of, percentiles

ONE_KEY = "no counted row sees two keys or more"


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric as the mean of `value` over the rows in `over`; `lacking` is why there are none.

    `outputs` are those that it needs of the graph, `baseline` those that it needs of it for uniform attention.
    """

    name: str
    outputs: tuple[str, ...]
    value: Callable[[RowNumbers], Rows]
    over: Callable[[RowNumbers], Selection]
    uniform: Callable[[RowNumbers], Rows] | None
    lacking: str
    baseline: tuple[str, ...] = ()
    by_place: bool = False
    by_token: bool = False

    def why_not(self, layout: Layout) -> str | None:
        """Why this layout leaves the metric undefined for every head."""
        if self.by_place and not layout.ordered:
            return "key positions do not increase, so that tokens have no order"
        if self.by_place and (layout.places < 0).all():
            return "no query is at the position of a key"
        if self.by_token and layout.key_tokens is None:
            return "it was not said which tokens are equal"
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """What metrics have of the rows that count, whatever the numbers in them. Batch and heads are 1 where all have the
    same.
    """

    rows: RowNumbers
    tally: Int64[np.ndarray, "4 #batch #heads"]
    definitions: tuple[Definition, ...]
    able: tuple[Definition, ...]
    """Those that the layout leaves defined."""
    missing: Mapping[str, str]
    """Why the others are not."""
    over: Bool[np.ndarray, "able batch heads queries"]
    counts: Int64[np.ndarray, "able batch heads"]
    quantiles: Quantiles
    uniform: Float64[np.ndarray, "based batch heads"]
    """The means of uniform attention, of those that have one."""

    @classmethod
    def of(cls, definitions: Sequence[Definition], rows: RowNumbers, layout: Layout) -> Ground:
        why = {one.name: one.why_not(layout) for one in definitions}
        missing = {name: reason for name, reason in why.items() if reason is not None}
        able = tuple(one for one in definitions if one.name not in missing)
        over = np.stack([one.over(rows) for one in able]) if able else np.zeros((0, *rows.counted.shape), bool)
        counts = over.sum(-1)
        based = [(i, one.uniform) for i, one in enumerate(able) if one.uniform is not None]
        uniform = np.zeros((0, *rows.counted.shape[:2]))
        if based:
            places = [i for i, _ in based]
            with np.errstate(all="ignore"):
                values = np.stack([value(rows) for _, value in based])
                uniform = np.where(over[places], values, 0.0).sum(-1) / counts[places]
        return cls(rows, rows.tally(), tuple(definitions), able, missing, over, counts, Quantiles.of(counts), uniform)


def measure(ground: Ground, of: RowNumbers) -> Measured:
    """Means, percentiles and baselines of all at once. `ground` is that of these rows."""
    able, spread, layers = ground.able, np.zeros((4, 0, *of.heads)), np.zeros((0, of.heads[0]))
    if able:
        values = np.empty((len(able), *of.heads, ground.over.shape[-1]))
        spread = np.empty((4, len(able), *of.heads))
        with np.errstate(all="ignore"):
            for i, one in enumerate(able):
                values[i] = one.value(of)
            spread[1:] = percentiles(values, ground.over, ground.quantiles).transpose(3, 0, 1, 2)
            np.divide(np.where(ground.over, values, 0.0).sum(-1), ground.counts, out=spread[0])
    finite = np.isfinite(spread[0])
    all_finite = bool(finite.all())
    layers = spread[0].mean(-1) if all_finite else mean_of(spread[0], finite)
    reasons = {}
    if not all_finite:
        for i, one in enumerate(able):
            if not ground.counts[i].all():
                reasons[one.name] = of.why_none or one.lacking
            elif not finite[i].all():
                reasons[one.name] = "it is infinite or no number"
    return Measured(
        tuple(one.name for one in ground.definitions),
        {one.name: i for i, one in enumerate(able)},
        spread,
        ground.counts + np.zeros(of.heads, int),
        layers,
        ground.uniform + np.zeros(of.heads),
        {name: i for i, name in enumerate(one.name for one in able if one.uniform is not None)},
        reasons,
        {name: undefined(of.heads, reason) for name, reason in ground.missing.items()},
    )
