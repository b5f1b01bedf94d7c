"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

GROUPS, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Those of its CPU set, and no more than the quotas of its control groups are worth; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError):
        return max(1, int(min(cores, quota(GROUPS.read_text(), MOUNT))))
    return cores


def quota(groups: str, mount: Path) -> float:
    """How many cores' time the control groups of a process let it have, infinity where they set no limit. `groups` says
    which these are, as `/proc/self/cgroup` does; they are mounted at `mount`. A group has no more than those around it.
    """
    return min((_of(folder) for folder in _folders(groups, mount)), default=math.inf)


def _folders(groups: str, mount: Path) -> Iterator[Path]:
    """In a container the path may be that of the machine, while what is mounted begins with the container's own
    group: then some of these are not there.
    """
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Above what is mounted there is nothing to be read.
        inside = PurePosixPath() if ".." in path else PurePosixPath(path).relative_to("/")
        for root in (mount / controllers, mount / "cpu", mount) if controllers else (mount, mount / "unified"):
            yield from (root / part for part in (inside, *inside.parents))


def _of(folder: Path) -> float:
    """What one group says, in the words of either version of control groups."""
    with suppress(OSError, ValueError):
        most, period = (folder / "cpu.max").read_text().split()
        return int(most) / int(period) if most != "max" else math.inf
    with suppress(OSError, ValueError):
        most = (folder / "cpu.cfs_quota_us").read_text()
        return int(most) / int((folder / "cpu.cfs_period_us").read_text()) if int(most) > 0 else math.inf
    return math.inf
