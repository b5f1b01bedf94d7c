"""HTTP on one connection: uvicorn's protocol, which waits for the head of a request for as long as it takes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service import leftover
from service.errors import Crowded, HeadTimeout, HeadTooLarge, MalformedRequest, ServiceError
from service.exchange import Exchange, new_id
from service.express.express import Express
from service.middleware import CROWDED, UPGRADE, crowded
from service.outgoing import NOSNIFF
from service.sending import SENDING, Sending
from service.siblings import Siblings
from service.telemetry import OTHER
from service.wire import media, problem

HEAD_BYTES, HEADERS = 1 << 16, 128
"""Most bytes of a request's first line and headers, and most headers."""
SLICE, BODY_SLICE = 1 << 12, 1 << 14
"""Bytes that are parsed at a time where a request begins, and amid a body."""
SHARE = 30
"""An answer may be handed over in so many times `stall_seconds`, at an even pace."""
LOOK = 0.05
"""Seconds between two looks at how much of an answer waits: where the client leaves amid it, that is what is known."""
EXTRA, EXTRA_SECONDS = 64, 1.0
"""Connections above the limit that are read, and how long their heads are waited for."""


@lru_cache(maxsize=8)
def _first_lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return STATUS_LINE[200] + b"".join(b"%b: %b\r\n" % header for header in headers)


