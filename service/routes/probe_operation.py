"""`POST /attention/probe` in the words of OpenAPI."""

from __future__ import annotations

from typing import Any

from service.catalogue import Catalogue
from service.errors import DeadlineExceeded, Draining, NotAcceptable, Overloaded
from service.probes.records import DEFINITIONS, EXTENDS, LENGTHS, OFFSETS, PROBES
from service.routes import operation, problems, samples
from service.routes.probe_query import LARGEST_OFFSET, LONGEST, MOST, SHARED, SHORTEST
from service.wire import media

DESCRIPTION = f"""
Questions that take more runs than one: the input of `POST /attention`, in any of its formats, is moved, shuffled,
lengthened or made all alike, and what that does to scores and weights is answered for each encoding and head.

| probe | what it is | unit |
|---|---|---|
{"".join(f"| `{name}` | {about['definition']} | {about['unit']} |" + chr(10) for name, about in DEFINITIONS.items())}
Arrays are by head; for a batch by input and head. Where a probe cannot be asked of an encoding, a `reason` stands in
its place: a causal mask, positions that it has no table for, positions that are irregular. A number that is undefined
is `null`.

`position_only` has `references`, for some encodings what the paper says: `kind` is `formula` (the curve itself),
`upper bound` (RoPE's: the curve lies below it and oscillates, it is no prediction) or `steps` (T5's bucket borders).
"""
RESPONSE: dict[str, Any] = {
    "type": "object",
    "required": ["model", "shape", "causal", "probes", "results", "timings"],
    "properties": {
        "model": {"type": "string"},
        "shape": {"type": "object", "additionalProperties": {"type": "integer"}},
        "causal": {"type": "boolean"},
        "tokens": {"type": "array", "items": {"type": "string"}},
        "skipped": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "encodings that compare=all left out, and why",
        },
        "probes": {
            "type": "object",
            "description": "by probe: its definition, its unit, and what it was asked with",
            "additionalProperties": {"type": "object", "required": ["definition", "unit"]},
        },
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["encoding", "label", "name", "parameters", "conventions", "probes"],
                "properties": {
                    "encoding": {"type": "string", "description": "the id"},
                    "label": {"type": ["string", "null"], "description": "what the request put after '@'"},
                    "name": {"type": "string"},
                    "parameters": {"type": "object"},
                    "conventions": {"type": "object", "additionalProperties": {"type": "string"}},
                    "probes": {
                        "type": "object",
                        "description": "by probe: what was found, or a `reason`",
                        "additionalProperties": {"type": "object"},
                    },
                },
            },
        },
        "timings": {"type": "object", "additionalProperties": {"type": "number"}, "description": "milliseconds"},
    },
}


def request(catalogue: Catalogue) -> dict[str, Any]:
    """Query and body of the operation object."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    shared = {parameter["name"]: parameter for parameter in operation.parameters(catalogue)}
    sentence = samples.requests()["sentence"]
    return {
        "parameters": [
            _list("probe", "Which to ask; by default all.", {"type": "string", "enum": list(PROBES)}),
            *(shared[name] for name in SHARED),
            _list(
                "offsets",
                f"Of `shift_gap`: what is added to all positions. By default {_listed(OFFSETS)}.",
                {"type": "number", "minimum": -LARGEST_OFFSET, "maximum": LARGEST_OFFSET},
                MOST,
            ),
            _list(
                "lengths",
                f"Of `length_sweep`: in lengths of the input. By default {_listed(LENGTHS)}.",
                {"type": "number", "minimum": SHORTEST, "maximum": LONGEST},
                MOST,
            ),
            _one(
                "extend",
                "Of `length_sweep`: what follows the input where it is made longer, the input again or normal numbers "
                "of the mean and deviation of its components.",
                {"type": "string", "enum": list(EXTENDS), "default": EXTENDS[0]},
            ),
            _one(
                "seed",
                "Of the order in `order_gap`, and of the random numbers in `length_sweep`.",
                {"type": "integer", "minimum": 0, "maximum": 2**32 - 1, "default": 0},
            ),
            shared["parameters"],
        ],
        "requestBody": {
            "required": True,
            "content": {
                media.JSON: {
                    "schema": {"$ref": "#/components/schemas/AttentionRequest"},
                    "examples": {"sentence": sentence},
                },
                **{kind: binary for kind in media.READ if kind != media.JSON},
            },
        },
    }


def responses() -> dict[int | str, Any]:
    """The responses object."""
    return {
        200: {
            "description": "What was found, or why there is nothing to find.",
            "headers": problems.headers("X-Request-ID", "Server-Timing"),
            "content": {media.JSON: {"schema": RESPONSE}},
        },
        **problems.responses(*problems.COMMON, NotAcceptable, Overloaded, Draining, DeadlineExceeded),
    }


def _one(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _list(name: str, description: str, items: dict[str, Any], most: int | None = None) -> dict[str, Any]:
    schema = {"type": "array", "items": items} | ({"maxItems": most} if most else {})
    examples = {"default": {"summary": "the default", "value": []}}
    return {**_one(name, description, schema), "style": "form", "explode": False, "examples": examples}


def _listed(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
