"""How large a run of several jobs may become."""

from __future__ import annotations

from typing import NamedTuple


class Share(NamedTuple):
    """The most jobs that share a run, and the most cells."""

    jobs: int
    cells: int


ALONE = Share(1, 0)
