"""What is to be done with a request, once it has passed every check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Int32

from service.admission import Admitted
from service.analysis.analyst import Study
from service.catalogue import Model
from service.encoding import Encoding
from service.engine.appending import matrices
from service.engine.job import Graph, Job, JobResult
from service.engine.pruning import whole
from service.errors import Overloaded
from service.finite import nonfinite
from service.instance import Instance
from service.masks import Sight, Visible
from service.padding import Padded
from service.parameters import ResolvedParameters
from service.positions import Positions
from service.selection import Choice, index, pick
from service.tables import Needs


class Runs(Protocol):
    """What scoring needs of the engine."""

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]: ...


class RunsAtOnce(Protocol):
    """What requests that wait for nothing need of the engine."""

    def room(self, job: Job) -> int:
        """How many jobs like this one may share a run on the event loop; 0 where it is not the place for them."""

    def refusal(self, jobs: int, cells: int) -> Overloaded | None:
        """What so many jobs that wait for a worker are told now; None where there is room for them."""

    def run_at_once(self, job: Job, one: Job, count: int, *, full: bool) -> JobResult | None:
        """The result of `job`, which is `count` jobs like `one` in one; None where it failed."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One encoding's share of a request."""

    instance: Instance
    parameters: ResolvedParameters
    conventions: Mapping[str, str]
    outputs: tuple[str, ...]
    kept: tuple[str, ...]
    """Of the outputs, those that the answer is made of."""
    needs: Needs
    behind: Graph | None = None
    """Its graph with another behind it, where the numbers of its rows are wanted."""
    padded: Padded | None = None
    """Where it is computed with more tokens than it has."""

    @property
    def encoding(self) -> Encoding:
        return self.instance.encoding

    @property
    def graph(self) -> Graph:
        """What is run."""
        return self.behind or self.encoding.graph

    @property
    def matrices(self) -> int:
        """How many its run makes, at the least."""
        return matrices(self.outputs)

    @property
    def computed(self) -> Needs:
        """What the tables of its run follow from."""
        return self.needs if self.padded is None else self.padded.needs


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The sizes and positions of a request, without its numbers. The shape is that which the model takes.

    The positions and cells are those of the rows that were chosen, the shape that of all queries.
    """

    batch: int | None
    heads: int
    head_dim: int
    query_positions: Positions
    key_positions: Positions
    query_shape: tuple[int, ...]
    choice: Choice
    cells: int
    """Of one output."""

    @classmethod
    def of(cls, admitted: Admitted, choice: Choice) -> Layout:
        queries, rows = admitted.query_positions, choice.rows
        if rows is not None:
            queries = Positions.of(queries.values[rows])
        return cls(
            admitted.batch,
            admitted.heads,
            admitted.head_dim,
            queries,
            admitted.key_positions,
            admitted.queries.shape,
            choice,
            admitted.rows * admitted.heads * len(queries) * len(admitted.key_positions),
        )

    def chosen(self, queries: np.ndarray) -> np.ndarray:
        """The rows that are computed."""
        rows = self.choice.rows
        return queries if rows is None else np.ascontiguousarray(queries[:, index(rows)])


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A request that has passed every check, without its numbers: one plan serves all that differ in those alone."""

    model: Model
    layout: Layout
    sight: Sight
    parts: list[Part]
    skipped: Mapping[str, str]
    largest_job: int
    """Cells, of all outputs of one part."""
    returns: tuple[str, ...]
    study: Study | None
    """What is to be found out about the matrices."""

    @property
    def causal(self) -> bool:
        return self.sight.causal


@dataclass(slots=True)
class Picked:
    """What an answer keeps of a run's outputs, by their whole names: of all keys or, where `keys` says which, of the
    largest of each row.

    All but `output` [batch, queries, heads, head_dim] are [batch, heads, queries, keys].
    """

    outputs: Mapping[str, np.ndarray]
    keys: Int32[np.ndarray, "batch heads queries k"] | None = None
    nonfinite: int = 0

    @classmethod
    def of(cls, choice: Choice, kept: Sequence[str], answer: JobResult, visible: Visible | None) -> Picked:
        """`kept` are the outputs that the answer is made of."""
        computed = {whole(name): answer.outputs[name] for name in kept}
        outputs, keys = pick(choice, computed, visible)
        damaged = answer.nonfinite
        if damaged and (outputs is not computed or len(computed) < len(answer.outputs)):
            damaged = nonfinite(outputs.values())
        return cls(outputs, keys, damaged)
