"""What is left of a request's body when its answer is known already."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from service.errors import ClientClosedRequest
from service.exchange import Exchange

MOST = 512 << 20
"""Bytes that are taken in and thrown away."""
SECONDS = 10.0


async def discard(exchange: Exchange, receive: Receive, seconds: float = SECONDS) -> None:
    """Takes the rest in, up to a bound, so that a client which only reads once it has written gets to read its answer:
    where a connection is closed with bytes unread, the client is told of a reset and of nothing else.

    Raises ClientClosedRequest.
    """
    left, more = MOST, True
    try:
        async with asyncio.timeout(seconds):
            while more and left > 0:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientClosedRequest("the client left while it sent its body")
                left -= len(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        more = True
    exchange.body_read = not more
    exchange.close = more
