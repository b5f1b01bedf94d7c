"""`POST /attention` in the words of OpenAPI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from service.analysis.wanted import NAMES
from service.catalogue import Catalogue
from service.errors import DeadlineExceeded, Draining, NotAcceptable, Overloaded
from service.instance import ALL, LABEL
from service.records import DEFAULT_RETURN, RETURNABLE
from service.routes import problems, samples, summaries
from service.routes.query import DTYPES, FORMS, ZOOMS
from service.settings import Settings
from service.wire import base64, media

DESCRIPTION = """
Attention of every query to every key, under one encoding or several.

**Body.** JSON, or arrays under the same names: `application/x-npz`, `application/vnd.safetensors`, or one array as
`application/x-npy`. In binary formats a parameter of an encoding is an array named `ENCODING.NAME`, such as `t5.bias`.
Files to try: [example.npy](docs/example.npy), [example.npz](docs/example.npz),
[example.safetensors](docs/example.safetensors). In JSON an array is nested lists, or its bytes:
`{"base64": "...", "dtype": "float32", "shape": [11, 384]}`, a tenth of the time to read.

**One encoding under several parameters.** Wherever an encoding is named it may carry a label after `@`, and what bears
another name has its own parameters: `encoding=rope&compare=rope@long&rope@long.theta=500000`; an array in the body is
`t5@mine.bias`. The name is also that of the result's arrays, `rope@long/weights`.

**A part of it.** `rows` and `head` pick queries and heads; the other queries are not computed, and positions, masks and
tables stay those of the whole input. `top_k` leaves of each row the keys that weigh most: `rope/top_k/indices`,
`rope/top_k/weights`, and where they are asked for `rope/top_k/scores` and `rope/top_k/terms/<term>`.

**Answer.** By `Accept`: JSON, npz, safetensors or a picture. The arrays are `rope/weights`, `rope/scores`,
`rope/terms/<term>`, `rope/output`; what JSON says beside the numbers is in the array `metadata` (npz: UTF-8 JSON as
uint8) or the header's `metadata` (safetensors). Weights and scores are [heads, queries, keys], for a batch
[batch, heads, queries, keys]. Scores are those before the mask and the softmax. In JSON a number that is not finite is
`null`; `nonfinite_cells` counts them. With `arrays=base64` JSON has arrays as their bytes, like a body may have them.

**Summaries and comparisons.** A summary says of each head what its matrix is like (how many keys a row attends to, how
far away they are, how much goes to the token before, to itself, to the first), a comparison how far the others'
matrices are from the reference's. Both are of the rows and heads that are returned, and of all keys, also with `top_k`.
Each number is a mean over the rows that count, with percentiles, and what uniform attention under the same mask would
have as `uniform`; what is undefined is `null` and says why. `metrics` names others than the default ones, or `all`. In
binary formats they are in the metadata, but for distance profiles: `rope/summary/distance_profile/weights`.

