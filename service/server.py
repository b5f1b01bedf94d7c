"""The HTTP server: uvicorn, which at SIGTERM first lets everything finish that it has taken."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn

from service.lifecycle import Lifecycle
from service.settings import Settings
from service.siblings import Siblings

logger = logging.getLogger(__name__)

NOTICE = 0.25
"""Seconds at least between refusing work and closing the door: whoever asks after readiness learns of it, and idle
connections that are just sending a request get an answer that tells them to go elsewhere."""
COLLECT = (10_000, 20, 20)
"""When the garbage collector looks at objects: after so many more of them, at older ones after so many looks."""
NEAR = 1 << 17
"""Bytes that wait in the send buffer of a connection over the loopback interface. The system's own choice, made for
far ends, grows to megabytes: what the reader copies has then left the cache. 1 MB answers cost 0.7 of the processor
time with this, writer and reader together."""
LAST_MOMENT = 0.05
"""Seconds for the first bytes of a connection that was accepted just before the door closed."""


class PortTaken(Exception):
    """The address cannot be listened on; the message says why."""


class Server(uvicorn.Server):
    """Drains before it shuts down: while requests are under way it goes on accepting connections, so that health checks
    see it is not ready and new work is refused in words rather than by a reset.

    `announce` is called once it listens. With `lifeline`, a file descriptor, it is one of several: it ends when that
    reads as ended, and leaves SIGINT to the supervisor. Connections that `siblings` hand on are taken over until no
    more are accepted.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        lifecycle: Lifecycle,
        drain_seconds: float,
        announce: Callable[[], None],
        lifeline: int | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        super().__init__(config)
        self.lifecycle = lifecycle
        self.drain_seconds = drain_seconds
        self.announce = announce
        self.lifeline = lifeline
        self.siblings = siblings
        self.drained = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, a second one ends without waiting. Neither is raised again afterwards, as uvicorn
        would: the exit code is ours."""
        if self.lifeline is not None and sig == signal.SIGINT:
            return
        if self.should_exit:
            self.force_exit = True
        self._end()

    def _end(self) -> None:
        self._drain()
        self.should_exit = True

    def _drain(self) -> None:
        self.lifecycle.drain()
        if self.siblings is not None:
            self.siblings.leave()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.lifeline is not None:
            asyncio.get_running_loop().add_reader(self.lifeline, self._orphaned)
        await super().startup(sockets)
        if self.siblings is not None:
            self.siblings.begin(self._adopted)
        _settle()
        self.announce()

    def _adopted(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            adopted=True,  # type: ignore[call-arg]
        )
        return protocol

    def _orphaned(self) -> None:
        assert self.lifeline is not None
        asyncio.get_running_loop().remove_reader(self.lifeline)
        self._end()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._drain()
        await asyncio.sleep(NOTICE)
        self.drained = await self._idle(self.drain_seconds)
        for server in self.servers:
            server.close()
        if self.siblings is not None:
            self.siblings.end(self._adopted)
        if self.drained:  # what was accepted in the last moment still gets its refusal
            await asyncio.sleep(LAST_MOMENT)
            await self._idle(1.0)
        await super().shutdown(sockets)

    async def _idle(self, timeout: float) -> bool:
        waited = 0.0
        while self.lifecycle.inflight and waited < timeout and not self.force_exit:
            await asyncio.sleep(0.01)
            waited += 0.01
        return not self.lifecycle.inflight


def _settle() -> None:
    """What is there now stays; a request leaves next to nothing to the collector, which else would take a tenth of the
    time looking for it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT)


SPREADS = sys.platform == "linux"
"""Whether the system spreads connections over the sockets of one port."""


def bind(settings: Settings, *, together: bool = False) -> socket.socket:
    """The socket to listen on, taken before any model is read. Raises PortTaken.

    With `together`, others may `join` it; nobody else may have the port all the same.
    """
    alone = _bind(settings.host, settings.port, together=False)
    if not (together and SPREADS):
        return alone
    port = alone.getsockname()[1]
    alone.close()
    return _bind(settings.host, port, together=True)


def join(bound: socket.socket) -> socket.socket:
    """A socket of its own at the same address: its connections go when it goes, and no other waits for them."""
    if not SPREADS:
        return bound
    host, port = bound.getsockname()[:2]
    return _bind(host, port, together=True)


def _bind(host: str, port: int, *, together: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if together:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if _near(host):
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR)
    try:
        taken.bind((host, port))
    except OSError as error:
        taken.close()
        raise PortTaken(
            f"cannot listen on {host}:{port}: {error.strerror or error}. "
            "Choose another with ATTENTION_PORT (0 takes a free one) or ATTENTION_HOST."
        ) from error
    return taken


SPARE = 256
"""File descriptors for everything but connections."""


def descriptors(connections: int, others: int = 0) -> int:
    """Makes room for so many connections in this process, and for other files that are many; returns how many
    connections it has room for."""
    if sys.platform == "win32":
        return connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + others + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    room = max(1, soft - others - SPARE)
    logger.warning(
        "the system allows %d open files: at most %d connections are taken (ATTENTION_CONNECTIONS)", soft, room
    )
    return room


def _near(host: str) -> bool:
    """Whether all who can connect there are on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
