"""Failures in the words of OpenAPI, each with an example that the service itself would send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import orjson

from service.deadline import Deadline
from service.engine.engine import late
from service.errors import (
    BodyTimeout,
    DeadlineExceeded,
    Draining,
    InvalidInput,
    MalformedBody,
    NotAcceptable,
    Overloaded,
    PayloadTooLarge,
    ServiceError,
    UnsupportedMediaType,
)
from service.lifecycle import Lifecycle
from service.routes import query, upload
from service.wire import json, media, problem

REQUEST_ID = "4f2c9d1e0a7b-00002a"
COMMON: tuple[type[ServiceError], ...] = (
    MalformedBody,
    BodyTimeout,
    PayloadTooLarge,
    UnsupportedMediaType,
    InvalidInput,
    ServiceError,
)
"""What any endpoint that reads a body may answer."""
DEFAULT: dict[int | str, Any] = {
    "default": {
        "description": "A failure, as a problem document (RFC 9457).",
        "content": {media.PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
_DESCRIPTIONS: Mapping[int, str] = {500: "The model failed, or the service did."}


def responses(*failures: type[ServiceError]) -> dict[int | str, Any]:
    """The responses object of these failures, by status in order."""
    return {str(failure.status): _response(failure) for failure in sorted(failures, key=lambda one: one.status)}


def description(failure: type[ServiceError]) -> str:
    return _DESCRIPTIONS.get(failure.status) or (failure.__doc__ or failure.title).split("\n")[0]


def headers(*names: str) -> dict[str, Any]:
    return {name: {"schema": {"type": "string"}} for name in names}


def _response(failure: type[ServiceError]) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    example = orjson.loads(problem.encode(_examples()[failure], REQUEST_ID))
    return {
        "description": description(failure),
        "headers": headers("X-Request-ID", *(("Retry-After",) if failure in (Overloaded, Draining) else ())),
        "content": {media.PROBLEM: {"schema": schema, "example": example}},
    }


@cache
def _examples() -> Mapping[type[ServiceError], ServiceError]:
    lifecycle = Lifecycle(lambda: None)
    lifecycle.drain()
    return {
        MalformedBody: _raised(lambda: json.decode(b'{"embeddings": [[1, 0], [1, 1]')),
        NotAcceptable: _raised(lambda: media.negotiate("text/csv")),
        BodyTimeout: upload.too_slow(30.0),
        PayloadTooLarge: upload.too_large("72000000 bytes", 64 << 20),
        UnsupportedMediaType: _raised(lambda: media.media_type("application/x-www-form-urlencoded")),
        InvalidInput: _raised(lambda: query.parse(b"retrun=weights")),
        Overloaded: Overloaded(
            "64 jobs of 134000000 cells are queued and 1 more of 4194304 cells do not fit: the limits are 1024 jobs "
            "and 134217728 cells; try again in about 0.4 s",
            retry_after=0.4,
        ),
        ServiceError: ServiceError(f"the service failed on this request; its log says why under {REQUEST_ID}"),
        Draining: _raised(lifecycle.check_open),
        DeadlineExceeded: late(0.0, Deadline.after(30.0, arrived=0.0)),
    }


def _raised(refused: Callable[[], object]) -> ServiceError:
    try:
        refused()
    except ServiceError as error:
        return error
    raise AssertionError("this is refused")
