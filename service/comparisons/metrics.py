"""The metrics of two matrices: their names, and what each needs of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Bool

from service.summaries.definition import ONE_KEY, Definition
from service.summaries.layout import Layout
from service.summaries.rows import RowNumbers
from service.summaries.shapes import Rows

LEAST_DEVIATION = 1e-6
"""Centred scores that vary less than this do not vary."""
PROFILE_TV = "profile_tv"
TOPK = "topk_overlap"
TOP = 8
"""Its k where none is named."""
FROBENIUS = "frobenius_rel"


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
        _free(TOPK),
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
DEFAULT = ("jsd", "tv", "w1", "argmax_agree", "logit_rmse")
"""Without kl, which is infinite as soon as one weight underflows; `topk_overlap`, which takes longer than all of these
together; `frobenius_rel`, which is not symmetric; and `profile_tv`, which takes two profiles.
"""


def outputs_for(metrics: Iterable[str], layout: Layout, *, scored: bool) -> tuple[str, ...]:
    """The outputs that the graph must give for these metrics, in one order, so that equal needs share a session.

    Without scores (`scored`) metrics of scores are left out. Raises ValueError for a name that is none of `NAMES`.
    """
    needed = {"counted"}
    for name in metrics:
        if name in DEFINITIONS:
            if (scored or name not in OF_SCORES) and (layout.ordered or not DEFINITIONS[name].by_place):
                needed.update(DEFINITIONS[name].outputs)
        elif name == FROBENIUS:
            needed |= {"squares_a", "squares_difference"}
        elif name != PROFILE_TV:
            raise ValueError(f"there is no metric {name!r}; there are {', '.join(NAMES)}")
    return tuple(sorted(needed))
