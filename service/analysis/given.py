"""Summaries of matrices that somebody has already, and comparisons of the others with the first: on the engine, in
blocks of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from service.admission import Limits
from service.analysis.analyst import Analyst
from service.analysis.sheet import Sheet
from service.analysis.wanted import COMPARISON, SUMMARY, Wanted
from service.blocks import Block
from service.comparisons import metrics as of_pairs
from service.comparisons.comparison import FLOORS, compare
from service.engine.job import Job, JobResult, Tables
from service.errors import InvalidInput, PayloadTooLarge, UnknownName
from service.masks import Sight, Visible, combine, mask_axes, read_mask
from service.plan import Runs
from service.records import MatricesInput, Timings
from service.summaries.graph import BLOCK_CELLS, TOLERANCES, row_feeds, uniform
from service.summaries.layout import Layout
from service.summaries.metrics import Outputs, in_one_run, outputs_for, unsummed
from service.summaries.profile import PROFILE, placed, scattered
from service.summaries.rows import counts, negative
from service.summaries.shapes import Selection
from service.summaries.summary import Summary, summarise

Matrix = Float[np.ndarray, "batch heads queries keys"]
AXES = ("batch", "heads", "queries", "keys")
AT_ONCE = 8
"""Blocks that are handed to the engine together."""


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """`metrics` as `POST /attention` takes them. `sinks` says that rows may sum to less than 1, for a part of the
    attention goes to no key; `tolerance` how far from 1 (None: by the precision of each matrix); `top` is the k of
    `topk_overlap` (None: 8).
    """

    metrics: tuple[str, ...] = ()
    causal: bool = False
    sinks: bool = False
    tolerance: float | None = None
    top: int | None = None
    reference: str | None = None
    """The matrix that the others are compared with; None: the first."""


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """Matrices of one shape, checked. `batched` says whether they came with a batch axis."""

    matrices: Mapping[str, Matrix]
    scores: Mapping[str, Matrix]
    layout: Layout
    visible: Visible | None
    padding: Bool[np.ndarray, "#batch queries"] | None
    batched: bool
    wanted: Wanted

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, keys = next(iter(self.matrices.values())).shape
        return batch, heads, queries, keys


def check(input: MatricesInput, options: GivenOptions, limits: Limits) -> Given:
    """Raises InvalidInput, PayloadTooLarge, UnknownName."""
    names = _names(input, options.reference)
    wanted = _wanted(names, options)
    first = input.matrices[names[0]]
    if not 2 <= first.ndim <= 4 or 0 in first.shape:
        raise InvalidInput(
            f"{names[0]} has the shape {list(first.shape)}; a matrix is [queries, keys], [heads, queries, keys] or "
            "[batch, heads, queries, keys]",
            pointer=_at("matrices", names[0]),
        )
    for kind, arrays in (("matrices", input.matrices), ("scores", input.scores)):
        for name, array in arrays.items():
            _check_shape(kind, name, array, names[0], first)
    matrices = {name: _whole(input.matrices[name]) for name in names}
    scores = {name: _whole(one) for name, one in input.scores.items()}
    shape = matrices[names[0]].shape
    _check_size(shape, len(names) + len(scores), limits)
    batch = shape[0] if first.ndim == 4 else None
    layout, own = _layout(input, shape[2], shape[3])
    return Given(
        matrices,
        scores,
        layout,
        _visible(input.mask, options.causal, batch, shape, layout),
        _padding(input.mask, batch, shape) if own else None,
        batch is not None,
        wanted,
    )


def _wanted(names: Sequence[str], options: GivenOptions) -> Wanted:
    returns = (SUMMARY, COMPARISON) if len(names) > 1 else (SUMMARY,)
    wanted = Wanted.of(returns, options.metrics, {COMPARISON: "send a second matrix"})
    assert wanted is not None
    if options.top is not None and of_pairs.TOPK not in (wanted.comparison or ()):
        raise InvalidInput(
            f"top_k={options.top} is the k of {of_pairs.TOPK}, which "
            + ("is not asked for: name it in metrics" if len(names) > 1 else "needs a second matrix: send one")
            + ", or leave top_k out",
            pointer="query:top_k",
        )
    if options.reference is not None and len(names) == 1:
        raise InvalidInput(
            f"reference={options.reference[:80]} is what others are compared with, but there is no other matrix; send "
            "a second one, or leave reference out",
            pointer="query:reference",
        )
    return wanted


def _names(input: MatricesInput, reference: str | None) -> list[str]:
    """The reference first."""
    names = list(input.matrices)
    if reference is None:
        return names
    if reference not in names:
        raise UnknownName("matrix", reference, names, pointer="query:reference")
    return [reference, *(name for name in names if name != reference)]


def _check_shape(kind: str, name: str, array: np.ndarray, reference: str, first: np.ndarray) -> None:
    if array.shape == first.shape:
        return
    at = _at(kind, name)
    both = f"{kind}/{name} has the shape {list(array.shape)}, but {reference} has {list(first.shape)}"
    if array.ndim != first.ndim:
        raise InvalidInput(f"{both}: they have {array.ndim} and {first.ndim} axes", pointer=at)
    axes = AXES[4 - array.ndim :]
    differ = [
        f"{axis} ({one} and {other})"
        for axis, one, other in zip(axes, array.shape, first.shape, strict=True)
        if one != other
    ]
    raise InvalidInput(f"{both}: they differ in {', '.join(differ)}", pointer=at)


def _at(kind: str, name: str) -> str:
    """A JSON pointer."""
    return f"/{kind}/{name.replace('~', '~0').replace('/', '~1')}"


def _check_size(shape: tuple[int, ...], arrays: int, limits: Limits) -> None:
    for axis, size, limit in zip(AXES, shape, (limits.batch, limits.heads, limits.tokens, limits.tokens), strict=True):
        if size > limit:
            raise PayloadTooLarge(f"the matrices have {size:,} {axis}; the limit is {limit:,}", limit=limit)
    heads = shape[0] * shape[1] * arrays
    if heads > limits.summaries:
        raise PayloadTooLarge(
            f"there would be {heads:,} heads to summarise (heads x batch x matrices), at most {limits.summaries:,} are",
            limit=limits.summaries,
        )


def _whole(matrix: Float[np.ndarray, "..."]) -> Matrix:
    return matrix.reshape((1,) * (4 - matrix.ndim) + matrix.shape)


def _layout(input: MatricesInput, queries: int, keys: int) -> tuple[Layout, bool]:
    """And whether queries and keys are the same tokens."""
    of_queries = input.query_positions if input.positions is None else input.positions
    of_keys = input.key_positions if input.positions is None else input.positions
    alike = queries == keys and input.query_positions is None and input.key_positions is None
    for name, given, count in (("query", of_queries, queries), ("key", of_keys, keys)):
        if given is not None and len(given) != count:
            at = f"/{name}_positions" if input.positions is None else "/positions"
            raise InvalidInput(f"{len(given)} {name} positions came for {count} {AXES[2:][name == 'key']}", pointer=at)
    layout = Layout(
        np.arange(queries, dtype=np.float64) if of_queries is None else of_queries,
        np.arange(keys, dtype=np.float64) if of_keys is None else of_keys,
    )
    if input.tokens is None:
        return layout, alike
    if len(input.tokens) != keys:
        raise InvalidInput(f"{len(input.tokens)} names came under tokens for {keys} keys", pointer="/tokens")
    numbers = np.unique(np.array(input.tokens), return_inverse=True)[1].reshape(1, -1)
    own = np.where(layout.places < 0, -2, numbers[:, np.maximum(layout.places, 0)])
    return replace(layout, query_tokens=own, key_tokens=numbers), alike


def _visible(
    mask: np.ndarray | None, causal: bool, batch: int | None, shape: tuple[int, ...], layout: Layout
) -> Visible | None:
    _, heads, queries, keys = shape
    seen = Sight(causal).mask(layout.query_positions, layout.key_positions)
    return combine(None if mask is None else read_mask(mask, batch, heads, queries, keys), seen, queries, keys)


def _padding(
    mask: np.ndarray | None, batch: int | None, shape: tuple[int, ...]
) -> Bool[np.ndarray, "#batch queries"] | None:
    _, heads, queries, keys = shape
    if mask is None or mask_axes(mask.shape, batch, heads, queries, keys) not in (("keys",), ("batch", "keys")):
        return None
    return ~read_mask(mask, batch, heads, queries, keys)[:, 0, 0]


class Studies:
    """Answers `POST /compare/matrices`."""

    def __init__(self, analyst: Analyst, engine: Runs) -> None:
        self._analyst = analyst
        self._engine = engine

    async def study(self, given: Given, options: GivenOptions, timings: Timings, deadline: float | None) -> Any:
        """Results and comparison, JSON with arrays. Raises what the engine raises."""
        runs = _Study(self._analyst, given, options)
        pending: list[tuple[Sheet, Block, Job]] = []
        for jobs in runs.blocks():
            pending += await asyncio.to_thread(list, jobs)
            while len(pending) >= AT_ONCE:
                pending = await self._run(pending, runs, timings, deadline)
        while pending:
            pending = await self._run(pending, runs, timings, deadline)
        return await asyncio.to_thread(runs.answer)

    async def _run(
        self, pending: list[tuple[Sheet, Block, Job]], runs: _Study, timings: Timings, deadline: float | None
    ) -> list[tuple[Sheet, Block, Job]]:
        """Runs the first of them, and returns the others."""
        some = pending[:AT_ONCE]
        results = await self._engine.run([job for _, _, job in some], deadline)
        for (sheet, block, _), result in zip(some, results, strict=True):
            sheet.put(runs.placed(block, result), block)
            timings.compute += result.compute
            timings.batch_assembly += result.batch_assembly
        return pending[AT_ONCE:]


class _Study:
    """The jobs of one request, and what they find."""

    def __init__(self, analyst: Analyst, given: Given, options: GivenOptions) -> None:
        self._analyst = analyst
        self._given = given
        self._options = options
        batch, heads, queries, keys = given.shape
        names = list(given.matrices)
        lead = given.visible.shape[:2] if given.visible is not None else (1, 1)
        self._rows = {name: Sheet(batch, heads, queries) for name in names}
        self._pairs = {name: Sheet(batch, heads, queries) for name in names[1:]}
        self._uniform = Sheet(lead[0], lead[1], queries)
        self._top = min(options.top or of_pairs.TOP, keys)
        self._valid: Mapping[str, Selection] = {}
        """The rows of each matrix without negative weights; once all has run."""
        self._counts = None if given.visible is None else np.count_nonzero(given.visible, axis=-1)

    def _tolerance(self, *names: str) -> float:
        precisions = [self._given.matrices[name].dtype.name for name in names]
        return self._options.tolerance or max(TOLERANCES[precision] for precision in precisions)

    def blocks(self) -> Iterator[Iterator[tuple[Sheet, Block, Job]]]:
        """Of some rows each; to be made one after the other, for they are copies."""
        batch, heads, queries, keys = self._given.shape
        rows = max(1, min(queries, BLOCK_CELLS // (batch * heads * keys)))
        for start in range(0, queries, rows):
            yield self._block(slice(start, min(start + rows, queries)))

    def _block(self, rows: slice) -> Iterator[tuple[Sheet, Block, Job]]:
        given, wanted, analyst = self._given, self._given.wanted, self._analyst
        block, layout = Block(slice(0, given.shape[0]), rows), given.layout.rows(rows)
        visible = None if given.visible is None else np.ascontiguousarray(given.visible[:, :, rows])
        padding = None if given.padding is None else given.padding[:, rows]
        names = list(given.matrices)
        weights, scores = (
            {name: np.ascontiguousarray(one[:, :, rows], np.float32) for name, one in of.items()}
            for of in (given.matrices, given.scores)
        )
        for name in names:
            tolerance, scored = self._tolerance(name), name in scores
            outputs = self._outputs(visible is not None, scored)
            feeds = {**row_feeds(layout, outputs.rows, tolerance, padding), "weights": weights[name]}
            feeds |= {"scores": scores[name]} if scored else {}
            yield (
                self._rows[name],
                block,
                self._job(analyst.rows, feeds, outputs.rows, visible, self._switches("sinks")),
            )
        if outputs.uniform:
            even, _ = uniform(visible, layout.queries, layout.keys)
            feeds = {**row_feeds(layout, outputs.uniform, tolerance), "weights": even}
            yield self._uniform, block, self._job(analyst.rows, feeds, outputs.uniform, None, ())
        for name in names[1:]:
            scored = name in scores and names[0] in scores
            pair = of_pairs.outputs_for(wanted.comparison or (), layout, scored=scored)
            feeds = {"weights_a": weights[names[0]], "weights_b": weights[name]}
            feeds |= {"scores_a": scores[names[0]], "scores_b": scores[name]} if scored else {}
            feeds |= {"tolerance": np.array(self._tolerance(names[0], name)), "top": np.zeros(self._top, np.float32)}
            switches = self._switches("sinks_a", "sinks_b")
            yield self._pairs[name], block, self._job(analyst.pairs, feeds, pair, visible, switches)

    def _outputs(self, masked: bool, scored: bool) -> Outputs:
        layout = self._given.layout
        return in_one_run(outputs_for(self._given.wanted.of_rows, layout, masked=masked, scored=scored), layout)

    def _switches(self, *names: str) -> tuple[str, ...]:
        return names if self._options.sinks else ()

    def _job(
        self,
        graph: Any,
        feeds: Mapping[str, np.ndarray],
        outputs: tuple[str, ...],
        visible: Visible | None,
        switches: Sequence[str],
    ) -> Job:
        cells = feeds["weights" if "weights" in feeds else "weights_a"].size
        return Job.of_arrays(graph, Tables(self._analyst.name(), feeds), outputs, cells, visible, tuple(switches))

    def placed(self, block: Block, result: JobResult) -> Mapping[str, np.ndarray]:
        layout = self._given.layout.rows(block.queries)
        return {name: placed(name, array, layout) for name, array in result.outputs.items()}

    def answer(self) -> dict[str, Any]:
        given, names = self._given, list(self._given.matrices)
        self._valid = {name: ~negative(matrix, given.visible) for name, matrix in given.matrices.items()}
        summaries = {name: self._summary(name) for name in names}
        results = []
        for name in names:
            summary = summaries[name].document(given.batched)
            profile = summaries[name].profile
            if profile is not None and PROFILE in (given.wanted.summary or ()):
                summary[PROFILE] = profile.document(given.batched)
            results.append(
                {
                    "name": name,
                    "dtype": given.matrices[name].dtype.name,
                    "tolerance": self._tolerance(name),
                    "summary": summary,
                }
            )
        against = {name: self._comparison(name, summaries).document(given.batched) for name in names[1:]}
        comparison = {"comparison": {"reference": names[0], "against": against}} if against else {}
        return {"results": results, **comparison}

    def _summary(self, name: str) -> Summary:
        given, tolerance, valid = self._given, self._tolerance(name), self._valid[name]
        rows = self._rows[name].arrays
        if unsummed(given.wanted.of_rows, given.layout, rows if valid.all() else ()):
            over = valid & counts(rows["row_sum"], tolerance, sinks=self._options.sinks)
            if given.padding is not None:
                over &= ~given.padding[:, None]
            matrix, sinks = given.matrices[name], self._options.sinks
            found = scattered(matrix, rows["row_sum"], over, given.layout, visible=given.visible, sinks=sinks)
            rows = {**rows, **found}
        return summarise(
            rows,
            given.layout,
            uniform=self._uniform.arrays,
            visible_keys=self._counts,
            metrics=given.wanted.of_rows,
            padding=given.padding,
            sinks=self._options.sinks,
            tolerance=tolerance,
            valid=valid,
        )

    def _comparison(self, name: str, summaries: Mapping[str, Summary]) -> Any:
        given, first = self._given, next(iter(summaries))
        a, b = summaries[first].profile, summaries[name].profile
        return compare(
            self._pairs[name].arrays,
            given.layout,
            visible_keys=self._counts,
            metrics=given.wanted.comparison or (),
            padding=given.padding,
            profiles=None if a is None or b is None else (a, b),
            precision=min((given.matrices[one].dtype.name for one in (first, name)), key=list(FLOORS).index),
            top=self._top,
            valid=self._valid[first] & self._valid[name],
        )
