"""Many metrics of the same heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from service.summaries.lists import written
from service.summaries.metric import Metric

SPREAD = ("mean", "p10", "p50", "p90")


@dataclass(frozen=True, slots=True, eq=False)
class Measured(Mapping[str, Metric]):
    """Metrics by their names. Those that are means over rows lie in one array of each kind: few NumPy calls, however
    many there are.
    """

    order: tuple[str, ...]
    """Of all names."""
    places: Mapping[str, int]
    """Which metric of the arrays each name is."""
    spread: Float64[np.ndarray, "4 metrics batch heads"]
    """As `SPREAD`."""
    rows: Int64[np.ndarray, "metrics batch heads"]
    layers: Float64[np.ndarray, "metrics batch"]
    uniform: Float64[np.ndarray, "based batch heads"]
    based: Mapping[str, int]
    """Which of `uniform` each name has that has one."""
    reasons: Mapping[str, str]
    others: Mapping[str, Metric]
    """Those that are not in the arrays."""

    def __getitem__(self, name: str) -> Metric:
        if name in self.others:
            return self.others[name]
        i, based = self.places[name], self.based.get(name)
        mean, p10, p50, p90 = self.spread[:, i]
        uniform = None if based is None else self.uniform[based]
        return Metric(mean, self.rows[i], p10, p50, p90, uniform, self.reasons.get(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)

    def chosen(self, order: tuple[str, ...], others: Mapping[str, Metric]) -> Measured:
        """These names only, of which `others` are told."""
        return replace(self, order=order, others={**self.others, **others})

    def part(self, items: slice) -> Measured:
        """Of some of the batch."""
        return replace(
            self,
            spread=self.spread[:, :, items],
            rows=self.rows[:, items],
            layers=self.layers[:, items],
            uniform=self.uniform[:, items],
            others={name: metric.part(items) for name, metric in self.others.items()},
        )

    def documents(self, batched: bool = True) -> dict[str, dict[str, Any]]:
        """What `Metric.document` gives of each."""
        arrays = (self.spread, self.rows, self.layers, self.uniform)
        if not batched:
            arrays = (self.spread[:, :, 0], self.rows[:, 0], self.layers[:, 0], self.uniform[:, 0])
        spread, rows, layers, uniform = map(written, arrays)
        documents: dict[str, dict[str, Any]] = {}
        for name in self.order:
            if name in self.others:
                documents[name] = self.others[name].document(batched)
                continue
            i, based = self.places[name], self.based.get(name)
            one = {kind: spread[j, i] for j, kind in enumerate(SPREAD)}
            if based is not None:
                one["uniform"] = uniform[based]
            one |= {"layer": layers[i], "rows": rows[i]}
            if name in self.reasons:
                one["reason"] = self.reasons[name]
            documents[name] = one
        return documents
