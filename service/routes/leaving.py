"""Clients that leave before their answer is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import TracebackType
from typing import Any, cast
from weakref import WeakKeyDictionary

from starlette.types import Message, Receive

from service.errors import ClientClosedRequest

PATIENCE = 0.02
"""Seconds before anybody looks whether the client is still there, and between two looks: most answers are ready by
then."""


def arrived(receive: Receive) -> Message | None:
    """The next message if it is there already."""
    asked = receive().__await__()
    try:
        next(asked)
    except StopIteration as found:
        message: Message = found.value
        return message
    cast("Generator[Any, Any, Any]", asked).close()
    return None


class Watch:
    """Looks after the requests of an event loop that take long: one timer for all, none while there are none."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Leaving, float] = {}
        self._armed = False

    def add(self, one: Leaving) -> None:
        self._waiting[one] = self._loop.time()
        if not self._armed:
            self._arm()

    def discard(self, one: Leaving) -> None:
        self._waiting.pop(one, None)

    def _arm(self) -> None:
        self._armed = True
        self._loop.call_later(PATIENCE, self._look)

    def _look(self) -> None:
        self._armed = False
        late = self._loop.time() - PATIENCE
        for one, since in list(self._waiting.items()):
            if since > late:
                break  # in the order of their arrival
            one.look()
        if self._waiting:
            self._arm()


_WATCHES: WeakKeyDictionary[asyncio.AbstractEventLoop, Watch] = WeakKeyDictionary()


class Leaving:
    """`with Leaving(receive): ...` cancels what is awaited inside when the client leaves, and raises
    ClientClosedRequest. The body must have been read before."""

    __slots__ = ("__weakref__", "_left", "_receive", "_task", "_watch")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._task = task
        watch = _WATCHES.get(loop)
        if watch is None:
            watch = _WATCHES[loop] = Watch(loop)
        self._watch = watch
        watch.add(self)

    def look(self) -> None:
        message = arrived(self._receive)
        if message is not None and message["type"] == "http.disconnect":
            self._watch.discard(self)
            self._left = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watch.discard(self)
        if self._left and kind is asyncio.CancelledError:
            self._task.uncancel()
            raise ClientClosedRequest("the client left before its answer was ready") from None