`image/png` shows the weights, a panel for each encoding and head on one scale; the scores where `return` names no
weights, or else the terms.
"""

_BASE64 = {"$ref": "#/components/schemas/Base64Array"}
_LIST = {"type": "array", "items": {"type": "number"}}
_MATRIX = {"type": "array", "items": _LIST}
_STACK = {"type": "array", "items": _MATRIX}
_NUMBERS = {"anyOf": [_LIST, _BASE64]}
_ARRAY = {"anyOf": [{"type": "array", "items": {}}, _BASE64]}
_EMBEDDINGS = {"anyOf": [_MATRIX, _STACK, _BASE64]}

SCHEMAS: dict[str, Any] = {
    "AttentionRequest": {
        "type": "object",
        "additionalProperties": False,
        "description": "`embeddings`, or `queries` and `keys`, or `text`; everything else may be left out.",
        "properties": {
            "embeddings": {**_EMBEDDINGS, "description": "[tokens, width] or [batch, tokens, width]"},
            "queries": {**_EMBEDDINGS, "description": "[queries, width] or [batch, queries, width]"},
            "keys": {**_EMBEDDINGS, "description": "[keys, width] or [batch, keys, width]"},
            "positions": {**_NUMBERS, "description": "one for each token; 0, 1, 2, ... by default"},
            "query_positions": {**_NUMBERS, "description": "one for each query"},
            "key_positions": {**_NUMBERS, "description": "one for each key"},
            "mask": {
                **_ARRAY,
                "description": "true or 1 where a key may be seen: [keys], [queries, keys], [batch, keys], "
                "[batch, queries, keys] or [batch, heads, queries, keys], the first that fits: with a batch of n and n "
                "queries, [n, n] is [batch, keys], and [1, queries, keys] says the other",
            },
            "tokens": {"type": "array", "items": {"type": "string"}, "description": "names, returned as they came"},
            "text": {
                "type": "string",
                "description": "instead of embeddings, for models with a tokenizer; the answer has tokens",
            },
            "parameters": {
                "type": "object",
                "additionalProperties": {"anyOf": [{"type": "number"}, *_ARRAY["anyOf"]]},
                "description": "arrays by ENCODING.NAME, such as t5.bias, or t5@mine.bias of t5@mine",
            },
        },
    },
    "Base64Array": {
        "type": "object",
        "additionalProperties": False,
        "required": list(base64.MEMBERS),
        "description": "an array in place of nested lists: its bytes, little-endian and in C order. In Python: "
        '`{"base64": base64.b64encode(x).decode(), "dtype": x.dtype.name, "shape": x.shape}` and back: '
        '`numpy.frombuffer(base64.b64decode(a["base64"]), a["dtype"]).reshape(a["shape"])`',
        "properties": {
            "base64": {"type": "string", "contentEncoding": "base64"},
            "dtype": {"type": "string", "enum": list(base64.DTYPES)},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        },
    },
    "AttentionResponse": {
        "type": "object",
        "required": ["model", "shape", "causal", "results", "timings"],
        "properties": {
            "model": {"type": "string"},
            "shape": {
                "type": "object",
                "additionalProperties": {
                    "anyOf": [
                        {"type": "integer"},
                        {"type": "array", "items": {"type": "integer"}},
                        {"type": "string"},
                    ]
                },
                "description": "of what is returned; `rows` and `head` list which these are where they are not all, "
                "`mask` says how the mask was read, as `[batch, keys]`",
            },
            "causal": {"type": "boolean"},
            "tokens": {"type": "array", "items": {"type": "string"}},
            "skipped": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "encodings that compare=all left out, and why",
            },
            "results": {
                "type": "array",
                "description": "the first is the reference of a comparison",
                "items": {
                    "type": "object",
                    "required": ["encoding", "label", "name", "parameters", "conventions", "nonfinite_cells"],
                    "properties": {
                        "encoding": {"type": "string", "description": "the id"},
                        "label": {"type": ["string", "null"], "description": "what the request put after '@'"},
                        "name": {"type": "string", "description": "the id and the label, `rope@long`; or the id"},
                        "parameters": {"type": "object"},
                        "conventions": {"type": "object", "additionalProperties": {"type": "string"}},
                        "weights": {**_ARRAY, "description": "after the softmax; 0 where masked"},
                        "scores": {**_ARRAY, "description": "before the mask and the softmax"},
                        "terms": {
                            "type": "object",
                            "additionalProperties": _ARRAY,
                            "description": "additive parts of the scores",
                        },
                        "output": {**_ARRAY, "description": "[queries, heads, head_dim]"},
                        "top_k": {
                            "type": "object",
                            "description": "in place of weights, scores and terms: those of the keys that weigh most, "
                            "[heads, queries, top_k], and `indices`, which these are. A row that sees fewer keys has "
                            "-1 there, and 0 for every number",
                            "required": ["indices", "weights"],
                            "properties": {
                                **dict.fromkeys(("indices", "weights", "scores"), _ARRAY),
                                "terms": {"type": "object", "additionalProperties": _ARRAY},
                            },
                        },
                        "nonfinite_cells": {"type": "integer"},
                        "summary": {"$ref": "#/components/schemas/Summary"},
                    },
                },
            },
            "comparison": {
                "type": "object",
                "required": ["reference", "against"],
                "properties": {
                    "reference": {"type": "string", "description": "the name of the first result"},
                    "against": {
                        "type": "object",
                        "description": "by the names of the others",
                        "additionalProperties": {"$ref": "#/components/schemas/Comparison"},
                    },
                },
            },
            "timings": {"type": "object", "additionalProperties": {"type": "number"}, "description": "milliseconds"},
        },
    },
    "Summary": summaries.SUMMARY,
    "Comparison": summaries.COMPARISON,
    "Metric": summaries.METRIC,
    "Problem": {
        "type": "object",
        "required": ["type", "title", "status", "detail", "request_id"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string", "description": "what came, what is allowed, how to get there"},
            "pointer": {
                "type": "string",
                "description": "the part at fault: a JSON pointer, query:<name> or header:<name>",
            },
            "request_id": {"type": "string"},
        },
        "additionalProperties": True,
    },
}

FAILURES = (*problems.COMMON, NotAcceptable, Overloaded, Draining, DeadlineExceeded)


def attention(catalogue: Catalogue, settings: Settings) -> dict[str, Any]:
    """The operation object."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {
        "tags": ["attention"],
        "summary": "Who attends to whom",
        "description": DESCRIPTION + _limits(settings),
        "operationId": "attention",
        "parameters": parameters(catalogue),
        "requestBody": {
            "required": True,
            "content": {
                media.JSON: {
                    "schema": {"$ref": "#/components/schemas/AttentionRequest"},
                    "examples": samples.requests(),
                },
                **{kind: binary for kind in media.READ if kind != media.JSON},
            },
        },
        "responses": {
            "200": {
                "description": "The attention matrices.",
                "headers": problems.headers("X-Request-ID", "Server-Timing"),
                "content": {
                    media.JSON: {
                        "schema": {"$ref": "#/components/schemas/AttentionResponse"},
                        "example": samples.answer(),
                    },
                    **dict.fromkeys((*media.BINARY, media.PNG), binary),
                },
            },
            **problems.responses(*FAILURES),
        },
    }


