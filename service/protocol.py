"""HTTP on one connection: uvicorn's protocol, which waits for the head of a request for as long as it takes."""

from __future__ import annotations

import asyncio
import time
from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.errors import HeadTimeout, MalformedRequest, ServiceError
from service.exchange import Exchange, new_id
from service.express.express import Express
from service.middleware import NOSNIFF
from service.telemetry import OTHER
from service.wire import media, problem


@lru_cache(maxsize=8)
def _first_lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return STATUS_LINE[200] + b"".join(b"%b: %b\r\n" % header for header in headers)


class Protocol(HttpToolsProtocol):
    """Closes a connection whose next request's head has not arrived `header_seconds` after it began, and tells of what
    is no HTTP as of every other failure. A head that comes in one piece needs no timer.

    What comes between two requests is offered to `express` before it is read.
    """

    partial_seconds = 1.0
    """How long the rest of a request is waited for that `express` may answer."""

    def __init__(self, *arguments: Any, header_seconds: float, express: Express | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.header_seconds = header_seconds
        self.express = express
        self._head_timer: asyncio.TimerHandle | None = None
        self._inside = False
        """Whether a request has begun and not ended."""
        self._held: bytearray | None = None
        """What came while an answer of `express` was on its way; None where none is."""
        self._partial: bytearray | None = None
        """What has come of a request that is offered to `express` once all of it is there."""
        self._due = 0
        """How many bytes that is."""
        self._partial_timer: asyncio.TimerHandle | None = None
        self._active = 0.0
        """When `express` last answered."""
        self._closing = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up()
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._held is not None:
            self._held += data
        elif self._partial is not None:
            self._partial += data
            if len(self._partial) >= self._due:
                self._offer(self._end_partial())
        elif self.express is None or self._inside or self._answering() or self.flow.write_paused:
            self._read(data)
        else:
            self._offer(data)

    def _offer(self, data: bytes | bytearray) -> None:
        """The beginning of a request, to `express`."""
        assert self.express is not None
        if self.express.take(self, data):
            return
        due = self.express.expects(data)
        if due is not None and len(data) < due:
            self._partial, self._due = bytearray(data), due
            self._end_head()
            # If it does not come it is read as far as it came, and waited for as every other.
            self._partial_timer = self.loop.call_later(self.partial_seconds, self._give_up)
            return
        self._read(data)
        end = data.find(b"\r\n\r\n") + 4
        if end > 4 and self._answering() and not self.pipeline and not self._inside:
            self.express.learn(bytes(data[:end]), self.scope)

    def _end_partial(self) -> bytearray:
        """Waits no longer for the rest of a request, and returns what there is of it."""
        assert self._partial is not None
        assert self._partial_timer is not None
        self._partial_timer.cancel()
        partial, self._partial, self._partial_timer = self._partial, None, None
        return partial

    def _give_up(self) -> None:
        if self._partial is not None:
            self._read(self._end_partial())

    def _read(self, data: bytes | bytearray) -> None:
        super().data_received(bytes(data))
        if not self._answering():  # this was a part of a head
            self._begin_head()

    def _answering(self) -> bool:
        under_way: RequestResponseCycle | None = self.cycle
        return under_way is not None and not under_way.response_complete

    def on_message_begin(self) -> None:
        self._inside = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._inside = False
        super().on_message_complete()

    # What `express` needs

    @property
    def first_lines(self) -> bytes:
        return _first_lines(tuple(self.server_state.default_headers))

    def hold(self) -> None:
        self._end_head()
        self._held = bytearray()

    @property
    def peer(self) -> str:
        return "" if self.client is None else self.client[0]

    @property
    def gone(self) -> bool:
        return self.transport.is_closing()

    def decline(self, data: bytes | bytearray) -> None:
        held, self._held = self._held, None
        self._read(data + held if held else data)
        if self._closing:
            super().shutdown()

    def reply(self, pieces: list[Any], *, close: bool) -> None:
        held, self._held = self._held, None
        self.server_state.total_requests += 1
        self.transport.writelines(pieces)
        if close or self._closing:
            self.transport.close()
            return
        self._active = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._keep_alive(self.timeout_keep_alive)
        if held:
            self.data_received(bytes(held))

    def timeout_keep_alive_handler(self) -> None:
        """A connection that `express` serves has one timer, which looks again where it fires too early."""
        left = self._active + self.timeout_keep_alive - self.loop.time()
        if self._held is not None or self._partial is not None or left > 0:
            self._keep_alive(max(left, 0.01))
        else:
            super().timeout_keep_alive_handler()

    def _keep_alive(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def shutdown(self) -> None:
        self._give_up()
        if self._held is not None:
            self._closing = True
        else:
            super().shutdown()

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
        exchange = Exchange(new_id(), OTHER, status=error.status, reason=error.reason)
        if self.express is not None:
            self.express.telemetry.began(OTHER)
            self.express.telemetry.finished(exchange, time.perf_counter() - exchange.began)
        content = problem.encode(error, exchange.request_id)
        lines = [
            STATUS_LINE[error.status].rstrip(),
            b"content-type: " + media.PROBLEM.encode(),
            b"content-length: %d" % len(content),
            b": ".join(NOSNIFF),
            b"x-request-id: " + exchange.request_id.encode(),
            b"connection: close",
        ]
        self.transport.write(b"\r\n".join([*lines, b"", content]))
        self.transport.close()
