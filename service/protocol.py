"""HTTP on one connection: uvicorn's protocol, which waits for the head of a request for as long as it takes."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.errors import HeadTimeout, MalformedRequest, ServiceError
from service.wire import media, problem


class Protocol(HttpToolsProtocol):
    """Closes a connection whose next request's head has not arrived `header_seconds` after it began, and tells of what
    is no HTTP as of every other failure. A head that comes in one piece needs no timer."""

    def __init__(self, *arguments: Any, header_seconds: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.header_seconds = header_seconds
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        under_way: RequestResponseCycle | None = self.cycle
        if under_way is None or under_way.response_complete:  # this was a part of a head
            self._begin_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Of bytes that the parser does not take."""
        self._refuse(
            MalformedRequest(
                "this is no HTTP/1.1 request as it is read here: the method is unknown, or the first line or a header "
                "is not well formed"
            )
        )

    def _begin_head(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.header_seconds, self._late)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            seconds = self.header_seconds
            detail = f"the headers did not arrive within {seconds:g} s (ATTENTION_HEADER_SECONDS)"
            self._refuse(HeadTimeout(detail, limit_seconds=seconds))

    def _refuse(self, error: ServiceError) -> None:
        request_id = secrets.token_hex(8)
        content = problem.encode(error, request_id)
        lines = [
            STATUS_LINE[error.status].rstrip(),
            b"content-type: " + media.PROBLEM.encode(),
            b"content-length: %d" % len(content),
            b"x-request-id: " + request_id.encode(),
            b"connection: close",
        ]
        self.transport.write(b"\r\n".join([*lines, b"", content]))
        self.transport.close()
