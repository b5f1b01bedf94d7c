"""Memory that a process needed and needs no more: given back to the system once it has had less to do for a while."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from service import vitals

logger = logging.getLogger(__name__)

LOOKS = 10
"""Looks in a row, a second apart, that must find little to do."""
LESS = 4
"""Little is a run of at most the largest one's cells, since memory was last given back, divided by this."""
WORTH = 32 << 20
"""Bytes that a process must have come to hold since then: less is not worth it, and may be what it keeps to use."""
AGE = 60
"""Looks from one sweep of what is kept to the next: what nobody asks for from one to the next goes."""


class Reclaim:
    """Belongs to one event loop. onnxruntime's arena keeps what the largest runs needed, and the C library what was
    freed; both would for ever. Asked for at each run they would be given back only to be taken again, which costs more
    than the run.
    """

    def __init__(
        self,
        largest: Callable[[], int],
        give_back: Callable[[], Awaitable[None]],
        sweeps: Sequence[Callable[[], object]] = (),
        resident: Callable[[], int] = lambda: vitals.memory()[1],
    ) -> None:
        """`largest` says of how many cells the largest run was that was made since it was last asked, or is made now;
        `give_back` returns memory to the system; `sweeps` drop what has not been used since they were last called.
        `resident` are the bytes that the process holds. What it holds now it keeps.
        """
        self._largest_run = largest
        self._give_back = give_back
        self._sweeps = sweeps
        self._resident = resident
        self._recent: deque[int] = deque(maxlen=LOOKS)
        self._largest = 0
        self._held = resident()
        self._until_sweep = AGE

    async def look(self) -> None:
        """To be called once a second."""
        self._until_sweep -= 1
        if not self._until_sweep:
            self._until_sweep = AGE
            for sweep in self._sweeps:
                sweep()
        self._recent.append(self._largest_run())
        self._largest = max(self._largest, self._recent[-1])
        if len(self._recent) < LOOKS or max(self._recent) * LESS > self._largest:
            return
        holds = self._resident()
        if holds < self._held + WORTH:
            # What went without being asked to is no longer what it holds to use.
            self._held = min(self._held, holds)
            return
        began = time.monotonic()
        await self._give_back()
        self._held, self._largest = self._resident(), max(self._recent)
        self._recent.clear()
        logger.debug(
            "%d MB given back in %.0f ms, %d MB are left",
            (holds - self._held) / 1e6,
            (time.monotonic() - began) * 1e3,
            self._held / 1e6,
        )
