"""From matrices to summaries, in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from service.summaries.graph import BLOCK_CELLS, TOLERANCES, Runs, open_graph, single, spans
from service.summaries.layout import Layout
from service.summaries.metrics import DEFAULT, outputs_for
from service.summaries.profile import PROFILE, placed
from service.summaries.rows import concatenate
from service.summaries.shapes import Matrix, Visible
from service.summaries.summary import Summary, summarise


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
            blocks.append({name: placed(name, array, layout, first, last) for name, array in numbers.items()})
        return concatenate(blocks)
