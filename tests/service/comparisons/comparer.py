"""From pairs of matrices to comparisons, in blocks of rows, with the parts that the service makes them of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from service.comparisons.comparison import FLOORS, Comparison, compare
from service.comparisons.metrics import DEFAULT, outputs_for
from service.engine.session import Sessions
from service.summaries.graph import BLOCK_CELLS, TOLERANCES, open_graph, spans
from service.summaries.layout import Layout
from service.summaries.profile import Profile
from service.summaries.rows import concatenate
from service.summaries.shapes import Matrix, Visible
from tests.service.summaries.summariser import single


class Comparer:
    """Makes comparisons with the exported graph, on the device of `sessions`."""

    def __init__(self, sessions: Sessions, folder: Path) -> None:
        """`folder` holds pairs.onnx."""
        self.sessions = sessions
        self.graph = open_graph(folder / "pairs.onnx")

    def compare(
        self,
        a: Matrix,
        b: Matrix,
        layout: Layout,
        *,
        visible: Visible | None = None,
        scores: tuple[Matrix, Matrix] | None = None,
        metrics: Iterable[str] = DEFAULT,
        top: int = 8,
        padding: Bool[np.ndarray, "#batch queries"] | None = None,
        profiles: tuple[Profile, Profile] | None = None,
        sinks: tuple[bool, bool] = (False, False),
        tolerance: float | None = None,
        block_cells: int = BLOCK_CELLS,
    ) -> Comparison:
        """The comparison of weights `b` with `a`, the reference; both are fed in blocks of rows where they are large.

        `visible` is None where nothing is masked. `scores` are both matrices' before the mask. `top` is the k of
        `topk_overlap`. Raises ValueError where the shapes differ.
        """
        if a.shape != b.shape:
            raise ValueError(f"a matrix of shape {list(b.shape)} cannot be compared with one of {list(a.shape)}")
        asked = tuple(dict.fromkeys(metrics))
        precision = min((a.dtype.name, b.dtype.name), key=list(FLOORS).index)
        allowed = TOLERANCES[precision] if tolerance is None else tolerance
        blocks = []
        for start, stop in spans(a.shape, block_cells):
            part = slice(start, stop)
            blocks.append(
                self.rows(
                    a[:, :, part],
                    b[:, :, part],
                    layout,
                    visible=None if visible is None else visible[:, :, part],
                    scores=None if scores is None else (scores[0][:, :, part], scores[1][:, :, part]),
                    metrics=asked,
                    top=top,
                    sinks=sinks,
                    tolerance=allowed,
                )
            )
        return compare(
            concatenate(blocks),
            layout,
            visible_keys=None if visible is None else np.count_nonzero(visible, axis=-1),
            metrics=asked,
            padding=padding,
            profiles=profiles,
            precision=precision,
            top=top,
        )

    def rows(
        self,
        a: Matrix,
        b: Matrix,
        layout: Layout,
        *,
        visible: Visible | None = None,
        scores: tuple[Matrix, Matrix] | None = None,
        metrics: Iterable[str] = DEFAULT,
        top: int = 8,
        sinks: tuple[bool, bool] = (False, False),
        tolerance: float = TOLERANCES["float32"],
    ) -> dict[str, np.ndarray]:
        """The numbers of some rows, all arrays holding only these: what `concatenate` and then `compare` take."""
        outputs = outputs_for(metrics, layout, scored=scores is not None)
        feeds = {
            "weights_a": single(a),
            "weights_b": single(b),
            "tolerance": np.array(tolerance, np.float64),
            "top": np.zeros(min(top, a.shape[-1]), np.float32),
        }
        if visible is not None:
            feeds["visible"] = np.ascontiguousarray(visible)
        if scores is not None:
            feeds |= {"scores_a": single(scores[0]), "scores_b": single(scores[1])}
        switches = tuple(name for name, on in zip(("sinks_a", "sinks_b"), sinks, strict=True) if on)
        return self.sessions.run(self.graph, outputs, visible is not None, feeds, switches)
