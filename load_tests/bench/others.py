"""How much of the machine was used by whoever takes no part in a measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil  # type: ignore[import-untyped]

from load_tests.bench.contenders import CORES
from load_tests.bench.processes import Server


class Share:
    """Of all cores, from 0 to 1; known once the measurement is over. What the kernel itself spends is nobody's."""

    value: float = 0.0


@contextmanager
def watching(server: Server) -> Iterator[Share]:
    """Counts all time on cores but that of the server's processes, of this one and of the clients it has waited for."""
    share = Share()
    began, whole, part = time.monotonic(), _whole(), _part(server)
    yield share
    spent = (_whole() - whole) - (_part(server) - part)
    share.value = max(0.0, spent / (CORES * (time.monotonic() - began)))


def _whole() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _part(server: Server) -> float:
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for process in server.processes():
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total
