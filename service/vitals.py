"""What one process takes of the machine: memory, time, open files, garbage collections."""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress
from pathlib import Path

GENERATIONS = range(3)
SELF = Path("/proc/self")


def known() -> bool:
    """Whether this system tells."""
    return (SELF / "stat").exists()


def memory() -> tuple[int, int]:
    """Bytes of address space, and of those that are resident."""
    page = os.sysconf("SC_PAGE_SIZE")
    size, resident = (SELF / "statm").read_text().split()[:2]
    return int(size) * page, int(resident) * page


def open_files() -> int:
    return len(os.listdir(SELF / "fd"))


def most_files() -> float:
    """The limit on open files."""
    for line in (SELF / "limits").read_text().splitlines():
        if line.startswith("Max open files"):
            with suppress(ValueError):
                return float(line.split()[3])
    return float("inf")


def began() -> float:
    """Seconds since 1970 at which this process began."""
    fields = (SELF / "stat").read_text().rpartition(")")[2].split()
    ticks = float(fields[19]) / os.sysconf("SC_CLK_TCK")
    boot = next(
        float(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
    )
    return boot + ticks


def cpu_seconds() -> float:
    """Of this process, all its threads."""
    return time.process_time()


def collections() -> list[float]:
    """Objects collected, objects that could not be, and collections; each for the three generations in turn."""
    stats = gc.get_stats()
    return [float(stats[i][name]) for name in ("collected", "uncollectable", "collections") for i in GENERATIONS]
