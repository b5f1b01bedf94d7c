"""How far apart two attention matrices are: the analysis graph's numbers for each row, finished into a few for each
head.

Both are over the same queries, keys and mask. A row is counted where it is counted in both (see `service.summary`);
forced rows, which two matrices cannot disagree about, stay out of every number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from service.summary import (
    BLOCK_CELLS,
    ONE_KEY,
    TOLERANCES,
    Definition,
    Heads,
    Layout,
    Matrix,
    Metric,
    Profile,
    RowNumbers,
    Rows,
    Runs,
    Visible,
    concatenate,
    known_only,
    measure,
    open_graph,
    single,
    spans,
)

FLOORS: Mapping[str, Mapping[str, float]] = {
    "float16": {"jsd": 1e-4, "tv": 2e-3},
    "float32": {"jsd": 1e-6, "tv": 1e-4},
    "float64": {"jsd": 1e-6, "tv": 1e-4},
}
"""By the coarser precision of the two: what arithmetic alone makes of equal matrices. For float16, tv is as far as its
rows may be from summing to 1."""
LEAST_DEVIATION = 1e-6
"""Centred scores that vary less than this do not vary."""
PROFILE_TV = "profile_tv"
FROBENIUS = "frobenius_rel"


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two matrices, the first the reference: `frobenius_rel` and `kl` are not symmetric.

    `identical` heads differ by less than `floor`, which arithmetic alone may do.
    """

    rows_counted: Int64[np.ndarray, "batch heads"]
    rows_forced: Int64[np.ndarray, "batch heads"]
    rows_invalid: Int64[np.ndarray, "batch heads"]
    metrics: Mapping[str, Metric]
    floor: Mapping[str, float]
    identical: Bool[np.ndarray, "batch heads"] | None = None
    """None where jsd or tv was not asked for."""

    def json(self) -> dict[str, Any]:
        """Plain dictionaries and lists; no NaN."""
        identical = {}
        if self.identical is not None:
            identical["identical"] = known_only(self.identical, np.isfinite(self.metrics["jsd"].mean))
        return {
            "rows_counted": self.rows_counted.tolist(),
            "rows_forced": self.rows_forced.tolist(),
            "rows_invalid": self.rows_invalid.tolist(),
            **{name: metric.json() for name, metric in self.metrics.items()},
            **identical,
            "floor": dict(self.floor),
        }


def _free(name: str, value: str | None = None, *, by_place: bool = False) -> Definition:
    """A metric that is one of the graph's outputs, over the rows that are counted and not forced."""
    output = value or name
    return Definition(
        name, (output,), lambda rows: rows[output], lambda rows: rows.free, None, ONE_KEY, by_place=by_place
    )


def _bounded(name: str) -> Definition:
    return Definition(name, (name,), lambda rows: rows[name].clip(0, 1), lambda rows: rows.free, None, ONE_KEY)


def _varying(rows: RowNumbers) -> Bool[np.ndarray, "batch heads queries"]:
    least = LEAST_DEVIATION**2 * rows.visible_keys
    varying: Bool[np.ndarray, "batch heads queries"] = (
        rows.free & (rows["logit_squares_a"] > least) & (rows["logit_squares_b"] > least)
    )
    return varying


def _correlation(rows: RowNumbers) -> Rows:
    product = np.sqrt(rows["logit_squares_a"]) * np.sqrt(rows["logit_squares_b"])
    correlation: Rows = (rows["logit_products"] / product).clip(-1, 1)
    return correlation


DEFINITIONS: Mapping[str, Definition] = {
    one.name: one
    for one in (
        _bounded("jsd"),
        _bounded("tv"),
        _free("w1", by_place=True),
        _free("argmax_agree"),
        _free("topk_overlap"),
        _free("kl"),
        Definition(
            "logit_rmse",
            ("logit_squares_difference",),
            lambda rows: np.sqrt(rows["logit_squares_difference"] / rows.visible_keys),
            lambda rows: rows.free & np.isfinite(rows["logit_squares_difference"]),
            None,
            "no row that is counted in both sees two keys or more with finite scores",
        ),
        Definition(
            "logit_r",
            ("logit_products", "logit_squares_a", "logit_squares_b"),
            _correlation,
            lambda rows: _varying(rows) & np.isfinite(rows["logit_products"]),
            None,
            "in no row that is counted in both do the scores of both vary",
        ),
    )
}
NAMES = (*DEFINITIONS, FROBENIUS, PROFILE_TV)
OF_SCORES = ("logit_rmse", "logit_r")
DEFAULT = ("jsd", "tv", "w1", "argmax_agree", *OF_SCORES, FROBENIUS)
"""Without kl, which is infinite as soon as one weight underflows; `topk_overlap`, which takes as long as jsd;
and `profile_tv`, which takes two profiles.
"""


