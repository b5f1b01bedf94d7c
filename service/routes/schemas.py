"""JSON schemas, in few words: what the OpenAPI document says of answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

ANY: Schema = {}
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
BINARY: Schema = {"type": "string", "format": "binary"}


def record(members: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, **more: Any) -> Schema:
    """An object of these members and no others."""
    properties = {**members, **(optional or {})}
    return {
        "type": "object",
        "required": list(members),
        "properties": properties,
        "additionalProperties": False,
        **more,
    }


def array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def mapping(values: Schema) -> Schema:
    """An object whose names are not known beforehand."""
    return {"type": "object", "additionalProperties": values}


def one_of(*values: str, **more: Any) -> Schema:
    return {"type": "string", "enum": list(values), **more}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def answer(schema: Schema, description: str = "The answer.") -> dict[int | str, Any]:
    """The responses object of a route that answers with JSON."""
    return {200: {"description": description, "content": {"application/json": {"schema": schema}}}}
