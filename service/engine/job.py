"""What the engine is given and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float


@dataclass(frozen=True, slots=True)
class Graph:
    """A scores graph on disk. `name` (`<model>.<encoding>`) labels it in metrics; `digest` tells versions apart."""

    name: str
    path: Path
    digest: str


@dataclass(frozen=True, slots=True)
class Tables:
    """Position tables shared by every job of a batch. Equal `key` means equal arrays."""

    key: str
    arrays: Mapping[str, np.ndarray]


class BatchKey(NamedTuple):
    """What must be equal for two jobs to share one run on the CPU."""

    graph: str
    digest: str
    tables: str
    outputs: tuple[str, ...]
    masked: bool
    switches: tuple[str, ...]
    query_shape: tuple[int, ...]
    key_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One input under one encoding. All shapes were checked at admission.

    `visible` is None where nothing is masked, else bool [batch or 1, heads or 1, queries, keys].
    `cells` (batch * heads * queries * keys * outputs) is the job's cost in the queue's account.
    `switches` names the graph's switches that are on; the others are off.
    """

    graph: Graph
    tables: Tables
    outputs: tuple[str, ...]
    queries: Float[np.ndarray, "batch queries *features"]
    keys: Float[np.ndarray, "batch keys *features"]
    visible: Bool[np.ndarray, "#batch #heads queries keys"] | None
    cells: int
    switches: tuple[str, ...] = ()

    @property
    def key(self) -> BatchKey:
        return BatchKey(
            self.graph.name,
            self.graph.digest,
            self.tables.key,
            self.outputs,
            self.visible is not None,
            self.switches,
            self.queries.shape[1:],
            self.keys.shape[1:],
        )


@dataclass(slots=True)
class JobResult:
    """The outputs asked for, as views cut from the batch's arrays, and where the time went (seconds)."""

    outputs: Mapping[str, np.ndarray]
    queue: float = 0.0
    batch_assembly: float = 0.0
    compute: float = 0.0
    batch_jobs: int = 1
    nonfinite: int = 0
    """Numbers among the outputs that are NaN or infinite."""
    provider: str = field(default="CPUExecutionProvider")
