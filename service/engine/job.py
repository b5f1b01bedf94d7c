"""What the engine is given and what it gives back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True, slots=True)
class Graph:
    """A scores graph on disk. `name` (`<model>.<encoding>`) labels it in metrics; `digest` tells versions apart.

    `behind` is a graph that reads its weights and scores: of that are the outputs named `summary.<name>`.
    """

    name: str
    path: Path
    digest: str
    behind: Path | None = None


@dataclass(frozen=True, slots=True)
class Tables:
    """Position tables shared by every job of a batch. Equal `key` means equal arrays."""

    key: str
    arrays: Mapping[str, np.ndarray]


def digest(content: bytes) -> str:
    """Tells versions of a file apart."""
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass(frozen=True, slots=True, eq=False)
class Into:
    """Arrays of the caller's that outputs are written to: all outputs of a job, by their names, C-contiguous."""

    arrays: Mapping[str, np.ndarray]
    bound: list[Any] = field(default_factory=list)
    """What a runner has prepared for runs from the same inputs to these arrays, and is in use by none."""


class Own(NamedTuple):
    """An input of a graph of which every item of a batch has its own, [items or 1, ...]. Along the axes named `queries`
    and `keys` it is filled up with zeros, as the job is.
    """

    array: np.ndarray
    axes: tuple[str, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """The sizes of the axes that jobs of one run must have alike."""
        sizes = zip(self.axes, self.array.shape, strict=True)
        return tuple(size for axis, size in sizes if axis not in ("batch", "queries", "keys"))


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
    own: tuple[tuple[str, tuple[int, ...]], ...] = ()


NOTHING = np.empty((1, 0), np.float32)
"""The queries and keys of a graph that takes none."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One input under one encoding. All shapes were checked at admission.

    `visible` is None where nothing is masked, else bool [batch or 1, heads or 1, queries, keys].
    `cells` (batch * heads * queries * keys * outputs) is the job's cost in the queue's account.
    `switches` names the graph's switches that are on; the others are off.
    `padded`, where given, is how many queries and keys it is computed with: its tables are those of so many, `visible`
    may be of either size, and `cells` counts the padding. Padded keys weigh nothing and padded rows are cut off.
    """

    graph: Graph
    tables: Tables
    outputs: tuple[str, ...]
    queries: Float[np.ndarray, "batch queries *features"]
    keys: Float[np.ndarray, "batch keys *features"]
    visible: Bool[np.ndarray, "#batch #heads queries keys"] | None
    cells: int
    switches: tuple[str, ...] = ()
    padded: tuple[int, int] | None = None
    known_key: BatchKey | None = None
    """`key`, where it was worked out before."""
    into: Into | None = None
    """Where its outputs are to be written. Such a job runs alone."""
    own: Mapping[str, Own] | None = None
    """Inputs beside queries, keys and mask that it does not have in common with the others of its run."""

    @classmethod
    def of_arrays(
        cls,
        graph: Graph,
        feeds: Tables,
        outputs: tuple[str, ...],
        cells: int,
        visible: Bool[np.ndarray, "#batch #heads queries keys"] | None = None,
        switches: tuple[str, ...] = (),
    ) -> Job:
        """One for a graph that takes other inputs than queries and keys: all of them are in `feeds`. `feeds.key` must
        be one that no other job has, for such jobs share no runs.
        """
        return cls(graph, feeds, outputs, NOTHING, NOTHING, visible, cells, switches)

    @classmethod
    def of_items(
        cls,
        graph: Graph,
        shared: Tables,
        own: Mapping[str, Own],
        outputs: tuple[str, ...],
        sizes: tuple[int, int, int],
        cells: int,
        visible: Bool[np.ndarray, "#batch #heads queries keys"] | None = None,
        switches: tuple[str, ...] = (),
        padded: tuple[int, int] | None = None,
    ) -> Job:
        """The same, but one that shares runs: with all whose inputs but their `own` are these. `sizes` are its items,
        queries and keys.
        """
        items, *lengths = sizes
        queries, keys = (np.empty((items, length, 0), np.float32) for length in lengths)
        return cls(graph, shared, outputs, queries, keys, visible, cells, switches, padded, own=own)

    @property
    def lengths(self) -> tuple[int, int]:
        """The queries and keys of its run."""
        return self.padded or (self.queries.shape[1], self.keys.shape[1])

    @property
    def masked(self) -> bool:
        return self.visible is not None or (self.padded is not None and self.padded[1] > self.keys.shape[1])

    @property
    def key(self) -> BatchKey:
        if self.known_key is not None:
            return self.known_key
        queries, keys = self.queries.shape[1:], self.keys.shape[1:]
        if self.padded is not None:
            queries, keys = (self.padded[0], *queries[1:]), (self.padded[1], *keys[1:])
        return BatchKey(
            self.graph.name,
            self.graph.digest,
            self.tables.key,
            self.outputs,
            self.masked,
            self.switches,
            queries,
            keys,
            () if self.own is None else tuple((name, one.others) for name, one in self.own.items()),
        )


@dataclass(slots=True)
class JobResult:
    """The outputs asked for, as views cut from the batch's arrays, and where the time went (seconds)."""

    outputs: Mapping[str, np.ndarray]
    queue: float = 0.0
    batch_assembly: float = 0.0
    compute: float = 0.0
    work: float = 0.0
    """Seconds of the whole batch as the cost model counts them: of the processor, where that computes, for they do not
    depend on who else wants it."""
    batch_jobs: int = 1
    nonfinite: int = 0
    """Numbers among the outputs that are NaN or infinite."""
    provider: str = field(default="CPUExecutionProvider")
