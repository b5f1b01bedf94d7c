"""Standard error, as a service writes to it that answers whether anybody reads its log or not."""

from __future__ import annotations

import io
import logging
import os
import select

logger = logging.getLogger(__name__)

PIECE = 4096
"""Bytes that a pipe which has room takes at once (PIPE_BUF)."""


class StandardError(io.TextIOBase):
    """Writes to a file descriptor, at once, and never fails, nor waits: what cannot be written (the disk is full, the
    pipe is closed or full, for its reader does not read) is lost. How many writes were is logged by the first one that
    succeeds again.
    """

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self.lost = 0
        try:
            os.fstat(descriptor)
        except OSError:
            # It was closed before the start: what is opened next would have its number.
            self._descriptor = os.open(os.devnull, os.O_WRONLY)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        left = memoryview(text.encode("utf-8", "backslashreplace"))
        try:
            while left:
                if not self._room():
                    raise BlockingIOError
                left = left[os.write(self._descriptor, left[:PIECE]) :]
        except OSError:
            self.lost += 1
            return len(text)
        if self.lost:
            lost, self.lost = self.lost, 0
            logger.warning("%d writes to the log were lost: its disk was full, or its reader did not read", lost)
        return len(text)

    def _room(self) -> bool:
        """Whether a piece is taken at once. Without `poll` nobody knows."""
        if not hasattr(select, "poll"):
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(0))
