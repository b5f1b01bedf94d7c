"""What one request wants to know of its matrices: the jobs that find it out, and their results put together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import prod

import numpy as np
from jaxtyping import Bool, Int64

from service.analysis.analyst import TOLERANCE, Analyst, Baseline, Study, lost, with_feeds
from service.analysis.sharing import MATRIX, own, pair_job
from service.analysis.sheet import Sheet
from service.blocks import Block
from service.comparisons.comparison import Comparison, compare
from service.engine.appending import APPENDED, EXACT, appended
from service.engine.job import Job, JobResult, Own, Tables
from service.masks import Sight, Visible
from service.padding import Lengths, Padded, filled
from service.plan import Runs
from service.records import ScoringResult
from service.selection import Indices, index
from service.summaries.graph import row_feeds, uniform
from service.summaries.layout import Layout
from service.summaries.profile import PROFILE, placed, scattered
from service.summaries.rows import DIAGONALS, counts
from service.summaries.summary import Summary, summarise

PAIR_CELLS = 1 << 18
"""Two matrices are compared in blocks of about so many cells: the graph makes several of each, which a core's cache
then holds."""

DEVICE_CELLS = 1 << 20
"""The same where a device computes them, several at once."""

QUICK = 1 << 12
"""Rows that are finished on the event loop: of so many it takes about a millisecond."""
AT_ONCE = 16
"""Jobs that compare, handed to the engine together."""

Padding = Bool[np.ndarray, "#batch queries"]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What the runs of one block of a request are fed beside what they compute anyway."""

    block: Block
    key: str
    feeds: Mapping[str, np.ndarray]
    layout: Layout
    visible: Visible | None
    visible_keys: Int64[np.ndarray, "#batch #heads queries"] | None
    uniform: Job | None
    """The job that finds the numbers of uniform attention; None where they are known."""
    own: Mapping[str, Own] | None = None
    """Those of the feeds that are the request's own, where the others are fed to runs of several."""

    def tables(self, tables: Tables) -> Tables:
        """The position tables, with these feeds."""
        return with_feeds(tables, self.key, self.feeds)


