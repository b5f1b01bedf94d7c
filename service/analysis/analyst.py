"""The analysis graphs as scoring runs them, and what of their inputs recurs from request to request."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int64

from service.analysis.wanted import COMPARISON, SUMMARY, Wanted
from service.cache import Cache
from service.catalogue import ANALYSIS
from service.comparisons import metrics as of_pairs
from service.engine.appending import APPENDED, appended
from service.engine.job import Graph, Tables
from service.masks import Sight
from service.positions import Positions
from service.summaries.definition import Ground
from service.summaries.graph import TOLERANCES, open_graph, row_feeds
from service.summaries.layout import Layout
from service.summaries.metrics import Outputs, in_one_run, outputs_for, unsummed
from service.summaries.summary import Summary, ground_of, summarise

EXPORTED = Path(__file__).parents[2] / "exported"
TOLERANCE = TOLERANCES["float32"]
"""Of what is computed here; float16 is made of it afterwards."""


def analysis_folder(models: Iterable[Path]) -> Path:
    """Where the graphs are: in the first folder of models that has them, else in the one beside the service."""
    folders = (folder / ANALYSIS for folder in (*models, EXPORTED))
    return next((folder for folder in folders if (folder / "rows.onnx").is_file()), EXPORTED / ANALYSIS)


def with_feeds(tables: Tables, key: str, feeds: Mapping[str, np.ndarray]) -> Tables:
    """Position tables, with what a graph behind is fed, which has this name."""
    return Tables(f"{tables.key}|{key}", {**tables.arrays, **{APPENDED + name: array for name, array in feeds.items()}})


def lost(
    row_sums: Float[np.ndarray, "batch heads queries"],
    visible_keys: Int64[np.ndarray, "#batch #heads queries"] | None,
    keys: int,
) -> int:
    """Weights that are no numbers, where rows have these sums: a row's softmax is wholly one or wholly none."""
    gone = ~np.isfinite(row_sums)
    if visible_keys is None or not gone.any():
        return int(gone.sum()) * keys
    return int(np.where(gone, visible_keys, 0).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """What is to be computed for all requests of one plan. The layout is that of the rows that are computed."""

    wanted: Wanted
    layout: Layout
    queries: Positions
    keys: Positions
    outputs: Outputs
    pairs: tuple[str, ...]
    """The outputs of the graph of two matrices; none where nothing is compared."""
    top: int
    """The k of `topk_overlap`."""

    @property
    def computed(self) -> tuple[str, ...]:
        """The further outputs of the scores graph."""
        return tuple(APPENDED + name for name in self.outputs.rows) if self.wanted.of_rows else ()

    @property
    def scattered(self) -> bool:
        """Whether no run gives the sums over diagonals: they are had from the weights."""
        return unsummed(self.wanted.of_rows, self.layout, self.outputs.rows)

    @property
    def read(self) -> tuple[str, ...]:
        """The matrices that are read once they are computed."""
        return self.compared or (("weights",) if self.scattered else ())

    @property
    def compared(self) -> tuple[str, ...]:
        """The matrices that a comparison reads."""
        if not self.pairs:
            return ()
        scored = any(name.startswith("logit") for name in self.pairs)
        return ("weights", "scores") if scored else ("weights",)


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """The numbers of uniform attention, and how many keys each row sees; None where nothing is masked."""

    uniform: Mapping[str, np.ndarray]
    visible_keys: Int64[np.ndarray, "#batch #heads queries"] | None
    grounds: dict[tuple[tuple[str, ...], bool], Ground] = field(default_factory=dict)
    """What summaries of such metrics, with sinks or without, have in common whose rows all count."""


GROUNDS = 4
"""That a baseline keeps."""


class Analyst:
    """Knows the graphs. Keeps what follows from positions alone, up to `capacity` bytes of each kind."""

    def __init__(self, folder: Path, capacity: int = 16 << 20) -> None:
        """`folder` holds rows.onnx and pairs.onnx."""
        self.rows = open_graph(folder / "rows.onnx")
        self.pairs = open_graph(folder / "pairs.onnx")
        self._feeds: Cache[tuple[str, str, Outputs], Mapping[str, np.ndarray]] = Cache(capacity)
        self._baselines: Cache[tuple[str, str, Sight, Outputs], Baseline] = Cache(capacity)
        self._numbers = itertools.count()

    @property
    def graphs(self) -> dict[str, str]:
        """What the graphs are for, by their names."""
        return {self.rows.name: SUMMARY, self.pairs.name: COMPARISON}

    def sweep(self) -> None:
        """Drops what has not been asked for since this was last called."""
        self._feeds.sweep()
        self._baselines.sweep()

    def behind(self, graph: Graph) -> Graph:
        """A scores graph that gives the numbers of its rows as well."""
        return replace(graph, behind=self.rows.path)

    def study(self, wanted: Wanted, queries: Positions, keys: Positions, top: int) -> Study:
        layout = Layout(queries.values, keys.values)
        if wanted.tokens:  # which tokens are equal is known later
            nothing = np.zeros(1, int)
            known = replace(layout, query_tokens=nothing, key_tokens=nothing)
        else:
            known = layout
        outputs = in_one_run(outputs_for(wanted.of_rows, known, masked=True, scored=True), layout)
        pairs = () if wanted.comparison is None else of_pairs.outputs_for(wanted.comparison, layout, scored=True)
        return Study(wanted, layout, queries, keys, outputs, pairs, min(top, len(keys)))

    def feeds(
        self, study: Study, positions: tuple[Positions, Positions] | None = None
    ) -> tuple[str, Mapping[str, np.ndarray]]:
        """What the graph of one matrix is fed where neither tokens nor padding matter, and a name for it; read-only.
        With `positions`, of queries and keys, it is computed with these.
        """
        queries, keys = positions or (study.queries, study.keys)
        key = queries.digest, keys.digest, study.outputs
        found = self._feeds.get(key)
        if found is None:
            layout = study.layout if positions is None else Layout(queries.values, keys.values)
            found = row_feeds(layout, study.outputs.rows, TOLERANCE)
            for array in found.values():
                array.flags.writeable = False
            self._feeds.put(key, found, sum(array.nbytes for array in found.values()))
        return "|".join(key[:2]), found

    def tables(self, tables: Tables, study: Study, positions: tuple[Positions, Positions] | None = None) -> Tables:
        """Position tables, with what the graph of one matrix is fed."""
        key, feeds = self.feeds(study, positions)
        return with_feeds(tables, key, feeds)

    def name(self) -> str:
        """One that no other feeds have."""
        return f"#{next(self._numbers)}"

    def baseline(self, study: Study, sight: Sight) -> Baseline | None:
        """That of requests without a mask of their own, where it was computed before."""
        return self._baselines.get((study.queries.digest, study.keys.digest, sight, study.outputs))

    def keep(self, study: Study, sight: Sight, baseline: Baseline) -> None:
        arrays = [*baseline.uniform.values(), *([] if baseline.visible_keys is None else [baseline.visible_keys])]
        # A ground has several of them for each metric.
        size = (1 + GROUNDS * len(study.wanted.of_rows)) * sum(array.nbytes for array in arrays) + 4096
        self._baselines.put((study.queries.digest, study.keys.digest, sight, study.outputs), baseline, size)

    def ground(self, study: Study, baseline: Baseline, sinks: bool) -> Ground:
        """That of this study's summaries. `baseline` is one that is kept."""
        key = study.wanted.of_rows, sinks
        found = baseline.grounds.get(key)
        if found is None:
            if len(baseline.grounds) >= GROUNDS:
                baseline.grounds.clear()
            found = baseline.grounds[key] = ground_of(
                study.layout,
                uniform=baseline.uniform,
                visible_keys=baseline.visible_keys,
                metrics=study.wanted.of_rows,
                sinks=sinks,
            )
        return found

    def follows(self, study: Study, sight: Sight) -> bool:
        """Whether a request without a mask of its own is summarised from what its run gives and what is kept: no other
        run is needed, and no look at its numbers.
        """
        if study.pairs or study.wanted.tokens or study.wanted.profiles:
            return False
        return self.baseline(study, sight) is not None

    def lost(self, study: Study, sight: Sight, outputs: Mapping[str, np.ndarray]) -> int:
        """Weights of one request that are no numbers."""
        baseline = self.baseline(study, sight)
        visible_keys = None if baseline is None else baseline.visible_keys
        return lost(outputs[f"{APPENDED}row_sum"], visible_keys, study.layout.keys)

    def summaries(
        self, study: Study, sight: Sight, outputs: Mapping[str, np.ndarray], sinks: bool, count: int
    ) -> list[Summary] | None:
        """Those of so many requests, whose outputs lie one after the other in these; None where what they need is not
        kept any more.
        """
        baseline = self.baseline(study, sight)
        if baseline is None:
            return None
        rows = {name.removeprefix(APPENDED): array for name, array in outputs.items() if appended(name)}
        ground = self.ground(study, baseline, sinks)

        def summary(rows: Mapping[str, np.ndarray]) -> Summary:
            return summarise(
                rows,
                study.layout,
                uniform=baseline.uniform,
                visible_keys=baseline.visible_keys,
                metrics=study.wanted.of_rows,
                sinks=sinks,
                tolerance=TOLERANCE,
                ground=ground,
            )

        batch = len(rows["row_sum"]) // count
        items = [slice(start, start + batch) for start in range(0, batch * count, batch)]
        together = summary(rows)
        if count == 1:
            return [together]
        if together.explained:  # by what may be so in one of them only
            return [summary({name: array[item] for name, array in rows.items()}) for item in items]
        return [together.part(item) for item in items]
