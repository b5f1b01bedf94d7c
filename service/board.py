"""Numbers that several processes write and each of them can read."""

from __future__ import annotations

import mmap

import numpy as np
from jaxtyping import Float64

COLUMNS = 1 << 16
"""Pages of columns that nobody takes are never backed by memory."""


class Board:
    """Columns of float64 in memory that forked processes share, with a row for each process.

    Columns are taken before a process is forked, so that they mean the same in all. A process writes to its own row
    only, so nothing is locked between processes; one that takes the row of a dead one goes on from its numbers.
    """

    def __init__(self, processes: int = 1) -> None:
        self._memory = mmap.mmap(-1, processes * COLUMNS * 8)
        self._rows: Float64[np.ndarray, "processes columns"] = np.frombuffer(self._memory).reshape(processes, COLUMNS)
        self.taken = 0
        """Columns that are somebody's, the first ones."""
        self.enter(0)

    @property
    def processes(self) -> int:
        return len(self._rows)

    def enter(self, process: int) -> None:
        """From now on this process writes to that row."""
        self.process = process
        self.row: memoryview[float] = memoryview(self._memory).cast("d")[process * COLUMNS : (process + 1) * COLUMNS]

    def take(self, count: int) -> int:
        """The first of so many columns that are nobody else's, all 0. Raises ValueError where there are no more."""
        first = self.taken
        if first + count > COLUMNS:
            raise ValueError(f"{first + count} columns are wanted, there are {COLUMNS}")
        self.taken += count
        return first

    def totals(self) -> Float64[np.ndarray, " columns"]:
        """Over all processes, of the columns that are taken."""
        total: Float64[np.ndarray, " columns"] = self._rows[:, : self.taken].sum(axis=0)
        return total

    def column(self, column: int) -> Float64[np.ndarray, " processes"]:
        """What each process has written there."""
        return self._rows[:, column].copy()

    def columns(self, first: int, count: int) -> list[list[float]]:
        """What each process has written in so many columns."""
        found: list[list[float]] = self._rows[:, first : first + count].tolist()
        return found

    def erase(self, process: int, first: int, count: int) -> None:
        """Sets columns of a process that is dead to 0."""
        self._rows[process, first : first + count] = 0
