"""Summaries and comparisons in the words of OpenAPI."""

from __future__ import annotations

from typing import Any

from service.comparisons import metrics as of_pairs
from service.summaries import metrics as of_rows
from service.summaries.profile import PROFILE


def _heads(kind: str | list[str], description: str) -> dict[str, Any]:
    """[heads], or [batch, heads]."""
    one = {"type": kind}
    row = {"type": "array", "items": one}
    return {"type": "array", "items": {"anyOf": [one, row]}, "description": description}


_NUMBERS = {
    "type": "array",
    "items": {"anyOf": [{"type": ["number", "null"]}, {"type": "array", "items": {"type": ["number", "null"]}}]},
}
_METRIC = {"$ref": "#/components/schemas/Metric"}
_ROWS = {
    "rows_counted": _heads(
        "integer",
        "that sum to 1 (with learned sinks: to 1e-30 or more), whose weights are finite and not negative, and that are "
        "no padding",
    ),
    "rows_forced": _heads("integer", "of these, those that see one key only"),
    "rows_invalid": _heads(
        "integer",
        "that see no key, are not finite, have a negative weight or do not sum to 1 (with learned sinks: to 1e-30 or "
        "more)",
    ),
    "rows_padding": _heads("integer", "whose tokens a mask of [keys] or [batch, keys] hides"),
}
METRIC: dict[str, Any] = {
    "type": "object",
    "required": ["mean", "layer", "rows"],
    "description": "A number for each head, the mean over rows: [heads], or [batch, heads]. null where undefined.",
    "properties": {
        "mean": _NUMBERS,
        **{name: {**_NUMBERS, "description": "over the same rows"} for name in ("p10", "p50", "p90")},
        "uniform": {**_NUMBERS, "description": "of attention that gives every visible key the same"},
        "layer": {
            "anyOf": [{"type": ["number", "null"]}, {"type": "array", "items": {"type": ["number", "null"]}}],
            "description": "the mean of the heads that have a value",
        },
        "rows": _heads("integer", "how many the mean is over"),
        "reason": {"type": "string", "description": "why something is null"},
        "k": {"type": "integer", "description": "of topk_overlap"},
    },
}
SUMMARY: dict[str, Any] = {
    "type": "object",
    "required": list(_ROWS),
    "properties": {
        **_ROWS,
        "row_sum_error": {**_NUMBERS, "description": "how far from 1 a row sums, at the most"},
        "mask_leak": {**_NUMBERS, "description": "the largest weight of a key that is masked"},
        "nonfinite_cells": _heads("integer", "weights that are NaN or infinite"),
        "is_sink": {
            **_heads(
                ["boolean", "null"], "whether the first key gets more than 0.3 (alpha_0); null where no row counts"
            )
        },
        **{name: {**_METRIC, "description": about} for name, about in of_rows.ABOUT.items()},
        PROFILE: {
            "type": "object",
            "description": "mean weight by distance in tokens, query minus key: distances [distances], the rest "
            "[heads, distances], or [batch, heads, distances]",
            "required": ["distances", "weights", "uniform", "pairs", "rows"],
        },
        "reasons": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
COMPARISON: dict[str, Any] = {
    "type": "object",
    "required": [*_ROWS, "floor"],
    "properties": {
        **_ROWS,
        **dict.fromkeys(of_pairs.NAMES, _METRIC),
        "identical": _heads(
            ["boolean", "null"], "whether the matrices differ by less than `floor`; null where no row counts"
        ),
        "floor": {
            "type": "object",
            "additionalProperties": {"type": "number"},
            "description": "what arithmetic alone makes of equal matrices",
        },
    },
}
