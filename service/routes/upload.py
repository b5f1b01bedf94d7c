"""Request bodies off the wire: bounded in bytes and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from starlette.types import Message, Receive, Scope

from service.errors import BodiesPending, BodyTimeout, ClientClosedRequest, PayloadTooLarge, UnsupportedMediaType
from service.exchange import Exchange, header
from service.routes.leaving import arrived

TOGETHER = 16
"""All bodies of a process, those that are arriving and those of requests that wait for their answer, may have so many
times the bytes that one may have."""
LEAST = 64 << 20
"""And so many at the least, those that came in full: where no body may be large there are many."""
LIGHT = 1 << 12
"""Bytes of a body that came in full and is not counted: there are as many as there are connections at most."""


class Arriving:
    """Bytes of the bodies in one process: `held` of those of which a part has come, `whole` of those whose requests are
    under way. Where these wait to be computed their cells count, and few cells may have very wide vectors.
    """

    def __init__(self) -> None:
        self.held = 0
        self.whole = 0

    def take(self, count: int, limit: int) -> None:
        """More of one that arrives. Raises BodiesPending where they would be too many; nothing is taken then."""
        if self.held + count > TOGETHER * limit:
            raise _pending(f"{self.held} bytes of bodies that have not come in full", TOGETHER * limit)
        self.held += count

    def keep(self, count: int, limit: int) -> Callable[[], None] | None:
        """One that has come in full, until its request is done with it: what is to be called then, once, if anything.
        One is kept whatever its size. Raises BodiesPending.
        """
        if count < LIGHT:
            return None
        most = max(LEAST, TOGETHER * limit)
        if self.whole and self.whole + self.held + count > most:
            raise _pending(f"{self.whole + self.held} bytes of bodies", most)
        self.whole += count
        return partial(self._release, count)

    def _release(self, count: int) -> None:
        self.whole -= count


def _pending(what: str, limit: int) -> BodiesPending:
    return BodiesPending(
        f"{what} are kept already, the limit is {limit}, by ATTENTION_MAX_BODY_BYTES; try again",
        retry_after=1.0,
        limit=limit,
    )


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
        exchange.claim = arriving.keep(len(content), limit)
        return content
    try:
        async with asyncio.timeout(seconds):
            body = await _collect(exchange, receive, limit, message)
    except TimeoutError:
        exchange.close = True
        raise too_slow(seconds) from None
    exchange.claim = arriving.keep(len(body), limit)
    return body


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
        "float16 in npy, npz or safetensors takes the least room, float32 twice as much and JSON the most; else send "
        "fewer tokens, or a part of the rows",
        limit=limit,
    )
