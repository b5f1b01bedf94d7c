"""Request bodies off the wire: bounded in bytes and in time."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope

from service.errors import BodiesPending, BodyTimeout, ClientClosedRequest, PayloadTooLarge, UnsupportedMediaType
from service.exchange import Exchange, header
from service.routes.leaving import arrived

TOGETHER = 16
"""All bodies that are arriving at a process may have so many times the bytes that one may have."""


class Arriving:
    """Bytes of the bodies of which a part has come, in one process."""

    def __init__(self) -> None:
        self.held = 0

    def take(self, count: int, limit: int) -> None:
        """Raises BodiesPending where they would be too many; nothing is taken then."""
        if self.held + count > TOGETHER * limit:
            raise BodiesPending(
                f"{self.held} bytes of bodies that have not come in full are kept already, the limit is "
                f"{TOGETHER * limit}, {TOGETHER} times ATTENTION_MAX_BODY_BYTES; try again",
                retry_after=1.0,
                limit=TOGETHER * limit,
            )
        self.held += count


arriving = Arriving()


async def read(scope: Scope, receive: Receive, limit: int, seconds: float, *, coded: bool = False) -> bytes | bytearray:
    """The whole body. Raises PayloadTooLarge, BodyTimeout, BodiesPending, UnsupportedMediaType, ClientClosedRequest.

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
    length = declared(scope)
    if length is not None and length > limit:
        raise too_large(f"{length} bytes", limit)
    # Most bodies come with their headers, and a timer costs more than a look.
    message = arrived(receive)
    if message is not None and message["type"] == "http.request" and not message.get("more_body", False):
        exchange.body_read = True
        content: bytes = message.get("body", b"")
        if len(content) > limit:
            raise too_large(f"{len(content)} bytes", limit)
        return content
    try:
        async with asyncio.timeout(seconds):
            return await _collect(exchange, receive, limit, message)
    except TimeoutError:
        exchange.close = True
        raise too_slow(seconds) from None


async def _collect(exchange: Exchange, receive: Receive, limit: int, first: Message | None = None) -> bytes | bytearray:
    part, more = _content(first or await receive())
    body, held = bytearray(), 0
    try:
        while more and len(body) + len(part) <= limit:
            arriving.take(len(part), limit)
            held += len(part)
            body += part
            part, more = _content(await receive())
    finally:
        arriving.held -= held
    exchange.body_read = not more
    if len(body) + len(part) > limit:
        size = len(body) + len(part)
        raise too_large(f"more than {limit} bytes" if more else f"{size} bytes", limit)
    if not body:
        return part
    body += part
    return body


def _content(message: Message) -> tuple[bytes, bool]:
    if message["type"] == "http.disconnect":
        raise ClientClosedRequest("the client left while it sent its body")
    return message.get("body", b""), message.get("more_body", False)


def declared(scope: Scope) -> int | None:
    """Bytes of the body, where its head says how many there will be."""
    length = header(scope, b"content-length")
    return int(length) if length is not None and length.isdigit() else None


def too_slow(seconds: float) -> BodyTimeout:
    return BodyTimeout(f"the body did not arrive within {seconds:g} s (ATTENTION_BODY_SECONDS)", limit_seconds=seconds)


def too_large(size: str, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the body has {size}, the limit is {limit} (ATTENTION_MAX_BODY_BYTES); "
        "float16 or float32 in application/x-npz takes the least room",
        limit=limit,
    )
