"""One answer on its way to the client: what was written of it, and how it ended."""

from __future__ import annotations

import time

from starlette.types import Message, Send

from service.errors import ClientClosedRequest
from service.exchange import Exchange
from service.lifecycle import Lifecycle
from service.sending import Sending

NOSNIFF = (b"x-content-type-options", b"nosniff")
"""Every answer is what its content type says, and nothing that a browser takes it for."""


class Outgoing:
    """Belongs to one request; its `send` is what the application sends with. It adds the headers that all answers have.

    `sending` is None where nobody knows how far the system has taken what was written. Without a `body` only the
    answer's head is sent, as HEAD asks for.
    """

    __slots__ = (
        "_body",
        "_cut",
        "_ended",
        "_exchange",
        "_given",
        "_last",
        "_lifecycle",
        "_next",
        "_sending",
        "started",
    )

    def __init__(
        self, exchange: Exchange, lifecycle: Lifecycle, sending: Sending | None, send: Send, *, body: bool
    ) -> None:
        self._exchange = exchange
        self._lifecycle = lifecycle
        self._sending = sending
        self._next = send
        self._body = body
        self.started = False
        """Whether its head was sent: then no other answer can be given."""
        self._cut = False
        """Whether the client left before what came last."""
        self._ended = False
        """Whether all of it was given to be written, and nothing of it after the client left."""
        self._given = self._last = 0
        """Bytes of the body that were given to be written, and those of its last piece."""

    async def send(self, message: Message) -> None:
        starts = message["type"] == "http.response.start"
        if starts:
            self.started = True
            exchange = self._exchange
            exchange.status = message["status"]
            exchange.gave(message.get("headers", ()))
            message["headers"] = [*message.get("headers", ()), *self._headers()]
        elif not self._body:
            message["body"] = b""
        sending = self._sending
        if sending is not None and not self._cut:
            if sending.waiting:
                await sending.settled()
            self._cut = sending.closed
        await self._next(message)
        if not starts and not self._cut:
            self._last = last = len(message.get("body", b""))
            self._given += last
            self._ended = not message.get("more_body", False)

    async def over(self) -> None:
        """Returns when the system has taken it, or the client has left, which the exchange is told."""
        sending, exchange = self._sending, self._exchange
        if sending is None:
            return
        written = time.perf_counter()
        unsent = await sending.over(self._given, self._last)
        if (unsent or (self._cut and not self._ended)) and exchange.reason is None:
            exchange.fails(ClientClosedRequest.status, ClientClosedRequest.reason)
            exchange.sent = self._given - unsent
        elif exchange.timings is not None:
            exchange.timings.serialize += time.perf_counter() - written

    def _headers(self) -> list[tuple[bytes, bytes]]:
        exchange = self._exchange
        headers = [
            NOSNIFF,
            (b"x-request-id", exchange.request_id.encode()),
            (b"server-timing", exchange.server_timing.encode()),
        ]
        if exchange.close or self._lifecycle.draining:
            headers.append((b"connection", b"close"))
        return headers