def unclear(version: str, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """What of a head others on the way may read in another way; None where there is nothing. Names are in lower case.

    RFC 9112: 3.2, one host; 6.1, the end of the body, of which the parser sees to the rest.
    """
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            return f"Transfer-Encoding: {value[:40].decode('latin-1')} is not read here; allowed: chunked"
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return f"a request has one Host header, and this one has {hosts}"
    return None


def _said(error: BaseException | None) -> str:
    """What is wrong with a request, as far as the parser says."""
    match error:
        case httptools.HttpParserInvalidMethodError():
            return "the method is unknown, or what came is not HTTP at all"
        case httptools.HttpParserError(args=[str(text)]) if not isinstance(error, httptools.HttpParserCallbackError):
            return text
    return "the first line or a header is not well formed"


class Flow(FlowControl):
    """Reads nothing while `held`, whoever asks for more."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class Protocol(HttpToolsProtocol):
    """Closes a connection whose next request's head has not arrived `header_seconds` after it began, whose client takes
    less than a part of an answer in `stall_seconds` (an answer is kept until its last byte has gone), or sends the rest
    of a body long after its answer. Tells of what is no HTTP as of every other failure. A head that comes in one piece
    needs no timer.

    Requests that come before the answers to others are parsed a few at a time, as those are answered, and meanwhile
    nothing is read.

    Of more than `most` connections a few are read, and closed after one answer, which is a refusal unless it is about
    the health of the process; the others are refused unread.

    What comes between two requests is offered to `express` before it is read.

    Where one of the `siblings` has fewer connections it is handed on, before anything is read. One that was `adopted`
    comes from a sibling, which has counted it: it stays.
    """

    partial_seconds = 1.0
    """How long the rest of a request is waited for that `express` may answer."""

    def __init__(
        self,
        *arguments: Any,
        header_seconds: float,
        stall_seconds: float = 60.0,
        most: int = 1 << 20,
        express: Express | None = None,
        siblings: Siblings | None = None,
        adopted: bool = False,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self.header_seconds = header_seconds
        self.stall_seconds = stall_seconds
        self.most = most
        self.express = express
        self.telemetry = express.telemetry if express is not None else None
        self.siblings = siblings
        self.adopted = adopted
        self._handed_on = False
        self._extra = False
        """Whether this is a connection too many."""
        self._heading = False
        """Whether the head of a request has begun and not ended."""
        self._head_bytes = self._headers = 0
        """Of the request that comes, as far as the parser has told of them."""
        self._unfinished = 0
        """Bytes of its head since the piece with which it began."""
        self._too_large = False
        self._unclear: str | None = None
        """Why it cannot be told what a request is meant to be."""
        self._unread = bytearray()
        """What came beyond the requests that are under way and waiting."""
        self._refusal: ServiceError | None = None
        """What follows the answers that are under way, and ends the connection: nothing more is read."""
        self._before: RequestResponseCycle | None = None
        """What is answered before the request that comes, where that waits for it."""
        self._rest_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self.sending = Sending()
        self._look_timer: asyncio.TimerHandle | None = None
        self._unsent = self._whole = 0
        """Bytes of an answer when it was last looked at, and at first."""
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
        if not self.adopted:
            if self.siblings is not None and self.siblings.hand_on(transport):
                self._handed_on = True
                transport.abort()  # closes what is this process's of it; nothing is sent
                return
            if self.telemetry is not None:
                self.telemetry.connected()
        super().connection_made(transport)
        self.flow: Flow = Flow(transport)
        self.sending = Sending(transport)
        if len(self.connections) > self.most:
            if len(self.connections) > self.most + EXTRA:
                self._refuse(crowded())
                return
            self._extra, self.express = True, None
            self.header_seconds = min(self.header_seconds, EXTRA_SECONDS)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._handed_on:
            return
        if self.telemetry is not None:
            self.telemetry.disconnected()
        if self._partial is not None:
            # As far as its head at least: it counts as one whose client has left.
            self._parse(self._end_partial()[:SLICE])
        self._end_head()
        self._end_rest()
        self._end_stall()
        self.sending.lose(broken=exc is not None)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more, and has either left or waits for its answer: only a write tells. One that has
        begun is written on; before that nothing is, so the client is taken for one that left.
        """
        if self.sending.waiting:
            self.sending.waits(self.transport.get_write_buffer_size())
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not cycle.response_started or cycle.response_complete:
            return False
        cycle.keep_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        if self._held is not None:
            self._held += data
            if len(self._held) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
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
            self.express.arriving.held += due
            self._end_head()
            # If it does not come it is read as far as it came, and waited for as every other.
            self._partial_timer = self.loop.call_later(self.partial_seconds, self._give_up)
            return
        self._read(data)
        end = data.find(b"\r\n\r\n") + 4
        if end > 4 and self._answering() and not self.pipeline and not self._heading:  # `scope` is that of this head
            self.express.learn(bytes(data[:end]), self.scope)

    def _end_partial(self) -> bytearray:
        """Waits no longer for the rest of a request, and returns what there is of it."""
        assert self._partial is not None
        assert self._partial_timer is not None
        assert self.express is not None
        self._partial_timer.cancel()
        self.express.arriving.held -= self._due
        partial, self._partial, self._partial_timer = self._partial, None, None
        return partial

    def _give_up(self) -> None:
        if self._partial is not None:
            self._read(self._end_partial())

    def _read(self, data: bytes | bytearray) -> None:
        if self._unread:
            self._unread += data
        elif len(data) <= SLICE:
            self._parse(data)
        else:
            self._unread += data
            self._parse_on()

    def _parse_on(self) -> None:
        """What came and was not parsed, until several requests wait."""
        start = 0
        while start < len(self._unread) and not self.pipeline and not self.transport.is_closing():
            end = start + (SLICE if self._heading or not self._inside else BODY_SLICE)
            self._parse(self._unread[start:end])
            start = end
        del self._unread[:start]
        self.flow.held = bool(self._unread)
        if self._unread:
            self.flow.pause_reading()
        elif self._heading or not self._inside or len(self.cycle.body) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()

    def _parse(self, data: bytes | bytearray) -> None:
        if self._refusal is not None:
            return
        before, heading = self.scope, self._heading
        super().data_received(bytes(data))
        if heading and self._heading and before is self.scope:  # the parser tells of a header once it is whole
            self._unfinished += len(data)
            if self._unfinished > HEAD_BYTES:
                self._too_large = True
                self.send_400_response("")
                return
        if self._answering() or (self._inside and not self._heading) or self.timeout_keep_alive_task is not None:
            return
        self._begin_head()  # this was a part of it

    def _answering(self) -> bool:
        under_way: RequestResponseCycle | None = self.cycle
        return under_way is not None and not under_way.response_complete

    def on_message_begin(self) -> None:
        self._inside = self._heading = True
        self._head_bytes = self._headers = self._unfinished = 0
        super().on_message_begin()
        scope = cast("dict[str, Any]", self.scope)
        scope[SENDING] = self.sending
        if self._extra:
            scope[CROWDED] = True

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES or self._headers > HEADERS:
            self._too_large = True
            raise ValueError  # ends the parser, which has the server refuse what it read

    def on_headers_complete(self) -> None:
        self._unclear = unclear(self.parser.get_http_version(), self.headers)
        if self._unclear is not None:
            raise ValueError  # as above
        self._heading = False
        self._end_head()
        before = self.cycle
        super().on_headers_complete()
        self._before = before if self.pipeline else None
        if self._extra:
            self.cycle.keep_alive = False

    def _unsupported_upgrade_warning(self) -> None:
        """Of a request for another protocol than HTTP/1.1, which is not offered. It is answered as any other, but the
        parser reads nothing beyond its head: there is no body, and no request after it.
        """
        self.cycle.keep_alive = False
        if any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self.headers
        ):
            cast("dict[str, Any]", self.scope)[UPGRADE] = True

    def on_message_complete(self) -> None:
        self._inside = False
        self._end_rest()
        super().on_message_complete()
        if self.cycle.response_complete and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self._keep_alive(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unread and not self.pipeline:
            self._parse_on()
        if self._answering() or self.transport.is_closing():
            return
        if self._refusal is not None:
            self._refuse(self._refusal)
        elif self._inside and not self._heading:  # the answer did not need the body
            self._end_rest()
            self._rest_timer = self.loop.call_later(leftover.SECONDS, self.transport.close)

    def _end_rest(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._unsent = self._whole = self.transport.get_write_buffer_size()
            self._stall_timer = self.loop.call_later(self.stall_seconds, self._stalled)
            self._look()

    def resume_writing(self) -> None:
        self._end_stall()
        self.sending.taken()
        super().resume_writing()

    def _look(self) -> None:
        self.sending.waits(self.transport.get_write_buffer_size())
        self._look_timer = self.loop.call_later(LOOK, self._look)

    def _stalled(self) -> None:
        """Looks whether enough of the answer has been taken."""
        unsent = self.transport.get_write_buffer_size()
        if unsent > self._unsent - max(1, min(self._unsent, self._whole // SHARE)):
            self.transport.abort()
            return
        self._unsent = unsent
        self._stall_timer = self.loop.call_later(self.stall_seconds, self._stalled)

    def _end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None

    # What `express` needs

    @property
    def first_lines(self) -> bytes:
        return _first_lines(tuple(self.server_state.default_headers))

    def hold(self) -> None:
        self._end_head()
        self._held = bytearray()

    def _end_hold(self) -> bytearray | None:
        """What came meanwhile."""
        held, self._held = self._held, None
        if held:
            self.flow.resume_reading()
        return held

    @property
    def peer(self) -> str:
        return "" if self.client is None else self.client[0]

    @property
    def gone(self) -> bool:
        return self.transport.is_closing()

    def decline(self, data: bytes | bytearray) -> None:
        held = self._end_hold()
        self._read(data + held if held else data)
        if self._closing:
            super().shutdown()

    def reply(self, pieces: list[Any], *, close: bool) -> None:
        held = self._end_hold()
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
        error: ServiceError
        if self._too_large:
            error = HeadTooLarge(
                f"a request's first line and headers may have {HEAD_BYTES} bytes, and {HEADERS} headers; here are more",
                limit_bytes=HEAD_BYTES,
                limit_headers=HEADERS,
            )
        elif self._unclear is not None:
            error = MalformedRequest(self._unclear)
        else:
            error = MalformedRequest(f"this is no HTTP/1.1 request as it is read here: {_said(sys.exception())}")
        if not self._answering():
            self._refuse(error)
        elif self._heading or not self._inside or self.pipeline:
            if self._inside and not self._heading and self._before is not None:  # amid the body of one that waits
                self.pipeline.popleft()
                self.cycle = self._before
            self._refusal = error  # the answers to what came before go first
            self._end_head()
        elif self.cycle.response_started:
            self.transport.abort()
        else:
            self._refuse(error)

    def _begin_head(self) -> None:
        if self._head_timer is None and self._refusal is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.header_seconds, self._late)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._head_timer = None
        if not self._heading:  # nothing was asked, so there is nobody to be told
            self.transport.close()
        elif not self.transport.is_closing():
            seconds = self.header_seconds
            detail = f"the headers did not arrive within {seconds:g} s (ATTENTION_HEADER_SECONDS)"
            self._refuse(HeadTimeout(detail, limit_seconds=seconds))

    def _refuse(self, error: ServiceError) -> None:
        exchange = Exchange(new_id(), OTHER, status=error.status, reason=error.reason)
        if self.telemetry is not None:
            self.telemetry.began(OTHER)
            self.telemetry.finished(exchange, time.perf_counter() - exchange.began)
        content = problem.encode(error, exchange.request_id)
        lines = [
            STATUS_LINE[error.status].rstrip(),
            b"content-type: " + media.PROBLEM.encode(),
            b"content-length: %d" % len(content),
            b": ".join(NOSNIFF),
            b"x-request-id: " + exchange.request_id.encode(),
            b"connection: close",
            *([b"retry-after: 1"] if isinstance(error, Crowded) else []),
        ]
        self.transport.write(b"\r\n".join([*lines, b"", content]))
        self.transport.close()
