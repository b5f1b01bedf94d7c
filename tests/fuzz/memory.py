"""Whether reading bodies leaves anything behind: all of a corpus, round after round."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

WARM_UP = 2
"""Rounds after which every cache has what this corpus leaves in it."""

MOST_TRACED = 128 << 10
"""Bytes that Python may have more after all rounds, however many: objects that it keeps for reuse, up to a number."""
MOST_RESIDENT = 16 << 20


@dataclass(frozen=True)
class Growth:
    """From the first measured round to the last, in bytes: what Python allocated, and what the process has."""

    rounds: int
    traced: int
    resident: int

    @property
    def flat(self) -> bool:
        return self.traced <= MOST_TRACED and self.resident <= MOST_RESIDENT


def growth(target: Callable[[bytes], None], corpus: Sequence[bytes], seconds: float) -> Growth:
    """As many rounds as fit into the time, two at least."""
    process = psutil.Process()
    for _ in range(WARM_UP):
        _round(target, corpus)
    tracemalloc.start()
    try:
        _round(target, corpus)
        traced, resident = _traced(), process.memory_info().rss
        began, done = time.monotonic(), 0
        while done < 2 or time.monotonic() - began < seconds:
            _round(target, corpus)
            done += 1
        return Growth(done, _traced() - traced, process.memory_info().rss - resident)
    finally:
        tracemalloc.stop()


def _round(target: Callable[[bytes], None], corpus: Sequence[bytes]) -> None:
    for data in corpus:
        target(data)


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