class Inquiry:
    """Belongs to one request. `switches` are those of each part's graph, the reference's first."""

    def __init__(
        self,
        analyst: Analyst,
        study: Study,
        *,
        batch: int,
        heads: int,
        sight: Sight,
        mask: tuple[int, int] | None,
        switches: Sequence[tuple[str, ...]],
        head: Indices | None,
        layout: Layout,
        padding: Padding | None,
        lengths: Lengths | None = None,
    ) -> None:
        """`heads` are all that are computed. `mask` has the batch and heads of the request's own, either of which may
        be 1; None where it brought none. `layout` may know tokens, `padding` is true for queries that are none.
        `lengths` says which lengths are computed as longer ones, on a device that pads.
        """
        self._analyst = analyst
        self.study = study
        self._sight = sight
        self._masked = mask is not None
        self._sinks = ["sinks" in names for names in switches]
        self._head = None if head is None else index(head)
        self._layout = layout
        self._padding = padding
        self._lengths = lengths
        queries = layout.queries
        self._shown = shown = heads if head is None else len(head)
        self._rows = [Sheet(batch, heads, queries) for _ in switches]
        self._pairs = [Sheet(batch, shown, queries) for _ in switches[1:]]
        lead = mask or (1, 1)
        tokens = 1 if layout.key_tokens is None else len(layout.key_tokens)
        self._uniform = Sheet(max(lead[0], tokens), lead[1], queries)
        self._counts = Sheet(*lead, queries)
        self._whole = Block(slice(0, batch), slice(0, queries))
        self._first = True
        """Whether the first part is among these: with its runs come those of uniform attention."""
        general = mask is None and layout.key_tokens is None
        self._known = analyst.baseline(study, sight) if general else None

    def of_parts(self, parts: slice) -> Inquiry:
        """That of some of the parts, which are computed together; their results come into this one as well."""
        some = copy(self)
        some._rows, some._sinks = self._rows[parts], self._sinks[parts]
        some._first = not parts.start
        return some

    @property
    def compares(self) -> bool:
        return bool(self.study.pairs) and len(self._rows) > 1

    def piece(self, block: Block, visible: Visible | None, *, shared: bool = False) -> Piece:
        """Of the block of rows that see this. `shared`: its runs may be those of other requests too, and of as many
        tokens as these are padded to.
        """
        study, layout, padding = self.study, self._layout, self._padding
        if block != self._whole:
            layout = layout.item(block.batch).rows(block.queries)
            if padding is not None:
                padding = padding[block.batch if len(padding) > 1 else slice(None), block.queries]
        profiled = DIAGONALS[0] in study.outputs.rows or study.scattered
        mine = None
        if shared:
            key, feeds = self._analyst.feeds(study)
            mine = own({**layout.token_feeds(), **(_profiled(layout, padding) if profiled else {})}, APPENDED)
        elif block == self._whole and layout.key_tokens is None and not (profiled and padding is not None):
            key, feeds = self._analyst.feeds(study)
        else:
            key, feeds = self._analyst.name(), row_feeds(layout, study.outputs.rows, TOLERANCE, padding)
        count, job = None, None
        if self._first and self._known is None and self._uniform.has(block):
            even, count = uniform(visible, layout.queries, layout.keys)
            if study.outputs.uniform:
                job = self._uniform_job(even, layout) if shared else self._uniform_block(even, layout)
            if visible is None and (block == self._whole or not (self._masked or not self._sight.everything)):
                count = None
        return Piece(block, key, feeds, layout, visible, count, job, mine)

    def tables(self, piece: Piece, tables: Tables, padded: Padded | None) -> Tables:
        """The position tables of the run of one part, with what the piece feeds it."""
        if padded is None:
            return piece.tables(tables)
        return self._analyst.tables(tables, self.study, (padded.needs.queries, padded.needs.keys))

    def _uniform_block(self, even: np.ndarray, layout: Layout) -> Job:
        study = self.study
        if self._lengths is not None and layout.key_tokens is not None and len(even) < len(layout.key_tokens):
            # A device is told beforehand how large the answers are, by the weights.
            even = np.broadcast_to(even, (len(layout.key_tokens), *even.shape[1:]))
        given = {**row_feeds(layout, study.outputs.uniform, TOLERANCE), "weights": even}
        return Job.of_arrays(self._analyst.rows, Tables(self._analyst.name(), given), study.outputs.uniform, even.size)

    def _uniform_job(self, even: np.ndarray, layout: Layout) -> Job:
        """The same, padded and of several requests at once."""
        study, tokens = self.study, layout.token_feeds()
        items = max(len(even), *(len(array) for array in tokens.values()), 1)
        if len(even) < items:
            even = np.broadcast_to(even, (items, *even.shape[1:]))
        sizes = items, layout.queries, layout.keys
        lengths = self._bucket(even.shape, ("weights",))
        longer = None if lengths is None else filled(study.queries, study.keys, lengths)
        padded = lengths if longer is not None and lengths != sizes[1:] else None
        key, feeds = self._analyst.feeds(study, None if padded is None else longer)
        return Job.of_items(
            self._analyst.rows,
            Tables(key, feeds),
            {"weights": Own(even, MATRIX), **own(tokens)},
            study.outputs.uniform,
            sizes,
            items * even.shape[1] * prod(padded or sizes[1:]),
            padded=padded,
        )

    def _bucket(self, shape: tuple[int, ...], given: Sequence[str]) -> tuple[int, int] | None:
        """How many queries and keys matrices of this shape are computed with."""
        batch, heads, queries, keys = shape
        return None if self._lengths is None else self._lengths.padded(batch, heads, queries, keys, given)

    async def take(
        self, piece: Piece, answers: Sequence[JobResult], engine: Runs, deadline: float | None
    ) -> list[JobResult]:
        """What the runs of a piece have found: one of each part, and that of `piece.uniform` where there is one.
        Returns what was run to compare them. Raises what the engine raises.
        """
        if piece.uniform is not None:
            self._uniform.put(answers[-1].outputs, piece.block)
        if piece.visible_keys is not None and self._counts.has(piece.block):
            self._counts.put({"visible_keys": piece.visible_keys}, piece.block)
        parts = answers[: len(self._rows)]
        for sheet, answer in zip(self._rows, parts, strict=True):
            found = {name.removeprefix(APPENDED): array for name, array in answer.outputs.items() if appended(name)}
            sheet.put({name: placed(name, array, piece.layout) for name, array in found.items()}, piece.block)
        if self.study.scattered:
            diagonals = await asyncio.to_thread(self._scattered, piece, parts)
            for sheet, found in zip(self._rows, diagonals, strict=True):
                sheet.put(found, piece.block)
        run: list[JobResult] = []
        if self.compares:
            pairs = [pair for i in range(1, len(parts)) for pair in self._pair_jobs(i, piece, parts[0], parts[i])]
            for start in range(0, len(pairs), AT_ONCE):
                some = pairs[start : start + AT_ONCE]
                results = await engine.run([job for _, _, job in some], deadline)
                for (sheet, block, _), result in zip(some, results, strict=True):
                    sheet.put(result.outputs, block)
                run += results
        return run

    def _scattered(self, piece: Piece, parts: Sequence[JobResult]) -> list[dict[str, np.ndarray]]:
        """The sums over diagonals that the runs could not give."""
        diagonals = []
        for sinks, answer in zip(self._sinks, parts, strict=True):
            weights, row_sum = answer.outputs["weights"], answer.outputs[f"{APPENDED}row_sum"]
            profiled = piece.feeds["profiled"]
            if piece.own is not None:
                profiled = piece.own[f"{APPENDED}profiled"].array
            over = counts(row_sum, TOLERANCE, sinks=sinks) & profiled[:, None]
            diagonals.append(scattered(weights, row_sum, over, piece.layout, visible=piece.visible, sinks=sinks))
        return diagonals

    def _pair_jobs(
        self, part: int, piece: Piece, reference: JobResult, other: JobResult
    ) -> list[tuple[Sheet, Block, Job]]:
        """Jobs that compare what one part has computed with what the reference has, and where their results go."""
        head = slice(None) if self._head is None else self._head
        a, b = ({name: one.outputs[name][:, head] for name in self.study.compared} for one in (reference, other))
        visible = piece.visible
        if visible is not None and visible.shape[1] > 1:
            visible = visible[:, head]
        sinks = zip(("sinks_a", "sinks_b"), (self._sinks[0], self._sinks[part]), strict=True)
        switches = tuple(name for name, on in sinks if on)
        start = piece.block.queries.start
        jobs = []
        for rows in _spans(a["weights"].shape, PAIR_CELLS if self._lengths is None else DEVICE_CELLS):
            given = {f"{name}_a": array[:, :, rows] for name, array in a.items()}
            given |= {f"{name}_b": array[:, :, rows] for name, array in b.items()}
            seen = None if visible is None else visible[:, :, rows]
            job = self._pair_job(given, seen, switches)
            block = Block(piece.block.batch, slice(start + rows.start, start + rows.stop))
            jobs.append((self._pairs[part - 1], block, job))
        return jobs

    def _pair_job(self, given: dict[str, np.ndarray], visible: Visible | None, sinks: tuple[str, ...]) -> Job:
        graph, study, shape = self._analyst.pairs, self.study, given["weights_a"].shape
        if self._lengths is not None:
            return pair_job(
                graph,
                given,
                study.pairs,
                tolerance=TOLERANCE,
                top=study.top,
                visible=visible,
                sinks=sinks,
                padded=self._bucket(shape, tuple(given)),
            )
        feeds = {**given, "tolerance": np.array(TOLERANCE), "top": np.zeros(study.top, np.float32)}
        tables = Tables(self._analyst.name(), feeds)
        return Job.of_arrays(graph, tables, study.pairs, prod(shape), visible, (EXACT, *sinks))

    @property
    def slow(self) -> bool:
        """Whether telling takes longer than the event loop should wait."""
        rows: int = len(self._rows) * self._whole.batch.stop * self._shown * self._layout.queries
        return rows > QUICK

    def tell(self, answer: ScoringResult) -> None:
        """Adds what was found out to what is returned."""
        batched = answer.batch is not None
        returns, results = self.study.wanted, answer.results
        summaries, comparisons = self._finish()
        for i, (result, summary) in enumerate(zip(results, summaries, strict=False)):
            if not result.holds_numbers:
                result.nonfinite_cells = self._nonfinite(i)
            if returns.summary is not None:
                result.summary = summary.document(batched)
                if summary.profile is not None and PROFILE in returns.summary:
                    result.profile = summary.profile.document(batched)
        if returns.comparison is not None:
            against = zip(results[1:], comparisons, strict=True)
            answer.comparison = {
                "reference": results[0].name,
                "against": {result.name: comparison.document(batched) for result, comparison in against},
            }

    def _nonfinite(self, part: int) -> int:
        """Weights of a part that are no numbers: a row's softmax is wholly one or wholly none."""
        sums = self._rows[part].arrays["row_sum"]
        known = self._baseline().visible_keys
        if self._head is not None:
            sums, known = sums[:, self._head], None if known is None else _of_heads(known, self._head)
        return lost(sums, known, self._layout.keys)

    def _finish(self) -> tuple[list[Summary], list[Comparison]]:
        """A summary of each part, and a comparison of each but the first with it; none where none were wanted."""
        study, wanted = self.study, self.study.wanted
        known = self._baseline()
        head = slice(None) if self._head is None else self._head
        summaries = [
            summarise(
                {name: array[:, head] for name, array in sheet.arrays.items()},
                self._layout,
                uniform={name: _of_heads(array, head) for name, array in known.uniform.items()},
                visible_keys=None if known.visible_keys is None else _of_heads(known.visible_keys, head),
                metrics=wanted.of_rows,
                padding=self._padding,
                sinks=sinks,
                tolerance=TOLERANCE,
                ground=None
                if self._known is None or self._padding is not None
                else self._analyst.ground(study, self._known, sinks),
            )
            for sheet, sinks in zip(self._rows, self._sinks, strict=True)
            if wanted.of_rows
        ]
        comparisons = []
        for i, sheet in enumerate(self._pairs if wanted.comparison is not None else []):
            profiles = None
            if wanted.profiles and summaries:
                a, b = summaries[0].profile, summaries[i + 1].profile
                profiles = None if a is None or b is None else (a, b)
            comparisons.append(
                compare(
                    sheet.arrays,
                    self._layout,
                    visible_keys=None if known.visible_keys is None else _of_heads(known.visible_keys, head),
                    metrics=wanted.comparison or (),
                    padding=self._padding,
                    profiles=profiles,
                    top=study.top,
                )
            )
        return summaries, comparisons

    def _baseline(self) -> Baseline:
        if self._known is not None:
            return self._known
        found = Baseline(self._uniform.arrays, self._counts.arrays.get("visible_keys"))
        if not self._masked and self._layout.key_tokens is None:
            self._analyst.keep(self.study, self._sight, found)
        return found


def _of_heads(array: np.ndarray, head: slice | Indices) -> np.ndarray:
    return array if array.shape[1] == 1 else array[:, head]


def _profiled(layout: Layout, padding: Padding | None) -> dict[str, np.ndarray]:
    """The rows that may be in the sums over diagonals: no padding, neither the request's nor a device's."""
    placed = layout.places >= 0
    return {"profiled": placed[None] if padding is None else placed & ~padding}


def _spans(shape: tuple[int, ...], cells: int) -> Iterator[slice]:
    batch, heads, queries, keys = shape
    rows = max(1, min(queries, cells // (batch * heads * keys)))
    for start in range(0, queries, rows):
        yield slice(start, min(start + rows, queries))
