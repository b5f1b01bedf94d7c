"""One request across its encodings: plan, engine, results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool

from service.admission import Limits, admit, check, whole_keys
from service.analysis.analyst import Analyst, Study, analysis_folder
from service.analysis.inquiry import Inquiry, Piece
from service.analysis.tokens import padding, with_tokens
from service.analysis.wanted import Wanted
from service.blocks import Block
from service.cache import Cache
from service.catalogue import Catalogue, Model
from service.comparisons import metrics as of_pairs
from service.conventions import conventions
from service.encoding import Encoding
from service.engine.job import Job, JobResult, Own, Tables
from service.engine.pruning import HALF
from service.errors import InvalidInput, NotReady, PayloadTooLarge, ServiceError
from service.instance import Instance, asked
from service.large import Bounds, Large
from service.masks import Sight, SightMasks, Visible, combine, mask_axes, read_mask
from service.padding import Lengths, Padding
from service.parameters import Given, Parameters, ResolvedParameters, Sizes, assign
from service.places import Placed, Places
from service.plan import Layout, Part, Picked, Plan, Runs
from service.records import AttentionInput, AttentionOptions, EncodingResult, ScoringResult, Timings, TopK
from service.returns import returned
from service.selection import Indices, choose, index
from service.summaries.summary import Summary
from service.tables import Needs, TableCache

T = TypeVar("T")

__all__ = ["Limits", "PositionTables", "Runs", "Scoring"]

# Bytes of the plans that are kept, and about what each has of an encoding, beside its positions.
PLANS, OF_PART = 16 << 20, 1 << 14
# Tokens, heads and head_dim of the jobs that show what runs cost.
SIZES = ((4, 1, 16), (16, 2, 16), (64, 1, 16), (32, 4, 16), (32, 4, 64), (128, 2, 16), (128, 4, 32), (256, 2, 64))
# Numbers that an inquiry may look at on the event loop.
QUICK = 1 << 17
# Work on fewer cells than this is done on the event loop: a thread would cost more than it frees.
INLINE = 1 << 20
# Bytes of a text from which it is read on a thread.
INLINE_TEXT = 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class PositionTables:
    """What one encoding has of positions and parameters alone; `tables` by their names, read-only."""

    heads: int
    head_dim: int
    causal: bool
    parameters: Mapping[str, Any]
    given: Collection[str]
    """Those of them that the request named."""
    tables: Mapping[str, np.ndarray]


class Scoring:
    """Turns requests into jobs and their results into answers. Holds no request's numbers."""

    def __init__(
        self,
        catalogue: Catalogue,
        engine: Runs,
        tables: TableCache,
        limits: Limits | None = None,
        padding: Lengths | None = None,
        large: Bounds | None = None,
        analyst: Analyst | None = None,
    ) -> None:
        """`padding` says which lengths are computed as longer ones; None: all are computed as they are. Jobs of more
        than `large.block` cells are computed in blocks. `analyst` makes summaries and comparisons.
        """
        self.catalogue = catalogue
        self.engine = engine
        self.tables = tables
        self.limits = limits or Limits()
        self._parameters = Parameters(largest=self.limits.parameters)
        self._lengths = padding
        self._padding = None if padding is None else Padding(padding, self._parameters)
        self.analyst = analyst or Analyst(analysis_folder(()))
        self._sights = SightMasks()
        bounds = large or Bounds(self.limits.cells, 2 * self.limits.cells)
        self.large = Large(engine, tables, bounds)
        self._plans: Cache[tuple[AttentionOptions, tuple[int, ...]], Plan] = Cache(PLANS)

    async def score(
        self,
        input: AttentionInput,
        options: AttentionOptions,
        timings: Timings,
        deadline: float | None = None,
        places: Places | None = None,
    ) -> ScoringResult:
        """The attention of one request under each of its encodings, the reference first.

        With `places`, a request under one encoding has the outputs that it names written there.

        All of its jobs go to the engine at once. Raises the errors of `service.errors`; those of a request's own doing
        before anything is queued.

        `timings` divides the wall-clock time of this call: checking is added to `decode`; position tables that had to
        be computed and the model's own time make `compute` (the sum over encodings, at most the time waited);
        `batch_assembly` likewise; `queue` is the rest of the wait for the engine; `postprocess` is what comes after.
        """
        began = time.perf_counter()
        input, options = await self.read_text(input, options)
        plan, queries, keys = self._admit(input, options)
        layout = plan.layout
        placed = None if places is None else Placed.of(plan, places)
        if self.large.takes(plan):
            if options.key_heads is not None:
                keys = await _whole_keys(keys, layout.heads // options.key_heads)
            planned = time.perf_counter()
            inquire = None if plan.study is None else partial(self._inquire, plan, plan.study, input, queries, keys)
            picked, spent, inquiry = await self.large.compute(plan, input.mask, queries, keys, deadline, inquire)
            if placed is not None:
                await asyncio.to_thread(placed.copy, picked[0])
            answered = time.perf_counter()
            spent.add_to(timings, planned - began, answered - planned)
            results = [_result(part, one, plan) for part, one in zip(plan.parts, picked, strict=True)]
            answer = _answer(plan, results, input, options, timings)
            if inquiry is not None:
                await asyncio.to_thread(inquiry.tell, answer)
            timings.postprocess += time.perf_counter() - answered
            return answer
        visible = None if input.mask is None and plan.sight.everything else await self._visible(input.mask, plan)
        if options.key_heads is not None:
            keys = await _whole_keys(keys, layout.heads // options.key_heads)
        planned = time.perf_counter()
        tables = await self._tables([part.computed for part in plan.parts])
        ready = time.perf_counter()
        inquiry, piece, uniform = None, None, []
        if plan.study is not None:
            inquiry, piece = await self._inquiry(plan, plan.study, input, queries, keys, visible)
            tables = [inquiry.tables(piece, one, part.padded) for one, part in zip(tables, plan.parts, strict=True)]
            uniform = [] if piece.uniform is None else [piece.uniform]
        jobs = _jobs(
            plan, tables, queries, keys, self._all_seen(plan, input.mask, visible), None if piece is None else piece.own
        )
        if placed is not None:
            jobs = [replace(jobs[0], into=placed.into())]
        answers = await self.engine.run([*jobs, *uniform], deadline)
        if inquiry is not None and piece is not None:
            answers += await inquiry.take(piece, answers, self.engine, deadline)
        answered = time.perf_counter()
        results = await _results(plan, answers, visible)
        answer = _answer(plan, results, input, options, timings)
        if inquiry is not None:
            await (asyncio.to_thread(inquiry.tell, answer) if inquiry.slow else _now(inquiry.tell, answer))
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
        return answer

    async def read_text(
        self, input: AttentionInput, options: AttentionOptions
    ) -> tuple[AttentionInput, AttentionOptions]:
        """A text as the embeddings of its tokens, with the model and the encoding that take it; all else as it is.

        Raises InvalidInput, UnknownName, PayloadTooLarge.
        """
        if input.text is None:
            return input, options
        model, text = self.catalogue.text_model(options.model)
        options = replace(
            options, model=model.name, encoding=text.encoding if options.encoding is None else options.encoding
        )
        instances, _ = asked(model, options.encoding, options.compare)
        bare, own = text.embeddings.bare, text.embeddings.largest is not None
        alone = instances[0].encoding.id in bare
        if input.tokens is not None:
            raise InvalidInput("the tokenizer names the tokens of a text; leave tokens out", pointer="/tokens")
        size, limits = len(input.text.encode("utf-8", "surrogatepass")), self.limits
        if size > limits.text:
            raise PayloadTooLarge(
                f"the text has {size:,} bytes; the limit is {limits.text:,}, and {limits.tokens:,} tokens: send less",
                pointer="/text",
                limit=limits.text,
            )
        at = None
        if own and not alone:
            if input.query_positions is not None or input.key_positions is not None:
                raise InvalidInput(
                    f"the embeddings of a text have positions of their own in model {model.name!r}, the same for "
                    "queries and keys: send them as positions",
                    pointer="/query_positions" if input.query_positions is not None else "/key_positions",
                )
            at = input.positions
        placed = any(one is not None for one in (input.positions, input.query_positions, input.key_positions))
        embed = partial(text.embed, input.text, limits.tokens, at, bare=alone, placed=placed)
        embeddings, names = embed() if size < INLINE_TEXT else await asyncio.to_thread(embed)
        others = [id for id in model.encodings if (id in bare) is not alone]
        unfit = dict.fromkeys(others, _unfit(model, bare, alone)) if others else {}
        return replace(input, text=None, embeddings=embeddings, tokens=names, unfit=unfit), options

    def at_once(
        self, input: AttentionInput, options: AttentionOptions, *, waits: bool = False
    ) -> tuple[Plan, Job] | None:
        """The only job of a request for which nothing need be waited for or worked out, for one like it came before;
        None for all others. With `waits` its run may take a worker. Raises InvalidInput.
        """
        embeddings = input.embeddings
        if embeddings is None or not plain(input) or input.mask is not None or options.key_heads is not None:
            return None
        plan = self._plans.get((options, embeddings.shape))
        if plan is None or len(plan.parts) > 1:
            return None
        if self.large.takes(plan) if waits else plan.largest_job >= INLINE:
            return None
        if plan.study is not None and (waits or plan.layout.choice.head is not None):
            return None
        tables = self.tables_at_once(plan)
        if tables is None:
            return None
        (part,) = plan.parts
        keys = np.ascontiguousarray(embeddings, dtype=np.float32).reshape(plan.layout.query_shape)
        seen = self._seen(part, plan.sight, None, self._build_visible(None, plan))
        (job,) = _jobs(plan, (tables,), plan.layout.chosen(keys), keys, (seen,))
        return plan, job

    def tables_at_once(self, plan: Plan) -> Tables | None:
        """What the job of such a plan is fed beside numbers and mask; None where it is not kept any more."""
        (part,) = plan.parts
        tables, study = self.tables.get(part.computed), plan.study
        if tables is None or study is None:
            return tables
        if self._lengths is not None:
            return None  # what is padded is never run at once
        return self.analyst.tables(tables, study) if self.analyst.follows(study, plan.sight) else None

    def summaries_at_once(self, plan: Plan, answer: JobResult, count: int) -> list[Summary] | None:
        """Of so many requests, whose results lie one after the other in this one; None where they cannot be made."""
        (part,), study = plan.parts, plan.study
        assert study is not None
        return self.analyst.summaries(study, plan.sight, answer.outputs, "sinks" in part.parameters.switches, count)

    def answered_at_once(
        self,
        plan: Plan,
        answer: JobResult,
        visible: Visible | None,
        options: AttentionOptions,
        timings: Timings,
        summary: Mapping[str, Any] | None = None,
    ) -> ScoringResult:
        """What `score` returns, of a plan and the result of its job that `at_once` gave, with this summary."""
        (part,) = plan.parts
        result = _result(part, Picked.of(plan.layout.choice, part.kept, answer, visible), plan)
        result.summary = summary
        if plan.study is not None and not result.holds_numbers:
            result.nonfinite_cells = self.analyst.lost(plan.study, plan.sight, answer.outputs)
        return _answer(plan, [result], None, options, timings)

    def plan(self, input: AttentionInput, options: AttentionOptions) -> Plan:
        """What `score` would do. Raises the same errors."""
        return self._admit(input, options)[0]

    async def position_tables(self, input: AttentionInput, options: AttentionOptions) -> PositionTables:
        """What `score` would have of the reference encoding before it looks at any content. Raises the same errors."""
        plan, _, _ = self._admit(input, options)
        (tables,) = await self._tables([plan.parts[0].needs])
        arrays = {name.removeprefix("table."): array for name, array in tables.arrays.items()}
        layout = plan.layout
        parameters = plan.parts[0].parameters
        return PositionTables(
            layout.heads, layout.head_dim, plan.causal, parameters.report, parameters.pointers, arrays
        )

    def of(self, catalogue: Catalogue) -> Scoring:
        """The same under another catalogue."""
        return Scoring(catalogue, self.engine, self.tables, self.limits)

    def forget(self) -> None:
        """What was worked out for requests: the catalogue has changed."""
        self._plans.clear()

    def sweep(self) -> None:
        """Drops what no request has asked for since this was last called, but for position tables."""
        self._plans.sweep()
        self._parameters.sweep()
        self._sights.sweep()
        self.analyst.sweep()

    async def samples(self) -> list[Job]:
        """A small job for every encoding of every model, as a warm-up: what is ready has answered once."""
        return [
            await self.sample(model, encoding)
            for model in self.catalogue.models.values()
            for encoding in model.encodings.values()
        ]

    async def sample(self, model: Model, encoding: Encoding) -> Job:
        """A small job. Raises ServiceError."""
        return await self._sample(model, encoding, 8, 2, 8)

    async def rehearse(self) -> None:
        """Answers what is asked most, each model's own encoding and nothing named: else the first who asks waits for
        its graphs to be opened. Raises NotReady.
        """
        for model in self.catalogue.models.values():
            heads = 2 if model.heads is None else model.heads
            x = np.random.default_rng(0).standard_normal((8, model.width or 8 * heads), dtype=np.float32)
            options = AttentionOptions(model=model.name, heads=heads if model.heads is None else None, returns=None)
            try:
                await self.score(AttentionInput(embeddings=x), options, Timings())
            except PayloadTooLarge:
                continue  # the limits that were set are as low as that
            except ServiceError as error:
                raise NotReady(f"the warm-up of {model.name} failed: {error.detail}") from error

    async def sizes(self) -> list[Job]:
        """Jobs of one encoding and of many sizes, to see what runs cost here. None where there are no models."""
        if not self.catalogue.models:
            return []
        model = self.catalogue.model()
        return [await self._sample(model, model.encoding(None), *size) for size in SIZES]

    async def _sample(self, model: Model, encoding: Encoding, tokens: int, heads: int, head_dim: int) -> Job:
        width = model.width or heads * head_dim
        embeddings = np.random.default_rng(0).standard_normal((tokens, width), dtype=np.float32)
        options = AttentionOptions(
            encoding=encoding.id,
            model=model.name,
            heads=heads if model.heads is None else None,
            causal=encoding.causal == "required" or encoding.default_causal,
        )
        plan, queries, keys = self._admit(AttentionInput(embeddings=embeddings), options)
        visible = await self._visible(None, plan)
        (part,) = plan.parts
        (job,) = _jobs(plan, await self._tables([part.computed]), queries, keys, self._all_seen(plan, None, visible))
        return job

    def _admit(self, input: AttentionInput, options: AttentionOptions) -> tuple[Plan, np.ndarray, np.ndarray]:
        """What is to be done with a request, and its queries and keys as the model takes them."""
        embeddings = input.embeddings
        if embeddings is None or not plain(input):
            return self._plan(input, options)
        key = (options, embeddings.shape)
        plan = self._plans.get(key)
        if plan is None:
            plan, queries, keys = self._plan(input, options)
            positions = len(plan.layout.query_positions) + len(plan.layout.key_positions)
            self._plans.put(key, plan, len(plan.parts) * OF_PART + 8 * positions)
            return plan, queries, keys
        keys = np.ascontiguousarray(embeddings, dtype=np.float32).reshape(plan.layout.query_shape)
        return plan, plan.layout.chosen(keys), keys

    def _plan(self, input: AttentionInput, options: AttentionOptions) -> tuple[Plan, np.ndarray, np.ndarray]:
        model = self.catalogue.model(options.model)
        instances, optional = asked(model, options.encoding, options.compare)
        admitted = admit(input, model, options.heads, self.limits, options.key_heads)
        reference = instances[0].encoding
        causal = options.causal
        if causal is None:
            causal = reference.default_causal or reference.causal == "required"

        skipped: dict[str, str] = {}
        able: list[Instance] = []
        for instance in instances:
            try:
                if instance.encoding.id in input.unfit:
                    raise InvalidInput(input.unfit[instance.encoding.id], pointer="query:compare")
                check(instance.encoding, admitted, causal, model)
            except ServiceError as error:
                if instance.name not in optional:
                    raise
                skipped[instance.name] = error.detail
            else:
                able.append(instance)
        given = assign(model, able, options.scalars, input.parameters, skipped, input.parameters_at)

        largest = max(admitted.query_positions.largest, admitted.key_positions.largest)
        sizes = Sizes(admitted.heads, admitted.head_dim, max(1, int(largest) + 1), model.width)
        choice = choose(
            options.rows,
            options.head,
            options.top_k,
            queries=len(admitted.query_positions),
            heads=admitted.heads,
            keys=len(admitted.key_positions),
        )
        layout = Layout.of(admitted, choice)
        shown = admitted.heads if choice.head is None else len(choice.head)
        returns = returned(
            options.returns,
            compares=bool(options.compare),
            heads=shown * admitted.rows * len(able),
            most=self.limits.summaries,
        )
        wanted = Wanted.of(returns, options.metrics)
        study = None
        if wanted is not None:
            study = self.analyst.study(
                wanted, layout.query_positions, layout.key_positions, options.top_k or of_pairs.TOP
            )
        kept = returns if choice.top_k is None else (*returns, "weights")
        # The largest keys are told apart by all the digits there are.
        half = options.half and choice.top_k is None
        parts: list[Part] = []
        for instance in able:
            encoding = instance.encoding
            try:
                parameters = self._parameters.resolve(encoding, given[instance.name], sizes)
            except ServiceError as error:
                if instance.name not in optional or given[instance.name]:
                    raise
                skipped[instance.name] = error.detail
            else:
                lines = conventions(encoding.conventions, parameters.report, parameters.pointers)
                needs = _needs(encoding, parameters, layout, causal, largest)
                own = outputs = _outputs(encoding, kept, half)
                behind = None
                if study is not None:
                    outputs = (*outputs, *(name for name in study.read if name not in outputs), *study.computed)
                    behind = self.analyst.behind(encoding.graph) if study.computed else None
                parts.append(Part(instance, parameters, lines, outputs, own, needs, behind))
        if self._padding is not None:
            parts = self._padded(parts, given, layout, admitted.rows, self._padding)
        if not parts:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
            raise InvalidInput(
                f"no encoding of {model.name} can serve this request: {reasons}", pointer="query:compare"
            )
        self._check_cells(layout, parts)
        largest_job = layout.cells * max(part.matrices for part in parts)
        plan = Plan(model, layout, Sight(causal, model.window), parts, skipped, largest_job, returns, study)
        return plan, layout.chosen(admitted.queries), admitted.keys

    def _check_cells(self, layout: Layout, parts: Sequence[Part]) -> None:
        outputs = sum(part.matrices for part in parts)
        cells = layout.cells * outputs
        if cells <= self.limits.cells:
            return
        fixes = ["fewer tokens", "a part of the rows (rows=0:64)"]
        if len(parts) > 1:
            fixes.append("fewer encodings at once")
        if outputs > len(parts):
            fixes.append("fewer outputs (return=weights)")
        raise PayloadTooLarge(
            f"this request asks for {cells:,} cells (batch {layout.batch or 1} x heads {layout.heads} x queries "
            f"{len(layout.query_positions)} x keys {len(layout.key_positions)} x {outputs} outputs of {len(parts)} "
            f"encodings); the limit is {self.limits.cells:,}: ask for {', or '.join(fixes)}",
            limit=self.limits.cells,
        )

    async def _inquiry(
        self,
        plan: Plan,
        study: Study,
        input: AttentionInput,
        queries: np.ndarray,
        keys: np.ndarray,
        visible: Visible | None,
    ) -> tuple[Inquiry, Piece]:
        """What is asked of a request that is computed in one piece, and what its runs need for that."""
        everything = Block(slice(0, len(queries)), slice(0, queries.shape[1]))

        def both() -> tuple[Inquiry, Piece]:
            inquiry = self._inquire(plan, study, input, queries, keys, visible)
            return inquiry, inquiry.piece(everything, visible, shared=self._lengths is not None)

        slow = queries.shape[1] * keys.shape[1] > QUICK or (study.wanted.tokens and keys.size > QUICK)
        return await asyncio.to_thread(both) if slow else both()

    def _inquire(
        self,
        plan: Plan,
        study: Study,
        input: AttentionInput,
        queries: np.ndarray,
        keys: np.ndarray,
        mask: Bool[np.ndarray, "#batch #heads ..."] | None,
    ) -> Inquiry:
        layout, choice, known = plan.layout, plan.layout.choice, study.layout
        if study.wanted.tokens:
            known = with_tokens(known, input, queries, keys, choice.rows)
        return Inquiry(
            self.analyst,
            study,
            batch=layout.batch or 1,
            heads=layout.heads,
            sight=plan.sight,
            mask=None if mask is None or input.mask is None else mask.shape[:2],
            switches=[part.parameters.switches for part in plan.parts],
            head=choice.head,
            layout=known,
            padding=padding(input, layout.batch, layout.heads, choice, len(layout.key_positions)),
            lengths=self._lengths,
        )

    async def _visible(self, mask: np.ndarray | None, plan: Plan) -> Visible | None:
        if mask is None and plan.sight.everything:
            return None
        if max(plan.layout.cells, 0 if mask is None else mask.size) < INLINE:
            return self._build_visible(mask, plan)
        return await asyncio.to_thread(self._build_visible, mask, plan)

    def _build_visible(self, mask: np.ndarray | None, plan: Plan) -> Visible | None:
        layout = plan.layout
        queries, keys = layout.query_positions, layout.key_positions
        seen = None if plan.sight.everything else self._sights.get(plan.sight, queries, keys)
        if mask is None:
            return seen
        read = read_mask(mask, layout.batch, layout.heads, layout.choice.queries, len(keys))
        rows = layout.choice.rows
        if rows is not None and read.shape[2] > 1:
            read = read[:, :, index(rows)]
        return combine(read, seen, len(queries), len(keys))

    def _padded(
        self, parts: list[Part], given: Mapping[str, Given], layout: Layout, rows: int, padding: Padding
    ) -> list[Part]:
        """The same parts, padded where they can be, and where the padding does not make them exceed the limit."""
        padded = [
            replace(part, padded=padding.of(part.needs, given[part.instance.name], rows, part.outputs))
            for part in parts
        ]
        cells = sum((part.padded or layout).cells * part.matrices for part in padded)
        return padded if cells <= self.limits.cells else parts

    def _seen(self, part: Part, sight: Sight, mask: np.ndarray | None, visible: Visible | None) -> Visible | None:
        """What one part may see: of the padded size where all that are padded alike have the mask in common."""
        if part.padded is None or mask is not None or not sight.causal:
            return visible
        return self._sights.get(sight, part.padded.needs.queries, part.padded.needs.keys)

    def _all_seen(self, plan: Plan, mask: np.ndarray | None, visible: Visible | None) -> list[Visible | None]:
        return [self._seen(part, plan.sight, mask, visible) for part in plan.parts]

    async def _tables(self, needs: Sequence[Needs]) -> list[Tables]:
        found = [self.tables.get(need) for need in needs]
        missing = [need for need, table in zip(needs, found, strict=True) if table is None]
        computed = iter(await asyncio.gather(*map(self.tables.tables, missing)) if missing else ())
        return [next(computed) if table is None else table for table in found]


def _unfit(model: Model, bare: Sequence[str], alone: bool) -> str:
    """Why an encoding cannot take the embeddings of a text that were made for others."""
    own = " and ".join(bare)
    return (
        f"under {own} model {model.name!r} takes the bare embeddings of tokens and adds positions itself, under the "
        f"others what both make together: ask for {'the others' if alone else own} in a request of its own"
    )


async def _whole_keys(keys: np.ndarray, group: int) -> np.ndarray:
    if keys.size * group < INLINE:
        return whole_keys(keys, group)
    return await asyncio.to_thread(whole_keys, keys, group)


async def _now(call: Callable[[T], None], argument: T) -> None:
    call(argument)


def _outputs(encoding: Encoding, returns: Sequence[str], half: bool) -> tuple[str, ...]:
    """With `half`, all of them in float16: cast by the device, of which half as much comes back."""
    outputs = [name for name in ("weights", "scores", "output") if name in returns]
    outputs += encoding.term_outputs if "terms" in returns else ()
    return tuple(HALF + name if half else name for name in outputs)


def _axes_text(shape: tuple[int, ...], layout: Layout) -> str:
    """How a mask of this shape is read."""
    axes = mask_axes(shape, layout.batch, layout.heads, layout.choice.queries, len(layout.key_positions))
    return f"[{', '.join(axes or ())}]"


def plain(input: AttentionInput) -> bool:
    """Whether nothing but the embeddings came, and perhaps a mask, on which no plan depends."""
    return (
        input.queries is None
        and input.keys is None
        and input.positions is None
        and input.query_positions is None
        and input.key_positions is None
        and input.tokens is None
        and input.text is None
        and not input.parameters
    )


def _needs(encoding: Encoding, parameters: ResolvedParameters, layout: Layout, causal: bool, largest: float) -> Needs:
    queries, keys = layout.query_positions, layout.key_positions
    return Needs(
        encoding,
        parameters,
        queries,
        keys,
        causal,
        layout.heads,
        layout.head_dim,
        largest if largest > max(queries.largest, keys.largest) else None,
    )


def _jobs(
    plan: Plan,
    tables: Sequence[Tables],
    queries: np.ndarray,
    keys: np.ndarray,
    visible: Sequence[Visible | None],
    own: Mapping[str, Own] | None = None,
) -> list[Job]:
    return [
        Job(
            part.graph,
            table,
            part.outputs,
            queries,
            keys,
            seen,
            (part.padded or plan.layout).cells * part.matrices,
            part.parameters.switches,
            part.padded.lengths if part.padded else None,
            own=own,
        )
        for part, table, seen in zip(plan.parts, tables, visible, strict=True)
    ]


async def _results(plan: Plan, answers: Sequence[JobResult], visible: Visible | None) -> list[EncodingResult]:
    def results() -> list[EncodingResult]:
        return [
            _result(part, Picked.of(plan.layout.choice, part.kept, answer, visible), plan)
            for part, answer in zip(plan.parts, answers, strict=False)
        ]

    ranked = plan.layout.choice.top_k is not None and plan.layout.cells * len(plan.parts) > INLINE
    return await asyncio.to_thread(results) if ranked else results()


def _result(part: Part, picked: Picked, plan: Plan) -> EncodingResult:
    batched = plan.layout.batch is not None
    arrays = {name: array if batched else array[0] for name, array in picked.outputs.items()}
    terms = {name.removeprefix("term."): array for name, array in arrays.items() if name.startswith("term.")} or None
    result = EncodingResult(
        encoding=part.encoding.id,
        parameters=part.parameters.report,
        conventions=part.conventions,
        output=arrays.get("output"),
        nonfinite_cells=picked.nonfinite,
        label=part.instance.label,
    )
    if picked.keys is None:
        result.weights, result.scores, result.terms = arrays.get("weights"), arrays.get("scores"), terms
    else:
        keys = picked.keys if batched else picked.keys[0]
        result.top_k = TopK(keys, arrays["weights"], arrays.get("scores"), terms)
    return result


def _answer(
    plan: Plan, results: list[EncodingResult], input: AttentionInput | None, options: AttentionOptions, timings: Timings
) -> ScoringResult:
    """`input` is None where it had nothing but embeddings."""
    layout = plan.layout
    return ScoringResult(
        model=plan.model.name,
        batch=layout.batch,
        heads=layout.heads,
        queries=layout.choice.queries,
        keys=len(layout.key_positions),
        head_dim=layout.head_dim,
        causal=plan.causal,
        window=plan.sight.window,
        results=results,
        tokens=None if input is None else input.tokens,
        timings=timings,
        skipped=plan.skipped,
        plan=plan,
        key_heads=options.key_heads,
        rows=_numbers(layout.choice.rows),
        head=_numbers(layout.choice.head),
        top_k=layout.choice.top_k,
        mask=None if input is None or input.mask is None else _axes_text(input.mask.shape, layout),
    )


def _numbers(indices: Indices | None) -> tuple[int, ...] | None:
    return None if indices is None else tuple(map(int, indices))