def _limits(settings: Settings) -> str:
    return (
        f"\n**Limits here.** Body {settings.max_body_bytes.human_readable()}; {settings.request_cells:,} numbers "
        f"computed in one request; {settings.json_cells:,} in a JSON answer; "
        f"{settings.deadline_seconds:g} s from arrival to answer.\n"
    )


def parameters(catalogue: Catalogue) -> list[dict[str, Any]]:
    """Those of the query string."""
    return [
        _encoding(catalogue),
        _compare(catalogue),
        _query("model", "By default `identity`, or `tiny` for a text.", _choice(catalogue.models)),
        _query("heads", "Must divide the width (identity only); by default 1.", {"type": "integer", "minimum": 1}),
        _query(
            "key_heads",
            "Must divide heads: grouped key heads, of which each serves heads / key_heads query heads in a row. Needs "
            "queries and keys, the keys with key_heads x head_dim columns (identity only).",
            {"type": "integer", "minimum": 1},
        ),
        _query("causal", "Keys after the query are hidden. By default the model's own.", {"type": "boolean"}),
        _list(
            "return",
            f"What to return; by default {','.join(DEFAULT_RETURN)}, and with compare comparison.",
            RETURNABLE,
        ),
        _list(
            "metrics",
            "Of the summary and of the comparison. Of a kind of which none is named the default ones are computed; "
            "`default` and `all` stand for many.",
            NAMES,
        ),
        _picks("rows", "Queries to return; the others are not computed."),
        _picks("head", "Heads to return."),
        _query(
            "top_k",
            "Only the keys that weigh most in each row, in order, under `top_k`; of equal ones the first.",
            {"type": "integer", "minimum": 1},
        ),
        _query("dtype", "Of an answer in binary or base64.", {**_choice(DTYPES), "default": DTYPES[0]}),
        _query("arrays", "How JSON writes arrays.", {**_choice(FORMS), "default": FORMS[0]}),
        _query("zoom", "Pixels to each point of a picture.", {"type": "integer", "enum": list(ZOOMS), "default": 1}),
        {
            "name": "parameters",
            "in": "query",
            "style": "form",
            "explode": True,
            "description": "Scalar parameters of encodings, as `ENCODING.NAME=VALUE`: `rope.theta=500000`, or for an "
            "encoding with a label `rope@long.theta=500000`.",
            "schema": {"type": "object", "additionalProperties": {"type": "string"}},
            "examples": {
                "none": {"summary": "the defaults", "value": {}},
                "theta": {"summary": "another base for rope", "value": {"rope.theta": "500000"}},
                "labels": {
                    "summary": "another base for rope@long, which compare must name",
                    "value": {"rope@long.theta": "500000"},
                },
            },
        },
    ]


def _encoding(catalogue: Catalogue) -> dict[str, Any]:
    models = catalogue.models.values()
    ids = dict.fromkeys([model.default for model in models] + [id for model in models for id in model.encodings])
    text = "An id or an alias, which may carry a label: `rope@long`. By default the model's own."
    examples = {"examples": {id: {"value": id} for id in ids}} if ids else {}
    return {**_query("encoding", text, _name(catalogue)), **examples}


def _compare(catalogue: Catalogue) -> dict[str, Any]:
    text = (
        "More encodings on the same input, separated by commas, or `all`. One that is there already needs a label, "
        "`rope@long`, and takes its own parameters, `rope@long.theta`."
    )
    examples = {
        "none": {"value": []},
        "some": {"value": ["alibi", "t5"]},
        "labels": {"summary": "rope under other parameters", "value": ["rope@long"]},
        "all": {"value": [ALL]},
    }
    schema = {"type": "array", "items": _name(catalogue, ALL)}
    return {**_query("compare", text, schema), "style": "form", "explode": False, "examples": examples}


def _name(catalogue: Catalogue, *others: str) -> dict[str, Any]:
    """An encoding with or without a label, or one of `others`."""
    names = "|".join(sorted({name for model in catalogue.models.values() for name in model.names()}))
    return {"type": "string", "pattern": "^(" + "|".join((*others, f"({names})(@{LABEL})?")) + ")$"}


def _query(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _list(name: str, description: str, values: Iterable[str]) -> dict[str, Any]:
    schema = {"type": "array", "items": _choice(values)}
    return {**_query(name, description, schema), "style": "form", "explode": False}


def _picks(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "array", "items": {"type": "string", "pattern": r"^(-?\d+|(-?\d+)?:(-?\d+)?(:(-?\d+)?)?)$"}}
    text = f"{description} Indices and slices as in Python, separated by commas: `-1`, `0:16`, `3,5`. By default all."
    examples = {"all": {"value": []}, "last": {"value": ["-1"]}, "some": {"value": ["0:2", "-1"]}}
    return {**_query(name, text, schema), "style": "form", "explode": False, "examples": examples}


def _choice(values: Iterable[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}
