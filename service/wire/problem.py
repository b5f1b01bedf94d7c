"""RFC 9457 problem documents: how every failure is told."""

from __future__ import annotations

import json
from typing import Any

import orjson

from service.errors import ServiceError


def encode(error: ServiceError, request_id: str) -> bytes:
    """`type`, `title`, `status`, `detail`, `pointer` where there is one, `request_id`, and what the error adds."""
    document: dict[str, Any] = {
        "type": f"urn:attention:problem:{error.reason}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
    }
    if error.pointer is not None:
        document["pointer"] = error.pointer
    document["request_id"] = request_id
    document.update((name, value) for name, value in error.extra.items() if name not in document)
    try:
        return orjson.dumps(document)
    except TypeError:  # a lone surrogate that the client sent: escaped, it can be sent back
        return json.dumps(document).encode()
