"""The analysis graphs as scoring runs them, and what of their inputs recurs from request to request."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from service.analysis.wanted import COMPARISON, SUMMARY, Wanted
from service.cache import Cache
from service.catalogue import ANALYSIS
from service.comparisons import metrics as of_pairs
from service.engine.appending import APPENDED
from service.engine.job import Graph
from service.masks import Sight
from service.positions import Positions
from service.summaries.graph import TOLERANCES, open_graph, row_feeds
from service.summaries.layout import Layout
from service.summaries.metrics import Outputs, in_one_run, outputs_for

EXPORTED = Path(__file__).parents[2] / "exported"
TOLERANCE = TOLERANCES["float32"]
"""Of what is computed here; float16 is made of it afterwards."""


def analysis_folder(models: Iterable[Path]) -> Path:
    """Where the graphs are: in the first folder of models that has them, else in the one beside the service."""
    folders = (folder / ANALYSIS for folder in (*models, EXPORTED))
    return next((folder for folder in folders if (folder / "rows.onnx").is_file()), EXPORTED / ANALYSIS)


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

    def feeds(self, study: Study) -> tuple[str, Mapping[str, np.ndarray]]:
        """What the graph of one matrix is fed where neither tokens nor padding matter, and a name for it; read-only."""
        key = study.queries.digest, study.keys.digest, study.outputs
        found = self._feeds.get(key)
        if found is None:
            found = row_feeds(study.layout, study.outputs.rows, TOLERANCE)
            for array in found.values():
                array.flags.writeable = False
            self._feeds.put(key, found, sum(array.nbytes for array in found.values()))
        return "|".join(key[:2]), found

    def name(self) -> str:
        """One that no other feeds have."""
        return f"#{next(self._numbers)}"

    def baseline(self, study: Study, sight: Sight) -> Baseline | None:
        """That of requests without a mask of their own, where it was computed before."""
        return self._baselines.get((study.queries.digest, study.keys.digest, sight, study.outputs))

    def keep(self, study: Study, sight: Sight, baseline: Baseline) -> None:
        arrays = [*baseline.uniform.values(), *([] if baseline.visible_keys is None else [baseline.visible_keys])]
        size = sum(array.nbytes for array in arrays) + 1024
        self._baselines.put((study.queries.digest, study.keys.digest, sight, study.outputs), baseline, size)
