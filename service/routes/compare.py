"""`POST /compare/matrices`: attention matrices that somebody has already, summarised and compared."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request

from service.admission import Limits
from service.analysis.given import GivenOptions, Studies, check
from service.analysis.wanted import NAMES
from service.deadline import Deadline
from service.errors import DeadlineExceeded, Draining, InvalidInput, NotAcceptable, Overloaded
from service.exchange import Exchange, header
from service.lifecycle import Lifecycle
from service.records import Timings
from service.routes import problems, query, upload
from service.routes.answers import Json
from service.routes.leaving import Leaving
from service.settings import Settings
from service.wire import answer, matrices, media

PATH = "/compare/matrices"
PARAMETERS = ("metrics", "reference", "causal", "sinks", "tolerance", "top_k")
THREADED = 1 << 18
"""Bytes from which a body is read on a thread."""

_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_ARRAYS = {"type": "object", "additionalProperties": {"anyOf": [{"type": "array", "items": {}}, {"type": "object"}]}}
_EXAMPLE = {
    "matrices": {"mine": [[1, 0], [0.4, 0.6]], "theirs": [[1, 0], [0.5, 0.5]]},
    "tokens": ["to", "be"],
}
_REQUEST: dict[str, Any] = {
    "parameters": [
        {
            "name": "metrics",
            "in": "query",
            "description": "As of POST /attention: names, `default`, `all`. Those of two matrices need two.",
            "schema": {"type": "array", "items": {"type": "string", "enum": list(NAMES)}},
            "style": "form",
            "explode": False,
        },
        {
            "name": "reference",
            "in": "query",
            "description": "The matrix that the others are compared with: by default the first, in safetensors the "
            "first by name. Not where there is one only.",
            "schema": {"type": "string"},
        },
        {
            "name": "causal",
            "in": "query",
            "description": "Keys after the query are masked.",
            "schema": {"type": "boolean", "default": False},
        },
        {
            "name": "sinks",
            "in": "query",
            "description": "Rows may sum to less than 1: the rest goes to learned sinks.",
            "schema": {"type": "boolean", "default": False},
        },
        {
            "name": "tolerance",
            "in": "query",
            "description": "How far from 1 a row may sum; by default 0.002 of float16 matrices, else 0.00001.",
            "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        },
        {
            "name": "top_k",
            "in": "query",
            "description": "The k of topk_overlap, where metrics names it.",
            "schema": {"type": "integer", "minimum": 1, "default": 8},
        },
    ],
    "requestBody": {
        "required": True,
        "content": {
            media.JSON: {
                "schema": {
                    "type": "object",
                    "required": ["matrices"],
                    "additionalProperties": False,
                    "properties": {
                        "matrices": {**_ARRAYS, "description": "by name"},
                        "scores": {**_ARRAYS, "description": "those before mask and softmax, under the same names"},
                        "mask": {"description": "as of POST /attention"},
                        "positions": {"type": "array", "items": {"type": "number"}},
                        "query_positions": {"type": "array", "items": {"type": "number"}},
                        "key_positions": {"type": "array", "items": {"type": "number"}},
                        "tokens": {"type": "array", "items": {"type": "string"}, "description": "one for each key"},
                    },
                },
                "examples": {"two": {"summary": "Two matrices", "value": _EXAMPLE}},
            },
            **dict.fromkeys(media.BINARY, _BINARY),
        },
    },
}
_RESPONSE: dict[str, Any] = {
    "type": "object",
    "required": ["shape", "results", "timings"],
    "properties": {
        "shape": {"type": "object", "additionalProperties": {"type": "integer"}},
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "dtype", "tolerance", "summary"],
                "properties": {
                    "name": {"type": "string"},
                    "dtype": {"type": "string"},
                    "tolerance": {"type": "number", "description": "how far from 1 a row could sum and count"},
                    "summary": {"$ref": "#/components/schemas/Summary"},
                },
            },
        },
        "comparison": {
            "type": "object",
            "properties": {
                "reference": {"type": "string"},
                "against": {
                    "type": "object",
                    "additionalProperties": {"$ref": "#/components/schemas/Comparison"},
                },
            },
        },
        "timings": {"type": "object", "additionalProperties": {"type": "number"}},
    },
}


def router(
    studies: Studies, limits: Limits, lifecycle: Lifecycle, settings: Settings, responses: dict[int | str, Any]
) -> APIRouter:
    routes = APIRouter(tags=["attention"], default_response_class=Json, responses=responses)

    @routes.post(
        PATH,
        summary="Compare attention matrices that you have",
        responses={
            200: {"description": "Summaries and comparisons.", "content": {media.JSON: {"schema": _RESPONSE}}},
            **problems.responses(*problems.COMMON, NotAcceptable, Overloaded, Draining, DeadlineExceeded),
        },
        openapi_extra=_REQUEST,
    )
    async def compare(request: Request) -> Json:
        """Summarises each matrix and compares the others with the first: [queries, keys], [heads, queries, keys] or
        [batch, heads, queries, keys], all of one shape, as JSON, or as arrays named `matrices/<name>` (and
        `scores/<name>`, `mask`, `positions`, ...) in npz or safetensors. Rows that do not sum to 1 are counted as
        invalid and left out, whatever else is there; numbers that are not finite are counted, too.
        """
        exchange = Exchange.of(request.scope)
        deadline = Deadline.after(settings.deadline_seconds)
        lifecycle.check_open()
        options = parse(request.scope["query_string"])
        media.negotiate(header(request.scope, b"accept"), (media.JSON,))
        kind = media.media_type(header(request.scope, b"content-type"))
        content = await upload.read(request.scope, request.receive, settings.max_body_bytes, settings.body_seconds)
        given = await asyncio.to_thread(
            lambda: check(matrices.decode(kind, content, settings.max_body_bytes), options, limits)
        )
        read = time.perf_counter()
        timings = Timings(decode=read - exchange.began)
        with Leaving(request.receive):
            found = await studies.study(given, options, timings, deadline)
        waited = time.perf_counter() - read
        timings.compute = min(waited, timings.compute)
        timings.postprocess = max(0.0, waited - timings.compute)
        exchange.timings = timings
        batch, heads, queries, keys = given.shape
        shape = {"batch": batch} if given.batched else {}
        shape |= {"heads": heads, "queries": queries, "keys": keys}
        return Json({"shape": shape, **found, "timings": answer.timings(timings)})

    return routes


def parse(raw: bytes) -> GivenOptions:
    """Raises InvalidInput, UnknownName."""
    query.check_names(raw, PARAMETERS)
    given: dict[str, list[str]] = {}
    for name, value in query.pairs(raw):
        given.setdefault(name, []).append(value)
    tolerance = query.one(given, "tolerance", query.number)
    if tolerance is not None and not 0 < tolerance <= 0.5:
        raise InvalidInput(f"tolerance={tolerance:g} is not within (0, 0.5]", pointer="query:tolerance")
    return GivenOptions(
        query.several(given, "metrics"),
        query.one(given, "causal", query.flag) or False,
        query.one(given, "sinks", query.flag) or False,
        tolerance,
        query.one(given, "top_k", query.count),
        query.one(given, "reference", query.nonempty),
    )