def outputs_for(metrics: Iterable[str], layout: Layout, *, masked: bool, scored: bool) -> tuple[str, ...]:
    """The outputs that the graph must give for these metrics, in one order, so that equal needs share a session.

    Without scores (`scored`) metrics of scores are left out. Raises ValueError for a name that is none of `NAMES`.
    """
    needed = {"counted"} | ({"visible_keys"} if masked else set())
    for name in metrics:
        if name in DEFINITIONS:
            if (scored or name not in OF_SCORES) and (layout.ordered or not DEFINITIONS[name].by_place):
                needed.update(DEFINITIONS[name].outputs)
        elif name == FROBENIUS:
            needed |= {"squares_a", "squares_difference"}
        elif name != PROFILE_TV:
            raise ValueError(f"there is no metric {name!r}; there are {', '.join(NAMES)}")
    return tuple(sorted(needed))


def compare(
    rows: Mapping[str, np.ndarray],
    layout: Layout,
    *,
    metrics: Iterable[str] = DEFAULT,
    padding: Bool[np.ndarray, "#batch queries"] | None = None,
    profiles: tuple[Profile, Profile] | None = None,
    precision: str = "float32",
) -> Comparison:
    """The comparison of two matrices from the graph's outputs (`outputs_for`) over all rows; blocks of rows are put
    together by `service.summary.concatenate`.

    Metrics of scores are there if the graph was given scores, `profile_tv` if `profiles` are given: those of the two
    summaries, each over its own counted rows. `precision` is the coarser one of the two matrices. In float64.
    """
    asked = tuple(dict.fromkeys(metrics))
    of = RowNumbers.of(rows, layout, padding)
    floor = FLOORS[precision]
    scored = "logit_products" in rows or "logit_squares_difference" in rows
    chosen = [DEFINITIONS[n] for n in asked if n in DEFINITIONS and (scored or n not in OF_SCORES)]
    with np.errstate(all="ignore"):
        found = measure(chosen, of, layout)
        if FROBENIUS in asked:
            found[FROBENIUS] = _frobenius(of)
        if profiles is not None and PROFILE_TV in asked:
            found[PROFILE_TV] = _profile_tv(*profiles, of)
    identical = None
    if {"jsd", "tv"} <= found.keys():
        identical = np.logical_and(*(found[name].mean < floor[name] for name in ("jsd", "tv")))
    return Comparison(
        rows_counted=of.counted.sum(-1),
        rows_forced=of.forced.sum(-1),
        rows_invalid=(of.real & ~of.counted).sum(-1),
        metrics={name: found[name] for name in asked if name in found},
        floor=floor,
        identical=identical,
    )


class Comparer:
    """Makes comparisons with the exported graph, on the device of `sessions`."""

    def __init__(self, sessions: Runs, folder: Path) -> None:
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
            concatenate(blocks), layout, metrics=asked, padding=padding, profiles=profiles, precision=precision
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
        outputs = outputs_for(metrics, layout, masked=visible is not None, scored=scores is not None)
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


def _frobenius(of: RowNumbers) -> Metric:
    """norm(a - b) / norm(a) over all rows at once."""
    count = of.free.sum(-1)
    difference, reference = (np.where(of.free, of[name], 0).sum(-1) for name in ("squares_difference", "squares_a"))
    relative: Heads = np.sqrt(np.where(count > 0, difference / reference, np.nan))
    return Metric(relative, count, reason=None if count.all() else of.why_none or ONE_KEY)


def _profile_tv(a: Profile, b: Profile, of: RowNumbers) -> Metric:
    distance = np.abs(a.weights - b.weights).sum(-1) / 2
    rows = np.minimum(a.rows, b.rows)
    return Metric(distance, rows, reason=None if rows.all() else of.why_none or ONE_KEY)
