"""Clients that leave before their answer is ready."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.types import Receive

from service.errors import ClientClosedRequest

PATIENCE = 0.02
"""Seconds before anybody looks whether the client is still there: most answers are ready by then."""


class Leaving:
    """`async with Leaving(receive): ...` cancels what is awaited inside when the client leaves, and raises
    ClientClosedRequest. The body must have been read before."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = False
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer = loop.call_later(PATIENCE, self._look)

    def _look(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._left and kind is asyncio.CancelledError:
            self._task.uncancel()
            raise ClientClosedRequest("the client left before its answer was ready") from None
