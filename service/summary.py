"""What one attention matrix is like: the analysis graph's numbers for each row, finished into a few for each head.

A row is *counted* where it is no padding, sees a key, has finite visible weights and sums to 1 within a tolerance;
other rows are *invalid*. A counted row that sees one key only is *forced*: it stays out of whatever it cannot help
(normalised entropy, distances, sinks, comparisons). A head's value is the plain mean over rows, each query weighing
the same.

With learned sinks rows sum to less than 1, the rest going to no key. Then a row is counted where its sum is at least
the tolerance, all statistics are of the row divided by its sum, and `keyless_mass` says how much went to no key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Num

from service.engine.job import Graph

Matrix = Float[np.ndarray, "batch heads queries keys"]
Visible = Bool[np.ndarray, "#batch #heads queries keys"]
Rows = Float64[np.ndarray, "batch heads queries"]
Heads = Float64[np.ndarray, "batch heads"]
Selection = Bool[np.ndarray, "batch heads queries"]

WINDOWS = (1, 4, 16, 64)
SINK_THRESHOLD = 0.3
TOLERANCES = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-5}
"""How far from 1 a row may sum, by the precision of the weights."""
BLOCK_CELLS = 1 << 18
"""More cells than this are fed in blocks of rows. The graph makes several matrices of its input's size, and a core's
cache holds these few: a quarter faster than whole. A GPU wants far more.
"""
DIAGONALS = ("diagonals", "uniform_diagonals", "pair_diagonals")


class Runs(Protocol):
    """What is needed of `service.engine.session.Sessions`."""

    def run(
        self,
        graph: Graph,
        outputs: tuple[str, ...],
        masked: bool,
        feeds: Mapping[str, np.ndarray],
        switches: tuple[str, ...] = (),
    ) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the queries and keys are, and (optionally) which token each is.

    Distances are of positions. Everything that counts tokens (the previous one, windows, the first ones) goes by
    *places*: a query's is the index of the key at its position, -1 where there is none. `ordered` says whether key
    positions increase; if not, places mean nothing.
    """

    query_positions: Float64[np.ndarray, " queries"]
    key_positions: Float64[np.ndarray, " keys"]
    query_tokens: Int64[np.ndarray, "#batch queries"] | None = None
    key_tokens: Int64[np.ndarray, "#batch keys"] | None = None

    @classmethod
    def first(cls, tokens: int) -> Layout:
        """Self-attention at 0, 1, 2, ..."""
        positions = np.arange(tokens, dtype=np.float64)
        return cls(positions, positions)

    @property
    def keys(self) -> int:
        return len(self.key_positions)

    @cached_property
    def ordered(self) -> bool:
        return bool((np.diff(self.key_positions) > 0).all())

    @cached_property
    def places(self) -> Int64[np.ndarray, " queries"]:
        if not self.ordered:
            return np.full(len(self.query_positions), -1)
        found = np.searchsorted(self.key_positions, self.query_positions).clip(max=self.keys - 1)
        return np.where(self.key_positions[found] == self.query_positions, found, -1)

    def with_tokens(
        self, query_tokens: Num[np.ndarray, "*batch queries"], key_tokens: Num[np.ndarray, "*batch keys"]
    ) -> Layout:
        """`query_tokens` and `key_tokens` are any numbers, equal for equal tokens."""
        together = np.concatenate([query_tokens, key_tokens], axis=-1)
        numbers = np.unique(together, return_inverse=True)[1].reshape(-1, together.shape[-1])
        queries, keys = numbers[:, : query_tokens.shape[-1]], numbers[:, query_tokens.shape[-1] :]
        return Layout(self.query_positions, self.key_positions, queries, keys)

    def with_embeddings(
        self, queries: Float[np.ndarray, "batch queries *features"], keys: Float[np.ndarray, "batch keys *features"]
    ) -> Layout:
        """Tokens are equal where their embeddings are, bit for bit."""
        rows = [np.ascontiguousarray(x).reshape(*x.shape[:2], -1) for x in (queries, keys)]
        whole = [x.view(np.dtype((np.void, x.shape[-1] * x.itemsize)))[..., 0] for x in rows]
        together = np.concatenate(whole, axis=1)
        numbers = np.unique(together, return_inverse=True)[1].reshape(together.shape)
        return self.with_tokens(numbers[:, : queries.shape[1]], numbers[:, queries.shape[1] :])

    def feeds(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """The graph's inputs for rows `start` to `stop`."""
        feeds = {
            "query_positions": self.query_positions[start:stop],
            "key_positions": self.key_positions,
            "query_places": self.places[start:stop],
        }
        if self.query_tokens is not None and self.key_tokens is not None:
            first = np.full((len(self.key_tokens), 1), -1)
            feeds |= {
                "query_tokens": self.query_tokens[:, start:stop],
                "key_tokens": self.key_tokens,
                "tokens_before": np.concatenate([first, self.key_tokens[:, :-1]], axis=1),
            }
        return feeds

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Rows `start` to `stop` split where places do not go up by one: a diagonal of the rest is one distance."""
        places = self.places[start:stop]
        breaks = np.flatnonzero((np.diff(places) != 1) & ~((places[1:] < 0) & (places[:-1] < 0))) + 1
        edges = [start, *(start + int(at) for at in breaks), stop]
        yield from pairwise(edges)


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One number for each head, and how it spreads over the rows it is the mean of. NaN where undefined, with a reason.

    `uniform` is what attention that gives every visible key the same would have. A number that belongs to no row
    (a ratio of means) has no percentiles.
    """

    mean: Heads
    rows: Int64[np.ndarray, "batch heads"]
    p10: Heads | None = None
    p50: Heads | None = None
    p90: Heads | None = None
    uniform: Heads | None = None
    reason: str | None = None

    @property
    def layer(self) -> Float64[np.ndarray, " batch"]:
        """The mean of the heads that have a value."""
        return _mean(self.mean, np.isfinite(self.mean))

    def json(self) -> dict[str, Any]:
        """Plain lists [batch][heads], None where undefined."""
        arrays = {"mean": self.mean, "p10": self.p10, "p50": self.p50, "p90": self.p90, "uniform": self.uniform}
        given = {name: listed(array) for name, array in arrays.items() if array is not None}
        why = {"reason": self.reason} if self.reason is not None else {}
        return {**given, "layer": listed(self.layer), "rows": self.rows.tolist(), **why}


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Mean weight by distance in places, query minus key: negative for keys that come later. `weights` sum to 1.

    `pairs` counts the visible cells at each distance.
    """

    distances: Int64[np.ndarray, " distances"]
    weights: Float64[np.ndarray, "batch heads distances"]
    uniform: Float64[np.ndarray, "batch heads distances"]
    pairs: Int64[np.ndarray, "batch heads distances"]
    rows: Int64[np.ndarray, "batch heads"]

    def json(self) -> dict[str, Any]:
        """Without the distances at which no head sees a pair."""
        seen = np.flatnonzero(self.pairs.any(axis=(0, 1)))
        kept = slice(int(seen[0]), int(seen[-1]) + 1) if seen.size else slice(0, 0)
        return {
            "distances": self.distances[kept].tolist(),
            "weights": listed(self.weights[..., kept]),
            "uniform": listed(self.uniform[..., kept]),
            "pairs": self.pairs[..., kept].tolist(),
            "rows": self.rows.tolist(),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """One matrix. Of the rows that are no padding, `rows_counted` and `rows_invalid` make all; forced rows are counted.

    `row_sum_error`, `mask_leak` and `nonfinite_cells` are there where they were asked for.
    """

    rows_counted: Int64[np.ndarray, "batch heads"]
    rows_forced: Int64[np.ndarray, "batch heads"]
    rows_invalid: Int64[np.ndarray, "batch heads"]
    metrics: Mapping[str, Metric]
    profile: Profile | None = None
    is_sink: Bool[np.ndarray, "batch heads"] | None = None
    row_sum_error: Heads | None = None
    mask_leak: Heads | None = None
    nonfinite_cells: Int64[np.ndarray, "batch heads"] | None = None
    reasons: Mapping[str, str] | None = None
    """Why what is not a metric is undefined, by name."""

    def json(self) -> dict[str, Any]:
        """Plain dictionaries and lists; no NaN."""
        arrays = {
            "rows_counted": self.rows_counted,
            "rows_forced": self.rows_forced,
            "rows_invalid": self.rows_invalid,
            "row_sum_error": self.row_sum_error,
            "mask_leak": self.mask_leak,
            "nonfinite_cells": self.nonfinite_cells,
        }
        answer: dict[str, Any] = {name: listed(array) for name, array in arrays.items() if array is not None}
        if self.is_sink is not None:
            answer["is_sink"] = known_only(self.is_sink, np.isfinite(self.metrics["alpha_0"].mean))
        answer |= {name: metric.json() for name, metric in self.metrics.items()}
        if self.profile is not None:
            answer["distance_profile"] = self.profile.json()
        return answer | ({"reasons": dict(self.reasons)} if self.reasons else {})


@dataclass(frozen=True, slots=True, eq=False)
class RowNumbers:
    """The graph's numbers for every row, and which rows may be read for what."""

    numbers: Mapping[str, Float[np.ndarray, "batch heads queries"]]
    places: Int64[np.ndarray, " queries"]
    visible_keys: Rows
    real: Selection
    counted: Selection
    forced: Selection
    free: Selection

    @classmethod
    def of(
        cls, numbers: Mapping[str, np.ndarray], layout: Layout, padding: Bool[np.ndarray, "#batch queries"] | None
    ) -> RowNumbers:
        shape = numbers["counted"].shape
        real = np.ones(shape, bool) if padding is None else np.broadcast_to(~padding[:, None], shape)
        counted = (numbers["counted"] > 0.5) & real
        # Where nothing is masked the graph is not asked.
        visible_keys = numbers["visible_keys"].astype(np.float64) if "visible_keys" in numbers else None
        visible_keys = np.full(shape, float(layout.keys)) if visible_keys is None else visible_keys
        forced = counted & (visible_keys == 1)
        return cls(numbers, layout.places, visible_keys, real, counted, forced, counted & ~forced)

    def __getitem__(self, name: str) -> Rows:
        return self.numbers[name].astype(np.float64)

    @property
    def entropy(self) -> Rows:
        return self["entropy" if "entropy" in self.numbers else "entropy_of_scores"]

    @property
    def why_none(self) -> str | None:
        """Why a head without any counted row has none."""
        if not self.real.any(axis=-1).all():
            return "all rows are padding"
        if not self.counted.any(axis=-1).all():
            return "no row is counted: they see no key, hold NaN or infinity, or do not sum to 1"
        return None


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric as the mean of `value` over the rows in `over`; `lacking` is why there are none."""

    name: str
    outputs: tuple[str, ...]
    value: Callable[[RowNumbers], Rows]
    over: Callable[[RowNumbers], Selection]
    uniform: Callable[[RowNumbers], Rows] | None
    lacking: str
    by_place: bool = False
    by_token: bool = False


ONE_KEY = "no counted row sees two keys or more"


def _mass(name: str, output: str, over: Callable[[RowNumbers], Selection], lacking: str) -> Definition:
    return Definition(
        name,
        (output, f"uniform_{output}"),
        lambda rows: rows[output],
        over,
        lambda rows: rows[f"uniform_{output}"],
        lacking,
        by_place=True,
    )


def _pattern(name: str, lacking: str) -> Definition:
    """A mass over the rows that have any key of the pattern; its `uniform` is the chance level, mean |E_i| / n_i."""
    return Definition(
        name,
        (name, f"uniform_{name}"),
        lambda rows: rows[name],
        lambda rows: rows.counted & (rows.places >= 0) & (rows[f"uniform_{name}"] > 0),
        lambda rows: rows[f"uniform_{name}"],
        lacking,
        by_place=True,
        by_token=True,
    )


def _after(first: int, free: bool) -> tuple[Callable[[RowNumbers], Selection], str]:
    """Rows whose place is `first` or later."""
    kind = "counted row that sees two keys or more" if free else "counted row"
    return (
        lambda rows: (rows.free if free else rows.counted) & (rows.places >= first),
        f"no {kind} is at place {first}+",
    )


DEFINITIONS: Mapping[str, Definition] = {
    one.name: one
    for one in (
        Definition(
            "entropy",
            ("entropy",),
            lambda rows: rows.entropy,
            lambda rows: rows.counted,
            lambda rows: np.log(rows.visible_keys),
            "no row is counted",
        ),
        Definition(
            "entropy_norm",
            ("entropy",),
            lambda rows: rows.entropy / np.log(rows.visible_keys),
            lambda rows: rows.free,
            lambda rows: np.ones(rows.real.shape),
            ONE_KEY,
        ),
        Definition(
            "effective_keys",
            ("entropy",),
            lambda rows: np.exp(rows.entropy),
            lambda rows: rows.counted,
            lambda rows: rows.visible_keys,
            "no row is counted",
        ),
        Definition(
            "max_weight",
            ("max_weight",),
            lambda rows: rows["max_weight"],
            lambda rows: rows.counted,
            lambda rows: 1 / rows.visible_keys,
            "no row is counted",
        ),
        Definition(
            "mean_distance",
            ("distance", "uniform_distance"),
            lambda rows: rows["distance"],
            lambda rows: rows.free,
            lambda rows: rows["uniform_distance"],
            ONE_KEY,
        ),
        Definition(
            "half_mass_distance",
            ("half_mass_distance",),
            lambda rows: rows["half_mass_distance"],
            lambda rows: rows.free & (rows.places >= 0),
            None,
            ONE_KEY,
            by_place=True,
        ),
        *(_mass(f"local_mass_{w}", f"local_mass_{w}", *_after(0, free=True)) for w in WINDOWS),
        _mass("previous_token", "previous_token", *_after(1, free=False)),
        _mass("self_token", "self_token", *_after(1, free=False)),
        _mass("first_token", "first_token", *_after(1, free=False)),
        _mass("sink_mass_1", "sink_mass_1", *_after(1, free=True)),
        _mass("sink_mass_4", "sink_mass_4", *_after(4, free=True)),
        _mass("alpha_0", "first_token", *_after(0, free=True)),
        _pattern("duplicate_token", "no counted row sees an earlier key with its own token"),
        _pattern("induction", "no counted row sees a key that follows its own token"),
    )
}
KEYLESS = Definition(
    "keyless_mass",
    ("row_sum",),
    lambda rows: 1 - rows["row_sum"],
    lambda rows: rows.counted,
    None,
    "no row is counted",
)
RATIO = "mean_distance_ratio"
PROFILE = "distance_profile"
HEALTH = ("row_sum_error", "mask_leak", "nonfinite_cells")
NAMES = (*DEFINITIONS, RATIO, PROFILE, *HEALTH)
DEFAULT = (
    "row_sum_error",
    "entropy",
    "entropy_norm",
    "effective_keys",
    "max_weight",
    "mean_distance",
    RATIO,
    "previous_token",
    "self_token",
    "first_token",
    "sink_mass_1",
    "sink_mass_4",
    "alpha_0",
)
"""What takes few passes over the matrix. `alpha_0` also says whether the first key is a sink."""
_OTHERS = {
    RATIO: ("distance", "uniform_distance"),
    PROFILE: DIAGONALS,
    "row_sum_error": ("row_sum",),
    "mask_leak": ("leak",),
    "nonfinite_cells": ("nonfinite",),
}


def outputs_for(
    metrics: Iterable[str], layout: Layout, *, masked: bool, scored: bool = False, sinks: bool = False
) -> tuple[str, ...]:
    """The outputs that the graph must give for these metrics, in one order, so that equal needs share a session.

    With the scores at hand (`scored`) entropy is had from them, in half the time. Raises ValueError for a name that is
    none of `NAMES`.
    """
    needed = {"counted"} | ({"visible_keys"} if masked else set()) | ({"row_sum"} if sinks else set())
    for name in metrics:
        definition = DEFINITIONS.get(name)
        if definition is None:
            if name not in _OTHERS:
                raise ValueError(f"there is no metric {name!r}; there are {', '.join(NAMES)}")
            if (name != "mask_leak" or masked) and (name != PROFILE or layout.ordered):
                needed.update(_OTHERS[name])
        elif _why_not(definition, layout) is None:
            needed.update(definition.outputs)
    if scored and "entropy" in needed:
        needed = needed - {"entropy"} | {"entropy_of_scores"}
    return tuple(sorted(needed))


def summarise(
    rows: Mapping[str, np.ndarray],
    layout: Layout,
    *,
    metrics: Iterable[str] = DEFAULT,
    padding: Bool[np.ndarray, "#batch queries"] | None = None,
    sinks: bool = False,
) -> Summary:
    """The summary of a matrix from its graph's outputs (`outputs_for`) over all rows; blocks of rows are put together
    by `concatenate`.

    `padding` is true for queries that are none. Computed in float64.
    """
    asked = tuple(dict.fromkeys(metrics))
    of = RowNumbers.of(rows, layout, padding)
    chosen = [DEFINITIONS[name] for name in asked if name in DEFINITIONS]
    if RATIO in asked and "mean_distance" not in asked:
        chosen.append(DEFINITIONS["mean_distance"])
    chosen += [KEYLESS] if sinks else []
    with np.errstate(all="ignore"):
        found = measure(chosen, of, layout)
        reasons: dict[str, str] = {}
        ratio = {RATIO: _ratio(found["mean_distance"])} if RATIO in asked else {}
        if "mean_distance" not in asked:
            found.pop("mean_distance", None)
        row_sum_error = _row_sum_error(of, sinks, reasons) if "row_sum_error" in asked else None
        leak = _leak(of) if "mask_leak" in asked else None
    profile = _profile(rows, of, layout, reasons) if PROFILE in asked else None
    return Summary(
        rows_counted=of.counted.sum(-1),
        rows_forced=of.forced.sum(-1),
        rows_invalid=(of.real & ~of.counted).sum(-1),
        metrics={**found, **ratio},
        profile=profile,
        is_sink=found["alpha_0"].mean > SINK_THRESHOLD if "alpha_0" in found else None,
        row_sum_error=row_sum_error,
        mask_leak=leak,
        nonfinite_cells=np.where(of.real, of["nonfinite"], 0).sum(-1).astype(int)
        if "nonfinite_cells" in asked
        else None,
        reasons=reasons,
    )


def measure(definitions: Sequence[Definition], of: RowNumbers, layout: Layout) -> dict[str, Metric]:
    """Means, percentiles and baselines of all at once: few NumPy calls, however many metrics."""
    nothing = np.zeros(of.real.shape)
    why = {one.name: _why_not(one, layout) for one in definitions}
    able = [one for one in definitions if why[one.name] is None]
    metrics = {one.name: _undefined(nothing[..., 0], str(why[one.name])) for one in definitions if why[one.name]}
    if able:
        over = np.stack([one.over(of) for one in able])
        mean, p10, p50, p90 = _spread(np.stack([one.value(of) for one in able]), over)
        baseline = _mean(np.stack([nothing if one.uniform is None else one.uniform(of) for one in able]), over)
        counts = over.sum(-1)
        for i, one in enumerate(able):
            reason = None
            if not counts[i].all():
                reason = of.why_none or one.lacking
            elif not np.isfinite(mean[i]).all():
                reason = "it is infinite or no number"
            uniform = None if one.uniform is None else baseline[i]
            metrics[one.name] = Metric(mean[i], counts[i], p10[i], p50[i], p90[i], uniform, reason)
    return {one.name: metrics[one.name] for one in definitions}


def concatenate(blocks: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The numbers of all rows from those of blocks of rows, in order. Sums over rows are added up."""
    return {
        name: sum((block[name] for block in blocks[1:]), start=blocks[0][name])
        if name in DIAGONALS
        else np.concatenate([block[name] for block in blocks], axis=2)
        for name in blocks[0]
    }


class Summariser:
    """Makes summaries with the exported graph, on the device of `sessions`."""

    def __init__(self, sessions: Runs, folder: Path) -> None:
        """`folder` holds rows.onnx."""
        self.sessions = sessions
        self.graph = open_graph(folder / "rows.onnx")

    def summarise(
        self,
        weights: Matrix,
        layout: Layout,
        *,
        visible: Visible | None = None,
        scores: Matrix | None = None,
        metrics: Iterable[str] = DEFAULT,
        padding: Bool[np.ndarray, "#batch queries"] | None = None,
        sinks: bool = False,
        tolerance: float | None = None,
        block_cells: int = BLOCK_CELLS,
    ) -> Summary:
        """The summary of a whole matrix, which is fed in blocks of rows where it is large.

        `visible` is None where nothing is masked. `scores` (before the mask) make the entropy cheaper. `tolerance` is
        that of the weights' precision unless given.
        """
        asked = tuple(dict.fromkeys(metrics))
        allowed = TOLERANCES[weights.dtype.name] if tolerance is None else tolerance
        if padding is not None and PROFILE in asked:
            # Sums over rows are taken in the graph: there padding is a row that sees nothing.
            visible = (~padding)[:, None, :, None] if visible is None else visible & ~padding[:, None, :, None]
            visible = np.broadcast_to(visible, (*visible.shape[:3], layout.keys))
        blocks = []
        for start, stop in spans(weights.shape, block_cells):
            blocks.append(
                self.rows(
                    weights[:, :, start:stop],
                    layout,
                    start=start,
                    visible=None if visible is None else visible[:, :, start:stop],
                    scores=None if scores is None else scores[:, :, start:stop],
                    metrics=asked,
                    sinks=sinks,
                    tolerance=allowed,
                )
            )
        return summarise(concatenate(blocks), layout, metrics=asked, padding=padding, sinks=sinks)

    def rows(
        self,
        weights: Matrix,
        layout: Layout,
        *,
        start: int = 0,
        visible: Visible | None = None,
        scores: Matrix | None = None,
        metrics: Iterable[str] = DEFAULT,
        sinks: bool = False,
        tolerance: float = TOLERANCES["float32"],
    ) -> dict[str, np.ndarray]:
        """The numbers of the rows from `start` on, of which `weights`, `visible` and `scores` hold only these.

        What `concatenate` and then `summarise` take, so that a matrix need never be whole.
        """
        stop = start + weights.shape[2]
        outputs = outputs_for(metrics, layout, masked=visible is not None, scored=scores is not None, sinks=sinks)
        split = layout.runs(start, stop) if "diagonals" in outputs else [(start, stop)]
        blocks = []
        for first, last in split:
            part = slice(first - start, last - start)
            feeds = layout.feeds(first, last) | {
                "weights": single(weights[:, :, part]),
                "tolerance": np.array(tolerance, np.float64),
            }
            if visible is not None:
                feeds["visible"] = np.ascontiguousarray(visible[:, :, part])
            if scores is not None:
                feeds["scores"] = single(scores[:, :, part])
            numbers = self.sessions.run(self.graph, outputs, visible is not None, feeds, ("sinks",) if sinks else ())
            blocks.append({name: _placed(name, array, layout, first, last) for name, array in numbers.items()})
        return concatenate(blocks)


def open_graph(path: Path) -> Graph:
    """An analysis graph as the engine's sessions take it."""
    return Graph(f"analysis.{path.stem}", path, hashlib.sha256(path.read_bytes()).hexdigest()[:16])


def spans(shape: tuple[int, ...], cells: int) -> Iterator[tuple[int, int]]:
    """Rows from where to where, of about `cells` cells each."""
    batch, heads, queries, keys = shape
    rows = max(1, min(queries, cells // (batch * heads * keys)))
    for start in range(0, queries, rows):
        yield start, min(start + rows, queries)


def single(matrix: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """As the graphs take it: float32, contiguous."""
    return np.ascontiguousarray(matrix, dtype=np.float32)


def listed(array: np.ndarray) -> Any:
    """Nested lists, None for what is not finite."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    return known_only(array, np.isfinite(array))


def known_only(array: np.ndarray, known: np.ndarray) -> Any:
    """Nested lists, None for what is not known."""
    cells = array.astype(object)
    cells[~known] = None
    return cells.tolist()


def _why_not(definition: Definition, layout: Layout) -> str | None:
    """Why this layout leaves the metric undefined for every head."""
    if definition.by_place and not layout.ordered:
        return "key positions do not increase, so that tokens have no order"
    if definition.by_place and (layout.places < 0).all():
        return "no query is at the position of a key"
    if definition.by_token and layout.key_tokens is None:
        return "it was not said which tokens are equal"
    return None


def _undefined(nothing: Heads, reason: str) -> Metric:
    missing = np.full(nothing.shape, np.nan)
    return Metric(missing, np.zeros(nothing.shape, int), missing, missing, missing, missing, reason)


def _mean(values: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Over the last axis; NaN of nothing."""
    with np.errstate(invalid="ignore"):
        mean: np.ndarray = np.where(over, values, 0.0).sum(-1) / over.sum(-1)
    return mean


def _spread(values: np.ndarray, over: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean, p10, p50 and p90 (linear, as NumPy's) over the last axis."""
    ordered = np.sort(np.where(over, values, np.inf), axis=-1)
    last = np.maximum(over.sum(-1, keepdims=True) - 1, 0)
    at = np.array([0.1, 0.5, 0.9]) * last
    below = np.floor(at).astype(int)
    lower = np.take_along_axis(ordered, below, axis=-1)
    upper = np.take_along_axis(ordered, np.minimum(below + 1, last), axis=-1)
    between = np.where(at > below, lower + (at - below) * (upper - lower), lower)
    between = np.where(over.any(-1, keepdims=True), between, np.nan)
    return _mean(values, over), between[..., 0], between[..., 1], between[..., 2]


def _ratio(distance: Metric) -> Metric:
    """Of means, over the same rows and under the same mask: 1 for uniform attention."""
    assert distance.uniform is not None
    ratio = np.where(distance.uniform > 0, distance.mean / distance.uniform, np.nan)
    reason = distance.reason
    if reason is None and np.isnan(ratio).any():
        reason = "all visible keys are at the query's own position"
    return Metric(ratio, distance.rows, reason=reason)


def _row_sum_error(of: RowNumbers, sinks: bool, reasons: dict[str, str]) -> Heads:
    error = np.abs(of["row_sum"] - 1)
    over = of.real & (of.visible_keys >= 1) & np.isfinite(error)
    if sinks:
        reasons["row_sum_error"] = "rows with sinks need not sum to 1"
        return np.full(over.shape[:2], np.nan)
    if not over.any(-1).all():
        reasons["row_sum_error"] = "no row sees a key and is finite"
    return np.where(over.any(-1), np.where(over, error, 0).max(-1, initial=0), np.nan)


def _leak(of: RowNumbers) -> Heads:
    """0 where nothing is masked."""
    if "leak" not in of.numbers:
        return np.zeros(of.real.shape[:2])
    leak = of["leak"]
    largest: Heads = np.where(of.real & np.isfinite(leak), leak, 0).max(-1, initial=0)
    return largest


def _profile(rows: Mapping[str, np.ndarray], of: RowNumbers, layout: Layout, reasons: dict[str, str]) -> Profile | None:
    if not layout.ordered:
        reasons[PROFILE] = "key positions do not increase, so that tokens have no order"
        return None
    weights, uniform, pairs = (rows[name] for name in DIAGONALS)
    count = (of.free & (layout.places >= 0)).sum(-1)
    if not count.all():
        reasons[PROFILE] = of.why_none or "no counted row sees two keys or more and is at the position of a key"
    with np.errstate(all="ignore"):
        of_rows = np.where(count > 0, count, np.nan)[..., None]
        distances = np.arange(-(layout.keys - 1), layout.keys)
        return Profile(distances, weights / of_rows, uniform / of_rows, np.rint(pairs).astype(int), count)


def _placed(name: str, array: np.ndarray, layout: Layout, start: int, stop: int) -> np.ndarray:
    """Diagonal sums by distance in places, from -(keys - 1) to keys - 1, in float64; other arrays as they are.

    Entry c of a block is the diagonal (row of the block) - key = rows - c; its rows begin at the place of `start`.
    """
    if name not in DIAGONALS:
        return array
    keys, count, place = layout.keys, stop - start, int(layout.places[start])
    whole = np.zeros((*array.shape[:2], 2 * keys - 1))
    if place >= 0:
        # Distance d = place + count - c, c = keys + count - 1 .. 1, is at d + keys - 1.
        whole[..., place : place + count + keys - 1] = array[..., keys + count - 1 : 0 : -1]
    return whole
