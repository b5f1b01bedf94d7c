"""Statistics of one model in several instances of the service, as those of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def summed(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One report like these, which are of the same model: counts and times are their sums, `last_inference` is the
    latest."""
    total, *others = reports
    for other in others:
        total = _together(total, other)
    batches: dict[int, dict[str, Any]] = {}
    for report in reports:
        for one in report["batch_stats"]:
            size = one["batch_size"]
            batches[size] = _together(batches[size], one) if size in batches else one
    last = max(report["last_inference"] for report in reports)
    return {**total, "last_inference": last, "batch_stats": [batches[size] for size in sorted(batches)]}


def _together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Numbers are added, whatever they are in; what has a name keeps it."""
    return {name: _sum(name, value, other[name]) for name, value in one.items()}


def _sum(name: str, one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return _together(one, other)
    return one + other if isinstance(one, int) and name != "batch_size" else one
