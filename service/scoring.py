"""One request across its encodings: plan, engine, results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from service.admission import Admitted, Limits, admit, check
from service.catalogue import Catalogue, Model
from service.encoding import Encoding
from service.engine.job import Job, JobResult, Tables
from service.errors import InvalidInput, PayloadTooLarge, ServiceError, UnknownName
from service.masks import CausalMasks, Visible, combine, read_mask
from service.parameters import Parameters, ResolvedParameters, Sizes, assign
from service.records import (
    RETURNABLE,
    AttentionInput,
    AttentionOptions,
    EncodingResult,
    ScoringResult,
    Timings,
)
from service.tables import Needs, TableCache

__all__ = ["Limits", "PositionTables", "Runs", "Scoring"]

# Work on fewer cells than this is done on the event loop: a thread would cost more than it frees.
INLINE = 1 << 20


class Runs(Protocol):
    """What scoring needs of the engine."""

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One encoding's share of a request."""

    encoding: Encoding
    parameters: ResolvedParameters
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A request that has passed every check."""

    model: Model
    admitted: Admitted
    causal: bool
    parts: list[Part]
    skipped: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class PositionTables:
    """What one encoding has of positions and parameters alone; `tables` by their names, read-only."""

    heads: int
    head_dim: int
    causal: bool
    parameters: Mapping[str, Any]
    tables: Mapping[str, np.ndarray]


class Scoring:
    """Turns requests into jobs and their results into answers. Holds no request's state."""

    def __init__(self, catalogue: Catalogue, engine: Runs, tables: TableCache, limits: Limits | None = None) -> None:
        self.catalogue = catalogue
        self.engine = engine
        self.tables = tables
        self.limits = limits or Limits()
        self._parameters = Parameters(largest=self.limits.parameters)
        self._causal = CausalMasks()

    async def score(
        self, input: AttentionInput, options: AttentionOptions, timings: Timings, deadline: float | None = None
    ) -> ScoringResult:
        """The attention of one request under each of its encodings, the reference first.

        All of its jobs go to the engine at once. Raises the errors of `service.errors`; those of a request's own doing
        before anything is queued.

        `timings` divides the wall-clock time of this call: checking is added to `decode`; position tables that had to
        be computed and the model's own time make `compute` (the sum over encodings, at most the time waited);
        `batch_assembly` likewise; `queue` is the rest of the wait for the engine; `postprocess` is what comes after.
        """
        began = time.perf_counter()
        plan = self._plan(input, options)
        visible = await self._visible(input.mask, plan)
        planned = time.perf_counter()
        tables = await self._tables(plan)
        ready = time.perf_counter()
        admitted = plan.admitted
        jobs = [
            Job(
                graph=part.encoding.graph,
                tables=table,
                outputs=part.outputs,
                queries=admitted.queries,
                keys=admitted.keys,
                visible=visible,
                cells=admitted.cells * len(part.outputs),
                switches=part.parameters.switches,
            )
            for part, table in zip(plan.parts, tables, strict=True)
        ]
        answers = await self.engine.run(jobs, deadline)
        answered = time.perf_counter()
        results = [_result(part, answer, admitted) for part, answer in zip(plan.parts, answers, strict=True)]
        await _count_nonfinite(results, admitted.cells * sum(len(part.outputs) for part in plan.parts))
        done = time.perf_counter()

        waited = answered - ready
        compute = min(waited, sum(answer.compute for answer in answers))
        assembly = min(waited - compute, sum(answer.batch_assembly for answer in answers))
        timings.decode += planned - began
        timings.compute += compute + (ready - planned)
        timings.batch_assembly += assembly
        timings.queue += waited - compute - assembly
        timings.postprocess += done - answered
        timings.batch_jobs = max(answer.batch_jobs for answer in answers)
        return ScoringResult(
            model=plan.model.name,
            batch=admitted.batch,
            heads=admitted.heads,
            queries=len(admitted.query_positions),
            keys=len(admitted.key_positions),
            head_dim=admitted.head_dim,
            causal=plan.causal,
            results=results,
            tokens=input.tokens,
            timings=timings,
            skipped=plan.skipped,
        )

    async def position_tables(self, input: AttentionInput, options: AttentionOptions) -> PositionTables:
        """What `score` would have of the reference encoding before it looks at any content. Raises the same errors."""
        plan = self._plan(input, options)
        tables, *_ = await self._tables(plan)
        arrays = {name.removeprefix("table."): array for name, array in tables.arrays.items()}
        admitted = plan.admitted
        return PositionTables(admitted.heads, admitted.head_dim, plan.causal, plan.parts[0].parameters.report, arrays)

    async def samples(self, tokens: int = 8, heads: int = 2, head_dim: int = 8) -> list[Job]:
        """A small job for every encoding of every model, as a warm-up: what is ready has answered once."""
        jobs = []
        for model in self.catalogue.models.values():
            width = model.width or heads * head_dim
            embeddings = np.random.default_rng(0).standard_normal((tokens, width), dtype=np.float32)
            for encoding in model.encodings.values():
                causal = encoding.causal == "required" or encoding.default_causal
                options = AttentionOptions(
                    encoding=encoding.id, model=model.name, heads=heads if model.heads is None else None, causal=causal
                )
                plan = self._plan(AttentionInput(embeddings=embeddings), options)
                visible = await self._visible(None, plan)
                (table,) = await self._tables(plan)
                admitted, outputs = plan.admitted, plan.parts[0].outputs
                cells = admitted.cells * len(outputs)
                jobs.append(Job(encoding.graph, table, outputs, admitted.queries, admitted.keys, visible, cells))
        return jobs

    def _plan(self, input: AttentionInput, options: AttentionOptions) -> Plan:
        returns = _returns(options.returns)
        model = self._model(input, options)
        asked, optional = _encodings(model, options)
        admitted = admit(input, model, options.heads, self.limits)
        reference = asked[0]
        causal = options.causal
        if causal is None:
            causal = reference.default_causal or reference.causal == "required"

        skipped: dict[str, str] = {}
        able: list[Encoding] = []
        for encoding in asked:
            try:
                check(encoding, admitted, causal, model)
            except ServiceError as error:
                if encoding.id not in optional:
                    raise
                skipped[encoding.id] = error.detail
            else:
                able.append(encoding)
        given = assign(model, able, options.scalars, input.parameters, skipped)

        largest = max(admitted.query_positions.largest, admitted.key_positions.largest)
        sizes = Sizes(admitted.heads, admitted.head_dim, max(1, int(largest) + 1))
        parts: list[Part] = []
        for encoding in able:
            try:
                parameters = self._parameters.resolve(encoding, given[encoding.id], sizes)
            except ServiceError as error:
                if encoding.id not in optional or given[encoding.id]:
                    raise
                skipped[encoding.id] = error.detail
            else:
                parts.append(Part(encoding, parameters, _outputs(encoding, returns)))
        if not parts:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
            raise InvalidInput(
                f"no encoding of {model.name} can serve this request: {reasons}", pointer="query:compare"
            )
        self._check_cells(admitted, parts)
        return Plan(model, admitted, causal, parts, skipped)

    def _model(self, input: AttentionInput, options: AttentionOptions) -> Model:
        if input.text is None or options.model is not None:
            return self.catalogue.model(options.model)
        self.catalogue.model()  # raises where there is none at all
        model = self.catalogue.text_model()
        if model is None:
            raise InvalidInput(
                "none of the models served here has a tokenizer, so text is not taken; send embeddings", pointer="/text"
            )
        return model

    def _check_cells(self, admitted: Admitted, parts: Sequence[Part]) -> None:
        outputs = sum(len(part.outputs) for part in parts)
        cells = admitted.cells * outputs
        if cells <= self.limits.cells:
            return
        fixes = ["fewer tokens", "a part of the rows as queries against all as keys"]
        if len(parts) > 1:
            fixes.append("fewer encodings at once")
        if outputs > len(parts):
            fixes.append("fewer outputs (return=weights)")
        raise PayloadTooLarge(
            f"this request asks for {cells:,} cells (batch {admitted.rows} x heads {admitted.heads} x queries "
            f"{len(admitted.query_positions)} x keys {len(admitted.key_positions)} x {outputs} outputs of {len(parts)} "
            f"encodings); the limit is {self.limits.cells:,}: ask for {', or '.join(fixes)}",
            limit=self.limits.cells,
        )

    async def _visible(self, mask: np.ndarray | None, plan: Plan) -> Visible | None:
        if mask is None and not plan.causal:
            return None
        if plan.admitted.cells < INLINE:
            return self._build_visible(mask, plan)
        return await asyncio.to_thread(self._build_visible, mask, plan)

    def _build_visible(self, mask: np.ndarray | None, plan: Plan) -> Visible | None:
        admitted = plan.admitted
        queries, keys = admitted.query_positions, admitted.key_positions
        causal = self._causal.get(queries, keys) if plan.causal else None
        if mask is None:
            return causal
        read = read_mask(mask, admitted.batch, admitted.heads, len(queries), len(keys))
        return combine(read, causal, len(queries), len(keys))

    async def _tables(self, plan: Plan) -> list[Tables]:
        admitted = plan.admitted
        needs = [
            Needs(
                part.encoding,
                part.parameters,
                admitted.query_positions,
                admitted.key_positions,
                plan.causal,
                admitted.heads,
                admitted.head_dim,
            )
            for part in plan.parts
        ]
        found = [self.tables.get(need) for need in needs]
        missing = [need for need, table in zip(needs, found, strict=True) if table is None]
        computed = iter(await asyncio.gather(*map(self.tables.tables, missing)) if missing else ())
        return [next(computed) if table is None else table for table in found]


