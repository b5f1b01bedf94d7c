"""From matrices to summaries, in blocks of rows, with the parts that the service makes them of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int64

from service.engine.session import Sessions
from service.summaries.graph import BLOCK_CELLS, TOLERANCES, open_graph, row_feeds, spans, uniform
from service.summaries.layout import Layout
from service.summaries.metrics import DEFAULT, outputs_for
from service.summaries.profile import placed
from service.summaries.rows import DIAGONALS, concatenate
from service.summaries.shapes import Matrix, Visible
from service.summaries.summary import Summary, summarise


def single(matrix: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """As the graphs take it: float32, contiguous."""
    return np.ascontiguousarray(matrix, dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The numbers of some rows: of the matrix, and of uniform attention under its mask."""

    rows: dict[str, np.ndarray]
    uniform: dict[str, np.ndarray]
    visible_keys: Int64[np.ndarray, "#batch #heads queries"] | None


class Summariser:
    """Makes summaries with the exported graph, on the device of `sessions`."""

    def __init__(self, sessions: Sessions, folder: Path) -> None:
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

        `visible` is None where nothing is masked. `scores` (before the mask) make the entropy cheaper. `padding` is
        true for queries that are none. `tolerance` is that of the weights' precision unless given.
        """
        asked = tuple(dict.fromkeys(metrics))
        allowed = TOLERANCES[weights.dtype.name] if tolerance is None else tolerance
        blocks = []
        for start, stop in spans(weights.shape, block_cells):
            part = slice(start, stop)
            blocks.append(
                self.block(
                    weights[:, :, part],
                    layout.rows(part),
                    visible=None if visible is None else visible[:, :, part],
                    scores=None if scores is None else scores[:, :, part],
                    metrics=asked,
                    padding=None if padding is None else padding[:, part],
                    sinks=sinks,
                    tolerance=allowed,
                )
            )
        return finish(blocks, layout, metrics=asked, padding=padding, sinks=sinks, tolerance=allowed)

    def block(
        self,
        weights: Matrix,
        layout: Layout,
        *,
        visible: Visible | None = None,
        scores: Matrix | None = None,
        metrics: Iterable[str] = DEFAULT,
        padding: Bool[np.ndarray, "#batch queries"] | None = None,
        sinks: bool = False,
        tolerance: float = TOLERANCES["float32"],
    ) -> Block:
        """The numbers of some rows, of which all arguments are: what `finish` takes, so that a matrix need never be
        whole.
        """
        needed = outputs_for(metrics, layout, masked=visible is not None, scored=scores is not None)
        parts = list(layout.runs()) if DIAGONALS[0] in needed.rows else [slice(0, layout.queries)]
        numbers = []
        for part in parts:
            one = layout.rows(part)
            feeds = row_feeds(one, needed.rows, tolerance, None if padding is None else padding[:, part])
            feeds["weights"] = single(weights[:, :, part])
            if visible is not None:
                feeds["visible"] = np.ascontiguousarray(visible[:, :, part])
            if scores is not None:
                feeds["scores"] = single(scores[:, :, part])
            switches = ("sinks",) if sinks else ()
            found = self.sessions.run(self.graph, needed.rows, visible is not None, feeds, switches)
            numbers.append({name: placed(name, array, one) for name, array in found.items()})
        even, count = uniform(visible, layout.queries, layout.keys)
        baseline = {}
        if needed.uniform:
            feeds = {**row_feeds(layout, needed.uniform, tolerance), "weights": even}
            baseline = self.sessions.run(self.graph, needed.uniform, False, feeds)
        return Block(concatenate(numbers), baseline, None if visible is None else count)


def finish(
    blocks: list[Block],
    layout: Layout,
    *,
    metrics: Iterable[str] = DEFAULT,
    padding: Bool[np.ndarray, "#batch queries"] | None = None,
    sinks: bool = False,
    tolerance: float = TOLERANCES["float32"],
) -> Summary:
    """The summary of a matrix from all its rows, in order; `layout` is that of the whole."""
    seen = [block.visible_keys for block in blocks if block.visible_keys is not None]
    return summarise(
        concatenate([block.rows for block in blocks]),
        layout,
        uniform=concatenate([block.uniform for block in blocks]),
        visible_keys=np.concatenate(seen, axis=-1) if seen else None,
        metrics=metrics,
        padding=padding,
        sinks=sinks,
        tolerance=tolerance,
    )
