"""`session.run` and nothing else: no HTTP, no checks, the same arrays again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

Feeds = Mapping[str, np.ndarray[Any, Any]]


def throughput(session: Any, feeds: Feeds, threads: int, seconds: float) -> float:
    """Runs a second of one session in so many threads, a tenth of the time before them not counted."""
    counts = [0] * threads
    begun, over = threading.Event(), threading.Event()

    def loop(index: int) -> None:
        while not over.is_set():
            session.run(None, feeds)
            counts[index] += begun.is_set()

    workers = [threading.Thread(target=loop, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    time.sleep(seconds / 10)
    begun.set()
    start = time.perf_counter()
    time.sleep(seconds)
    over.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - start)


def milliseconds(session: Any, feeds: Feeds, seconds: float) -> float:
    """The median time of a run, of at least 3 after one that is not counted."""
    session.run(None, feeds)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3
