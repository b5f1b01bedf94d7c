"""The metrics of one matrix: their names, and what each needs of the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from service.summaries.definition import ONE_KEY, Definition, why_not
from service.summaries.layout import Layout
from service.summaries.profile import PROFILE
from service.summaries.rows import DIAGONALS, RowNumbers
from service.summaries.shapes import Selection

WINDOWS = (1, 4, 16, 64)


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
        elif why_not(definition, layout) is None:
            needed.update(definition.outputs)
    if scored and "entropy" in needed:
        needed = needed - {"entropy"} | {"entropy_of_scores"}
    return tuple(sorted(needed))
