"""A metric as the mean of a number over some of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from service.summaries.layout import Layout
from service.summaries.metric import Metric, undefined
from service.summaries.rows import RowNumbers
from service.summaries.shapes import Rows, Selection
from service.summaries.spread import mean_of, percentiles

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


def measure(definitions: Sequence[Definition], of: RowNumbers, layout: Layout) -> dict[str, Metric]:
    """Means, percentiles and baselines of all at once: few NumPy calls, however many metrics."""
    heads = of.real.shape[:2]
    why = {one.name: one.why_not(layout) for one in definitions}
    metrics = {name: undefined(heads, reason) for name, reason in why.items() if reason is not None}
    able = [one for one in definitions if why[one.name] is None]
    if not able:
        return {one.name: metrics[one.name] for one in definitions}
    based = [(i, one.uniform) for i, one in enumerate(able) if one.uniform is not None]
    places = [*range(len(able)), *(i for i, _ in based)]
    over = np.stack([one.over(of) for one in able])
    rows = over.sum(-1)
    with np.errstate(all="ignore"):
        values = np.stack([one.value(of) for one in able] + [uniform(of) for _, uniform in based])
        spread = percentiles(values[: len(able)], over, rows)
        means = np.where(over[places], values, 0.0).sum(-1) / rows[places]
    layers = mean_of(means[: len(able)], np.isfinite(means[: len(able)]))
    all_there, finite = bool(rows.all()), bool(np.isfinite(means).all())
    baselines = {able[i].name: means[len(able) + j] for j, (i, _) in enumerate(based)}
    for i, one in enumerate(able):
        reason = None
        if not all_there and not rows[i].all():
            reason = of.why_none or one.lacking
        elif not finite and not np.isfinite(means[i]).all():
            reason = "it is infinite or no number"
        p10, p50, p90 = spread[i, ..., 0], spread[i, ..., 1], spread[i, ..., 2]
        metrics[one.name] = Metric(means[i], rows[i], p10, p50, p90, baselines.get(one.name), reason, layers[i])
    return {one.name: metrics[one.name] for one in definitions}
