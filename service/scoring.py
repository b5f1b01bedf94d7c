"""One request across its encodings: plan, engine, results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.catalogue import Catalogue
from service.engine.job import Job, JobResult
from service.records import AttentionInput, AttentionOptions, ScoringResult, Timings
from service.tables import TableCache


class Runs(Protocol):
    """What scoring needs of the engine."""

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest request that is taken. `cells`: batch * heads * queries * keys over all outputs of all encodings."""

    tokens: int = 16_384
    width: int = 8_192
    heads: int = 1_024
    batch: int = 4_096
    cells: int = 1 << 26
    position: float = 1e9


class Scoring:
    def __init__(self, catalogue: Catalogue, engine: Runs, tables: TableCache, limits: Limits | None = None) -> None:
        self.catalogue = catalogue
        self.engine = engine
        self.tables = tables
        self.limits = limits or Limits()

    async def score(
        self, input: AttentionInput, options: AttentionOptions, timings: Timings, deadline: float | None = None
    ) -> ScoringResult:
        raise NotImplementedError
