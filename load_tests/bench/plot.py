"""The picture of time against length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from load_tests.bench.records import ScalingRow

COLOURS = {None: "#1f5fa8", "rows": "#c2571a"}


def draw(points: Sequence[ScalingRow], path: Path) -> None:
    """Both axes logarithmic; the service in full lines, the bare model in dashed ones of the same colour."""
    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    for rows in sorted({point.rows for point in points}, key=lambda rows: rows or 0):
        line = [point for point in points if point.rows == rows]
        tokens = [point.tokens for point in line]
        colour = COLOURS[None if rows is None else "rows"]
        name = "all rows" if rows is None else f"last {rows} rows"
        for values, style, who in (
            ([np.median(point.service) for point in line], "o-", "service"),
            ([np.median(point.bare) for point in line], "o--", "bare session.run"),
        ):
            axis.loglog(tokens, values, style, color=colour, markersize=4, linewidth=1.6, label=f"{who}, {name}")
    ticks = sorted({point.tokens for point in points})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel("tokens")
    axis.set_ylabel("milliseconds for one request")
    axis.grid(which="major", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
