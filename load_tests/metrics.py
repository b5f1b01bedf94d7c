"""What a service counts of itself: its /metrics, read and subtracted."""

from __future__ import annotations

import urllib.request
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

FIGURES = {
    "attention_batches_total": "",
    "attention_stage_duration_seconds_sum": "stage",
    "attention_stage_duration_seconds_count": "stage",
    "attention_tokens_total": "kind",
    "attention_batch_requests_sum": "",
    "attention_batch_requests_count": "",
}
"""What figures are made of: the samples, and the label that each is told apart by."""


@dataclass(frozen=True)
class Metrics:
    """Samples by name and labels."""

    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    @classmethod
    def of(cls, text: str) -> Metrics:
        return cls(
            {
                (sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
        )

    @classmethod
    def read(cls, address: str) -> Metrics:
        with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
            return cls.of(answer.read().decode())

    def __sub__(self, before: Metrics) -> Metrics:
        return Metrics({key: value - before.samples.get(key, 0.0) for key, value in self.samples.items()})

    def condensed(self) -> Metrics:
        """What `figures` reads, summed over all other labels: some twenty numbers of the thousands there are."""
        return Metrics(
            {
                (name, ((label, value),) if label else ()): total
                for name, label in FIGURES.items()
                for value, total in self.by(name, label).items()
            }
        )

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that have these labels."""
        return sum(self.by(name, "", **labels).values())

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sums by the value of one label."""
        found: defaultdict[str, float] = defaultdict(float)
        for (sample, pairs), value in self.samples.items():
            has = dict(pairs)
            if sample == name and labels.items() <= has.items():
                found[has.get(label, "")] += value
        return dict(found)

    def statuses(self) -> Counter[str]:
        """Requests to /attention by status."""
        told = self.by("attention_requests_total", "status", endpoint="/attention")
        return +Counter({status: round(value) for status, value in told.items()})

    def figures(self) -> dict[str, Any]:
        """Of a difference: batches, mean jobs in a batch, the mean of each stage in milliseconds, padding's share."""
        batches = self.total("attention_batches_total")
        stages = self.by("attention_stage_duration_seconds_sum", "stage")
        counts = self.by("attention_stage_duration_seconds_count", "stage")
        tokens = self.by("attention_tokens_total", "kind")
        jobs, runs = (self.total(f"attention_batch_requests_{part}") for part in ("sum", "count"))
        return {
            "batches": round(batches),
            "jobs_per_batch": round(jobs / runs, 3) if runs else None,
            "stage_means_ms": {
                stage: round(1e3 * total / counts[stage], 3) for stage, total in stages.items() if counts.get(stage)
            },
            "padding": round(tokens.get("padding", 0.0) / sum(tokens.values()), 4) if sum(tokens.values()) else None,
        }