def _returns(names: Iterable[str]) -> tuple[str, ...]:
    returns = tuple(dict.fromkeys(names))
    for name in returns:
        if name not in RETURNABLE:
            raise UnknownName("value of return", name, RETURNABLE, pointer="query:return")
    if not returns:
        raise InvalidInput(f"return names nothing; it may hold {', '.join(RETURNABLE)}", pointer="query:return")
    return returns


def _outputs(encoding: Encoding, returns: Sequence[str]) -> tuple[str, ...]:
    outputs = [name for name in ("weights", "scores", "output") if name in returns]
    return (*outputs, *(encoding.term_outputs if "terms" in returns else ()))


def _encodings(model: Model, options: AttentionOptions) -> tuple[list[Encoding], set[str]]:
    """The encodings asked for, the reference first; and the ids of those that only `all` asks for."""
    everything = any(name.strip().lower() == "all" for name in options.compare)
    reference = model.encoding(options.encoding)
    named = [model.encoding(name, pointer="query:compare") for name in options.compare if name.strip().lower() != "all"]
    asked = {
        encoding.id: encoding for encoding in (reference, *named, *(model.encodings.values() if everything else ()))
    }
    if not everything:
        return list(asked.values()), set()
    insisted = {encoding.id for encoding in named} | ({reference.id} if options.encoding is not None else set())
    return list(asked.values()), set(asked) - insisted


def _result(part: Part, answer: JobResult, admitted: Admitted) -> EncodingResult:
    arrays = {name: array if admitted.batch is not None else array[0] for name, array in answer.outputs.items()}
    terms = {name.removeprefix("term."): array for name, array in arrays.items() if name.startswith("term.")}
    return EncodingResult(
        encoding=part.encoding.id,
        parameters=part.parameters.report,
        conventions=part.encoding.conventions,
        weights=arrays.get("weights"),
        scores=arrays.get("scores"),
        output=arrays.get("output"),
        terms=terms or None,
    )


async def _count_nonfinite(results: Sequence[EncodingResult], cells: int) -> None:
    if cells < INLINE:
        _count(results)
    else:
        await asyncio.to_thread(_count, results)


def _count(results: Sequence[EncodingResult]) -> None:
    for result in results:
        arrays = [result.weights, result.scores, result.output, *(result.terms or {}).values()]
        result.nonfinite_cells = sum(_nonfinite(array) for array in arrays if array is not None)


def _nonfinite(array: np.ndarray) -> int:
    finite = np.isfinite(array)
    return 0 if finite.all() else int(finite.size - np.count_nonzero(finite))
