"""Answers that tell what went wrong, written straight to the socket."""

from __future__ import annotations

import time

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.errors import ServiceError
from service.exchange import Exchange
from service.express.connection import Connection
from service.middleware import refusing
from service.outgoing import NOSNIFF
from service.telemetry import Telemetry


def refuse(
    connection: Connection,
    telemetry: Telemetry,
    exchange: Exchange,
    error: ServiceError,
    said: tuple[int, str, bytes],
    *,
    closing: bool,
) -> None:
    """Answers a request that the connection holds with this status, content type and content, and counts it.
    `closing`: it was the last of its connection.
    """
    status, kind, content = said
    exchange.fails(error.status, error.reason)
    headers = [
        *refusing(error, kind, content),
        NOSNIFF,
        (b"x-request-id", exchange.request_id.encode()),
        (b"server-timing", exchange.server_timing.encode()),
        *([(b"connection", b"close")] if closing else []),
    ]
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    telemetry.began(exchange.endpoint)
    connection.reply([b"%b%b\r\n" % (STATUS_LINE[status], lines), content], close=closing)
    telemetry.finished(exchange, time.perf_counter() - exchange.began)
