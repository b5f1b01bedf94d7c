"""Response times as they were measured. Locust's own table rounds them to whole milliseconds and two digits."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from rich.console import Console
from rich.table import Table


class Report:
    """Collects every request of a run by name and prints one table of them."""

    def __init__(self) -> None:
        self.milliseconds: defaultdict[str, list[float]] = defaultdict(list)
        self.failures: defaultdict[str, int] = defaultdict(int)
        self.reasons: defaultdict[str, int] = defaultdict(int)
        self.started = 0.0

    def start(self, now: float) -> None:
        self.started = now

    def record(self, name: str, milliseconds: float, failure: BaseException | str | None) -> None:
        self.milliseconds[name].append(milliseconds)
        if failure is not None:
            self.failures[name] += 1
            self.reasons[f"{name}: {failure}"] += 1

    def print(self, now: float) -> None:
        seconds = now - self.started
        table = Table("request", title=f"{sum(map(len, self.milliseconds.values()))} requests in {seconds:.1f} s")
        for heading in ("count", "failed", "per second", "p50 ms", "p95 ms", "p99 ms", "max ms"):
            table.add_column(heading, justify="right")
        for name, times in sorted(self.milliseconds.items()):
            quantiles = (f"{value:.1f}" for value in np.quantile(times, (0.5, 0.95, 0.99, 1.0)))
            table.add_row(name, str(len(times)), str(self.failures[name]), f"{len(times) / seconds:.1f}", *quantiles)
        console = Console(width=110)
        console.print(table)
        for reason, count in sorted(self.reasons.items(), key=lambda item: -item[1])[:10]:
            console.print(f"{count} x {reason}", style="red", markup=False, highlight=False)
