"""A metric as the mean of a number over some of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from service.summaries.layout import Layout
from service.summaries.metric import Metric, undefined
from service.summaries.rows import RowNumbers
from service.summaries.shapes import Rows, Selection
from service.summaries.spread import mean_of, spread

ONE_KEY = "no counted row sees two keys or more"


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric as the mean of `value` over the rows in `over`; `lacking` is why there are none."""

    name: str
    outputs: tuple[str, ...]
    value: Callable[[RowNumbers], Rows]
    over: Callable[[RowNumbers], Selection]
    uniform: Callable[[RowNumbers], Rows] | None
    lacking: str
    by_place: bool = False
    by_token: bool = False


def measure(definitions: Sequence[Definition], of: RowNumbers, layout: Layout) -> dict[str, Metric]:
    """Means, percentiles and baselines of all at once: few NumPy calls, however many metrics."""
    nothing = np.zeros(of.real.shape)
    why = {one.name: why_not(one, layout) for one in definitions}
    able = [one for one in definitions if why[one.name] is None]
    metrics = {one.name: undefined(nothing[..., 0], str(why[one.name])) for one in definitions if why[one.name]}
    if able:
        over = np.stack([one.over(of) for one in able])
        mean, p10, p50, p90 = spread(np.stack([one.value(of) for one in able]), over)
        baseline = mean_of(np.stack([nothing if one.uniform is None else one.uniform(of) for one in able]), over)
        counts = over.sum(-1)
        for i, one in enumerate(able):
            reason = None
            if not counts[i].all():
                reason = of.why_none or one.lacking
            elif not np.isfinite(mean[i]).all():
                reason = "it is infinite or no number"
            uniform = None if one.uniform is None else baseline[i]
            metrics[one.name] = Metric(mean[i], counts[i], p10[i], p50[i], p90[i], uniform, reason)
    return {one.name: metrics[one.name] for one in definitions}


def why_not(definition: Definition, layout: Layout) -> str | None:
    """Why this layout leaves the metric undefined for every head."""
    if definition.by_place and not layout.ordered:
        return "key positions do not increase, so that tokens have no order"
    if definition.by_place and (layout.places < 0).all():
        return "no query is at the position of a key"
    if definition.by_token and layout.key_tokens is None:
        return "it was not said which tokens are equal"
    return None
