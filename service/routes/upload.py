"""Request bodies off the wire: bounded in bytes and in time."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope

from service.errors import BodyTimeout, ClientClosedRequest, PayloadTooLarge, UnsupportedMediaType
from service.exchange import Exchange, header

DISCARDED = 64 << 20
DISCARD_SECONDS = 2.0


async def read(scope: Scope, receive: Receive, limit: int, seconds: float, *, coded: bool = False) -> bytes | bytearray:
    """The whole body. Raises PayloadTooLarge, BodyTimeout, UnsupportedMediaType, ClientClosedRequest.

    `coded`: it may have a content coding, which is left to the caller.
    """
    exchange = Exchange.of(scope)
    coding = header(scope, b"content-encoding")
    if not coded and coding is not None and coding.strip().lower() != "identity":
        raise UnsupportedMediaType(
            f"Content-Encoding: {coding[:40]} is not read here; send the body as it is",
            pointer="header:Content-Encoding",
            allowed=["identity"],
        )
    declared = _declared(scope)
    if declared is not None and declared > limit:
        if header(scope, b"expect") is None:
            await _discard(exchange, receive)
        raise _too_large(f"{declared} bytes", limit)
    try:
        async with asyncio.timeout(seconds):
            return await _collect(exchange, receive, limit)
    except TimeoutError:
        exchange.close = True
        raise BodyTimeout(f"the body did not arrive within {seconds:g} s", limit_seconds=seconds) from None


async def _collect(exchange: Exchange, receive: Receive, limit: int) -> bytes | bytearray:
    body: bytes | bytearray
    body, more = await _next(receive)
    if more:
        body = bytearray(body)
        while more and len(body) <= limit:
            part, more = await _next(receive)
            body += part
    exchange.body_read = not more
    if len(body) > limit:
        if more:
            await _discard(exchange, receive)
        raise _too_large(f"more than {limit} bytes" if more else f"{len(body)} bytes", limit)
    return body


async def _next(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientClosedRequest("the client left while it sent its body")
    return message.get("body", b""), message.get("more_body", False)


async def _discard(exchange: Exchange, receive: Receive) -> None:
    """Takes in some more, so that a client which only reads once it has written gets to read the refusal."""
    left, more = DISCARDED, True
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            while more and left > 0:
                part, more = await _next(receive)
                left -= len(part)
    except TimeoutError:
        more = True
    exchange.body_read = not more
    exchange.close = more


def _declared(scope: Scope) -> int | None:
    length = header(scope, b"content-length")
    return int(length) if length is not None and length.isdigit() else None


def _too_large(size: str, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the body has {size}, the limit is {limit} (ATTENTION_MAX_BODY_BYTES); "
        "float16 or float32 in application/x-npz takes the least room",
        limit=limit,
    )
