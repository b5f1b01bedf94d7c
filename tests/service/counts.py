"""What the metrics say, and how it changes."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

from starlette.testclient import TestClient

Key = tuple[str, tuple[tuple[str, str], ...]]

_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"\\]*)"')


def parse(text: str) -> dict[Key, float]:
    """What the library's parser reads (`test_telemetry` holds it to that), twenty times as fast."""
    return {(name, _labels(labels)): float(value) for name, labels, value in _LINE.findall(text)}


@lru_cache(maxsize=1 << 14)
def _labels(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(_LABEL.findall(text)))


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


def total(found: dict[Key, float], name: str) -> float:
    """The sum of all series of that name."""
    return sum(value for (series, _), value in found.items() if series == name)
