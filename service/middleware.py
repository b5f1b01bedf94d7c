"""Around every request: its id, its time, its place in the metrics, and a problem document where it fails."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from service import leftover
from service.errors import (
    ClientClosedRequest,
    Crowded,
    Draining,
    MalformedRequest,
    MethodNotAllowed,
    ModelGone,
    NotReady,
    Overloaded,
    ServiceError,
    Unauthorized,
)
from service.exchange import Exchange, header
from service.keys import Keys
from service.lifecycle import Lifecycle
from service.outgoing import Outgoing
from service.sending import SENDING
from service.telemetry import Telemetry
from service.wire import media, problem

logger = logging.getLogger(__name__)

CROWDED = "attention.crowded"
"""In the scope of a request over a connection too many."""
UPGRADE = "attention.upgrade"
"""In the scope of a request whose body cannot be read, as it asks for another protocol."""
SPARED = frozenset({"/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready", "/metrics"})
"""Answered over such a connection too: a process that has many connections needs no other to take its place."""

Headers = list[tuple[bytes, bytes]]


class Door(Protocol):
    """An application that answers every path under a prefix, and tells of failures in its own way."""

    def endpoint(self, path: str) -> str:
        """The route template of a path, for the metrics."""

    def failure(self, error: ServiceError) -> tuple[int, str, bytes]:
        """The status, content type and body that tell of it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Observed:
    """Around `app`, or around what it serves itself: `direct`, endpoints by method and path, and `doors`, by the first
    part of their paths. `endpoint` gives the route template of a path, for the metrics.
    Without `keys` nobody needs one.
    """

    def __init__(
        self,
        app: ASGIApp,
        telemetry: Telemetry,
        lifecycle: Lifecycle,
        endpoint: Callable[[str], str],
        direct: Mapping[tuple[str, str], ASGIApp] | None = None,
        doors: Mapping[str, Door] | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.app = app
        self.direct = direct or {}
        self.doors = doors or {}
        self.keys = keys
        self.telemetry = telemetry
        self.lifecycle = lifecycle
        self.endpoint = endpoint

    def serves(self, scope: Scope) -> bool:
        """Whether this is a request for one of `direct` or `doors`."""
        if scope["type"] != "http":
            return False
        return (scope["method"], scope["path"]) in self.direct or self._door(scope["path"]) is not None

    def _door(self, path: str) -> Door | None:
        return self.doors.get("/" + path[1:].partition("/")[0])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        app = self.direct.get((scope["method"], path))
        door = None if app is not None else self._door(path)
        app = app or door or self.app
        exchange = Exchange.begin(scope, door.endpoint(path) if door is not None else self.endpoint(path))
        head = scope["method"] == "HEAD" and door is None
        inner = {**scope, "method": "GET"} if head else scope
        answer = Outgoing(exchange, self.lifecycle, scope.get(SENDING), send, body=not head)
        lingers = False

        self.lifecycle.inflight += 1
        self.telemetry.began(exchange.endpoint)
        try:
            if CROWDED in scope and path not in SPARED:
                raise crowded()
            if UPGRADE in scope:
                raise MalformedRequest(
                    "a request that asks for another protocol (Upgrade) has no body here; send it without that header, "
                    "as curl does with --http1.1",
                    pointer="header:Upgrade",
                )
            if self.keys is not None:
                self.keys.check(path, scope["headers"])
            await app(inner, receive, answer.send)
            await answer.over()
        except ServiceError as error:
            lingers = await self._fail(error, exchange, scope, None if answer.started else answer.send, door)
        except asyncio.CancelledError:
            exchange.status, exchange.reason = ClientClosedRequest.status, ClientClosedRequest.reason
            raise
        except Exception:
            logger.exception("request %s failed", exchange.request_id)
            failure = ServiceError(f"the service failed on this request; its log says why under {exchange.request_id}")
            if answer.started:  # the server must cut the answer short: nothing else tells the client
                exchange.reason = failure.reason
                raise
            lingers = await self._fail(failure, exchange, scope, answer.send, door)
        finally:
            exchange.let_go()
            now = time.perf_counter()
            self.telemetry.finished(exchange, now - exchange.began)
            try:
                if lingers:
                    await self._linger(exchange, receive, send)
            finally:
                self.lifecycle.inflight -= 1

    async def _fail(
        self,
        error: ServiceError,
        exchange: Exchange,
        scope: Scope,
        send: Send | None,
        door: Door | None,
    ) -> bool:
        """Tells of it. Returns whether the answer has still to be ended, after a body that comes was taken in."""
        exchange.fails(error.status, error.reason)
        if send is None or isinstance(error, ClientClosedRequest):
            return False
        # A client that asked leave to send its body, and never got it, may or may not send it now.
        exchange.close |= not exchange.body_read and header(scope, b"expect") is not None
        if door is not None:
            status, kind, content = door.failure(error)
        else:
            status, kind, content = error.status, media.PROBLEM, problem.encode(error, exchange.request_id)
        headers, lingers = refusing(error, kind, content), self._lingers(exchange, scope)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        content = b"" if scope["method"] == "HEAD" else content
        await send({"type": "http.response.body", "body": content, "more_body": lingers})
        return lingers

    def _lingers(self, exchange: Exchange, scope: Scope) -> bool:
        """Whether a body comes that nobody reads, and the connection is closed after the answer. (Where it is kept, the
        protocol reads on.)
        """
        if exchange.body_read or exchange.close or not _has_body(scope):
            return False
        asked = scope["http_version"] == "1.0" or "close" in (header(scope, b"connection") or "").lower()
        return self.lifecycle.draining or asked

    async def _linger(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """The answer is written: takes the body in, and ends the answer, which closes the connection."""
        try:
            await leftover.discard(exchange, receive, 1.0 if self.lifecycle.draining else leftover.SECONDS)
        except ClientClosedRequest:
            return
        await send({"type": "http.response.body", "body": b""})


def crowded() -> Crowded:
    return Crowded(
        "this process has as many connections as it takes (ATTENTION_CONNECTIONS); close those that are not used, or "
        "try again: another process or another replica may have room"
    )


def refusing(error: ServiceError, kind: str, content: bytes) -> Headers:
    """The headers of an answer that tells of it, as this content of this type."""
    return [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"),
        *_advice(error),
    ]


def _has_body(scope: Scope) -> bool:
    return header(scope, b"transfer-encoding") is not None or (header(scope, b"content-length") or "0") != "0"


def _advice(error: ServiceError) -> Headers:
    match error:
        case Overloaded():
            return [(b"retry-after", str(max(1, math.ceil(error.retry_after))).encode())]
        case Draining() | NotReady() | ModelGone() | Crowded():
            return [(b"retry-after", b"1")]
        case Unauthorized():
            return [(b"www-authenticate", error.challenge.encode())]
        case MethodNotAllowed():
            return [(b"allow", ", ".join(error.allowed).encode())]
        case _:
            return []
