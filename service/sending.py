"""What was written to a connection, and how far the system has taken it."""

from __future__ import annotations

import asyncio

LARGE = 1 << 16
"""Bytes of an answer from which on a part of it may have to wait."""
SENDING = "attention.sending"
"""In the scope of a request: the `Sending` of its connection."""


class Sending:
    """Belongs to one connection, whose protocol tells it. A few kilobytes that wait count as taken."""

    __slots__ = ("_over", "_transport", "broken", "lost", "unsent", "waiting")

    def __init__(self, transport: asyncio.Transport | None = None) -> None:
        self._transport = transport
        self.waiting = False
        """Whether more waits than the transport likes to keep."""
        self.lost = False
        """Whether nobody can be written to any more."""
        self.broken = False
        """Whether that was found out when it was tried, rather than told by the client."""
        self.unsent = 0
        """Bytes that waited when last looked at, while some wait or where the client left before they were taken."""
        self._over: asyncio.Event | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing more is taken."""
        return self.lost or (self._transport is not None and self._transport.is_closing())

    def waits(self, unsent: int) -> None:
        """So many bytes wait."""
        self.waiting, self.unsent = True, unsent

    def taken(self) -> None:
        """All that was written."""
        self.waiting, self.unsent = False, 0
        self._tell()

    def lose(self, *, broken: bool) -> None:
        """The connection is no more."""
        self.waiting, self.lost, self.broken, self._transport = False, True, broken, None
        self._tell()

    async def settled(self) -> None:
        """Returns when nothing waits, or nobody is there to take it."""
        while self.waiting:
            self._over = self._over or asyncio.Event()
            await self._over.wait()

    async def over(self, size: int, last: int) -> int:
        """Settled, how many of the `size` bytes of an answer that was written, of which `last` came in one piece at its
        end, were not taken, as far as that is known.
        """
        if size >= LARGE:
            await asyncio.sleep(0)  # what failed at once is told then
        await self.settled()
        if not self.lost or size < LARGE:
            return 0
        return min(size, self.unsent or (last if self.broken else 0))

    def _tell(self) -> None:
        if self._over is not None:
            self._over.set()
            self._over = None
