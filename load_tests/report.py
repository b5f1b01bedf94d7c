"""What the generator saw, by step and by name. Locust's own table rounds to two digits and counts from the sending."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LEFT = "left"


@dataclass
class Requests:
    """Those of one name in one step. Seconds are from the moment a request was due."""

    seconds: array[float] = field(default_factory=lambda: array("d"))
    failed: int = 0
    received: int = 0
    """Bytes of the answers' bodies."""


@dataclass
class Part:
    """One step, from `began` to `ended` by the monotonic clock. `rate` is what was meant, None in a closed loop."""

    name: str
    began: float
    seconds: float
    rate: float | None
    judged: bool = True
    refusable: bool = False
    refused: int = 0
    requests: defaultdict[str, Requests] = field(default_factory=lambda: defaultdict(Requests))
    late: array[float] = field(default_factory=lambda: array("d"))
    """Seconds between a request's being due and its being sent: the generator's own delay."""
    dropped: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    """Of every request sent: the status, or `left` where the client did not stay for one."""

    def add(self, name: str, seconds: float, status: int | str, *, failed: bool = False, received: int = 0) -> None:
        entry = self.requests[name]
        entry.seconds.append(seconds)
        entry.failed += failed
        entry.received += received
        self.statuses[str(status)] += 1

    def refuse(self, name: str, seconds: float, status: int) -> None:
        """A refusal with Retry-After: an answer, but not what was asked for."""
        self.add(f"{name} refused", seconds, status)
        self.refused += 1

    def mean_seconds(self) -> float:
        """Of all requests; NaN where there were none."""
        every = [value for entry in self.requests.values() for value in entry.seconds]
        return float(np.mean(every)) if every else float("nan")

    def percentile(self, q: float, among: str = "") -> float | None:
        """Seconds, of the requests whose name has `among` in it and that were not refused; None where none are."""
        chosen = [
            value
            for name, entry in self.requests.items()
            if among in name and "refused" not in name
            for value in entry.seconds
        ]
        return float(np.quantile(chosen, q)) if chosen else None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, times in milliseconds."""
        return {
            "name": self.name,
            "began": self.began,
            "seconds": self.seconds,
            "rate": self.rate,
            "judged": self.judged,
            "sent": sum(self.statuses.values()),
            "answered_200": self.statuses["200"],
            "statuses": dict(sorted(self.statuses.items())),
            "dropped": self.dropped,
            "refused": self.refused,
            "refusable": self.refusable,
            "lag_p99_ms": _milliseconds(float(np.quantile(self.late, 0.99))) if self.late else None,
            "requests": [_row(name, entry) for name, entry in sorted(self.requests.items())],
        }


def _row(name: str, entry: Requests) -> dict[str, Any]:
    p50, p95, p99, most = (_milliseconds(float(value)) for value in np.quantile(entry.seconds, (0.5, 0.95, 0.99, 1.0)))
    count = len(entry.seconds)
    return {
        "name": name,
        "count": count,
        "failed": entry.failed,
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "max_ms": most,
        "mean_bytes": round(entry.received / count),
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)
