"""Tasks of requests whose answers take longer than a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from service.lifecycle import Lifecycle


class Kept:
    """Belongs to one event loop. The server does not end before they do."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the event loop itself holds them weakly
        self._lifecycle.inflight += 1
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._lifecycle.inflight -= 1
