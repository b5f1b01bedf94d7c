"""What the metrics say, and how it changes."""

from __future__ import annotations

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

Key = tuple[str, tuple[tuple[str, str], ...]]


def parse(text: str) -> dict[Key, float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def read(client: TestClient) -> dict[Key, float]:
    return parse(client.get("/metrics").text)


def changes(before: dict[Key, float], after: dict[Key, float], name: str) -> Counter[tuple[str, ...]]:
    """By how much the series of that name moved, by the values of their labels in the order of the labels' names."""
    moved: Counter[tuple[str, ...]] = Counter()
    for (series, labels), value in after.items():
        difference = value - before.get((series, labels), 0.0)
        if series == name and difference:
            moved[tuple(value for _, value in labels)] += int(difference)
    return moved
