"""What `GET /encodings`, `/encodings/{id}`, `/encodings/{id}/positions`, `/models`, `/presets` and the health checks
answer, as JSON schemas."""

from __future__ import annotations

from service.routes.schemas import (
    ANY,
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    array,
    mapping,
    one_of,
    or_null,
    record,
)

_TERM = record({"name": TEXT, "description": TEXT})
_PAPER = record({"title": TEXT, "authors": TEXT, "year": or_null(WHOLE), "arxiv": or_null(TEXT)})
_WINDOW = record({"before": NUMBER, "after": NUMBER})
_SIZE = record(
    {"default": or_null(WHOLE), "minimum": WHOLE, "maximum": or_null(WHOLE), "multiple": WHOLE, "offset": WHOLE}
)
_INITIAL = record(
    {
        "distribution": one_of("normal", "uniform", "xavier_uniform", "zeros", "ones"),
        **dict.fromkeys(("mean", "deviation", "low", "high"), NUMBER),
        "seed": WHOLE,
    }
)
_PARAMETER = record(
    {
        "name": TEXT,
        "kind": one_of("number", "integer", "flag", "choice", "numbers", "array"),
        "description": TEXT,
        "default": {"anyOf": [NUMBER, FLAG, TEXT, array(NUMBER), {"type": "null"}]},
        "minimum": or_null(NUMBER),
        "maximum": or_null(NUMBER),
        "choices": array(TEXT),
        "shape": array({"anyOf": [WHOLE, TEXT]}),
        "sizes": mapping(_SIZE),
        "initial": or_null(_INITIAL),
    }
)
_CAUSAL = one_of("either", "required", description="whether it is defined for causal attention only")
_PLACES = record(
    {"integer": FLAG, "minimum": or_null(NUMBER), "rows_of": or_null(TEXT)},
    {"maximum": or_null(NUMBER)},
    description="which positions it takes; `rows_of` is the array that has a row for each",
)
_LINE = {
    "id": TEXT,
    "title": TEXT,
    "aliases": array(TEXT),
    "summary": TEXT,
    "causal": _CAUSAL,
    "even_head_dim": FLAG,
    "even_width": FLAG,
}

ENCODINGS = record(
    {"encodings": array(record({**_LINE, "parameters": array(TEXT), "terms": array(TEXT), "models": array(TEXT)}))}
)
ENCODING = record(
    {
        **_LINE,
        "model": TEXT,
        "models": array(TEXT),
        "formula": record({"plain": TEXT, "latex": TEXT}),
        "paper": or_null(_PAPER),
        "conventions": mapping(TEXT),
        "invariants": mapping(FLAG),
        "terms": array(_TERM),
        "parameters": array(_PARAMETER),
        "positions": _PLACES,
        "default_causal": FLAG,
        "heads": or_null(WHOLE),
        "head_dim": or_null(WHOLE),
        "width": or_null(WHOLE),
        "weights": or_null(TEXT),
        "outputs": array(TEXT),
        "opset": WHOLE,
        "parity": mapping(NUMBER),
        "switches": array(TEXT),
        "seed_article": or_null(TEXT),
    },
    {
        "orders": array(
            record({"less": TEXT, "more": TEXT, "strict": FLAG}),
            description="pairs of parameters: the one must be less than the other, or not strictly, at most as much",
        ),
        "fixed": {**mapping(array(WHOLE)), "description": "shapes of arrays that are part of the model"},
        "window": _WINDOW,
        "checkpoint": mapping(ANY),
    },
)
MODELS = record(
    {
        "models": array(
            record(
                {
                    "name": TEXT,
                    "encodings": array(TEXT),
                    "default_encoding": TEXT,
                    "default_causal": FLAG,
                    "heads": or_null(WHOLE),
                    "head_dim": or_null(WHOLE),
                    "width": or_null(WHOLE),
                    "weights": or_null(TEXT),
                    "takes_text": FLAG,
                    "text": or_null(mapping(ANY)),
                    "window": or_null(_WINDOW),
                    "checkpoint": or_null(mapping(ANY)),
                }
            )
        )
    }
)

_VALUES: Schema = {"description": "a number, or nested lists of them; those that are not finite are null"}
_VIEW = record({"axes": array(TEXT), "shape": array(COUNT), "description": TEXT, "values": _VALUES})
POSITIONS = record(
    {
        "model": TEXT,
        "encoding": TEXT,
        "title": TEXT,
        "shape": record(dict.fromkeys(("heads", "queries", "keys", "head_dim", "width"), COUNT)),
        "causal": FLAG,
        "offset": NUMBER,
        "parameters": mapping(ANY),
        "conventions": mapping(TEXT),
        "terms": array(TEXT),
        "views": mapping(_VIEW),
        "tables": mapping(_VIEW),
        "nonfinite_cells": COUNT,
        "timings": mapping(NUMBER),
    }
)

_ARGUMENT = record({"description": TEXT, "default": WHOLE, "minimum": WHOLE, "maximum": WHOLE})
PRESETS = record(
    {
        "presets": array(record({"name": TEXT, "title": TEXT, "description": TEXT, "arguments": mapping(_ARGUMENT)})),
        "most_numbers": COUNT,
    }
)

LIVE = record({"status": one_of("live")})
READY = record({"status": one_of("ready"), "device": TEXT, "processes": record({"ready": COUNT, "all": COUNT})})
