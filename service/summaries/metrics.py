"""The metrics of one matrix: their names, and what each needs of the graph."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from service.summaries.definition import ONE_KEY, Definition
from service.summaries.layout import Layout
from service.summaries.profile import PROFILE
from service.summaries.rows import DIAGONALS, RowNumbers
from service.summaries.shapes import Selection

WINDOWS = (1, 4, 16, 64)


def _mass(
    name: str,
    over: Callable[[RowNumbers], Selection],
    lacking: str,
    *,
    output: str | None = None,
    by_place: bool = True,
    by_token: bool = False,
) -> Definition:
    """A mass of some keys beside that which uniform attention gives them."""
    found = output or name
    return Definition(
        name,
        (found,),
        lambda rows: rows[found],
        over,
        lambda rows: rows.baseline(found),
        lacking,
        (found,),
        by_place=by_place,
        by_token=by_token,
    )


def _pattern(name: str, lacking: str) -> Definition:
    """A mass over the rows that have any key of the pattern; its `uniform` is the chance level, mean |E_i| / n_i."""
    return _mass(name, lambda rows: rows.after(0, free=False) & (rows.baseline(name) > 0), lacking, by_token=True)


def _after(first: int, free: bool) -> tuple[Callable[[RowNumbers], Selection], str]:
    """Rows whose place is `first` or later."""
    kind = "counted row that sees two keys or more" if free else "counted row"
    return lambda rows: rows.after(first, free=free), f"no {kind} is at place {first}+"


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
        _mass("mean_distance", lambda rows: rows.free, ONE_KEY, output="distance", by_place=False),
        Definition(
            "half_mass_distance",
            ("half_mass_distance",),
            lambda rows: rows["half_mass_distance"],
            lambda rows: rows.after(0, free=True),
            None,
            ONE_KEY,
            by_place=True,
        ),
        *(_mass(f"local_mass_{w}", *_after(0, free=True)) for w in WINDOWS),
        _mass("previous_token", *_after(1, free=False)),
        _mass("self_token", *_after(1, free=False)),
        _mass("first_token", *_after(1, free=False)),
        _mass("sink_mass_1", *_after(1, free=True), output="first_token"),
        _mass("sink_mass_4", *_after(4, free=True)),
        _mass("alpha_0", *_after(0, free=True), output="first_token"),
        _pattern("duplicate_token", "no counted row sees an earlier key with its own token"),
        _pattern("induction", "no counted row sees a key that follows its own token"),
    )
}
KEYLESS = Definition(
    "keyless_mass",
    ("row_sum",),
    lambda rows: 1 - rows["row_sum"],
    lambda rows: rows.counted | rows.spent,
    None,
    "no row is counted",
)
RATIO = "mean_distance_ratio"
_COUNTED = "over the rows that count"
_FREE = f"{_COUNTED} and see two keys or more"
_LATER = f"{_COUNTED}, forced ones too, from place 1 on: not over the first token, causal or not"
ABOUT: Mapping[str, str] = {
    "entropy": f"-sum p ln p, {_COUNTED}",
    "entropy_norm": f"entropy over ln of the keys seen, {_FREE}",
    "effective_keys": f"e to the power of the entropy, {_COUNTED}",
    "max_weight": f"the largest weight, {_COUNTED}",
    "mean_distance": f"sum of weight times distance in positions, {_FREE}",
    RATIO: "no mean over rows: the mean of mean_distance over that of uniform attention, both of the same rows",
    "half_mass_distance": f"the least distance in tokens within which half the mass is, {_FREE}, and have a place",
    **{f"local_mass_{w}": f"the mass within {w} tokens, {_FREE}, and have a place" for w in WINDOWS},
    "previous_token": f"the weight of the token before, {_LATER}",
    "self_token": f"the weight of the query's own token, {_LATER}",
    "first_token": f"the weight of the first key, {_LATER}",
    "sink_mass_1": f"the weight of the first key, {_FREE}, from place 1 on: first_token without forced rows",
    "sink_mass_4": f"the mass of the first four keys, {_FREE}, from place 4 on",
    "alpha_0": f"the weight of the first key, {_FREE}, from place 0 on: with causal, row 0 is forced and left out",
    "duplicate_token": f"the mass of earlier keys with the query's own token, {_COUNTED} and see such a key",
    "induction": f"the mass of keys that follow the query's own token, {_COUNTED} and see such a key",
    KEYLESS.name: "what goes to learned sinks, over the rows that count or would but for them",
}
"""What each metric of `Metric`s is, and over which rows. A row's place is the index of the key at its position."""
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
    "sink_mass_4",
    "alpha_0",
)
"""What takes few passes over the matrix. `alpha_0` also says whether the first key is a sink."""
TOKENS = tuple(name for name, one in DEFINITIONS.items() if one.by_token)
_OTHERS = {
    RATIO: ("distance",),
    PROFILE: DIAGONALS,
    "row_sum_error": (),
    "mask_leak": ("leak",),
    "nonfinite_cells": ("nonfinite",),
}


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the graph must give of a matrix, and of uniform attention under the same mask."""

    rows: tuple[str, ...]
    uniform: tuple[str, ...]


def outputs_for(metrics: Iterable[str], layout: Layout, *, masked: bool, scored: bool = False) -> Outputs:
    """Each in one order, so that equal needs share a session.

    With the scores at hand (`scored`) entropy is had from them, in half the time. Raises ValueError for a name that is
    none of `NAMES`.
    """
    rows, uniform = {"row_sum"}, set[str]()
    for name in metrics:
        definition = DEFINITIONS.get(name)
        if definition is None:
            if name not in _OTHERS:
                raise ValueError(f"there is no metric {name!r}; there are {', '.join(NAMES)}")
            if (name != "mask_leak" or masked) and (name != PROFILE or layout.ordered):
                rows.update(_OTHERS[name])
            uniform.update(DEFINITIONS["mean_distance"].baseline if name == RATIO else ())
        elif definition.why_not(layout) is None:
            rows.update(definition.outputs)
            uniform.update(definition.baseline)
    if scored and "entropy" in rows:
        rows = rows - {"entropy"} | {"entropy_of_scores"}
    return Outputs(tuple(sorted(rows)), tuple(sorted(uniform)))


def in_one_run(outputs: Outputs, layout: Layout) -> Outputs:
    """Those that one run can give of these rows: a diagonal is one distance only where places go up by one."""
    if len(list(layout.runs())) <= 1:
        return outputs
    return replace(outputs, rows=tuple(name for name in outputs.rows if name not in DIAGONALS))


def unsummed(metrics: Iterable[str], layout: Layout, given: Container[str]) -> bool:
    """Whether these metrics need sums over diagonals that are not among the outputs `given`: they are had from the
    weights (`service.summaries.profile.scattered`).
    """
    return PROFILE in metrics and layout.ordered and DIAGONALS[0] not in given
