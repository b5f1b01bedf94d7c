"""The time by which a request must be answered."""

from __future__ import annotations

import time

from service.errors import DeadlineExceeded

SETTING = "ATTENTION_DEADLINE_SECONDS"


class Deadline(float):
    """A time of `time.monotonic` that knows how long after a request's arrival it is, and what set it."""

    __slots__ = ("limit", "seconds")

    seconds: float
    limit: str

    @classmethod
    def after(cls, seconds: float, *, arrived: float | None = None, limit: str = SETTING) -> Deadline:
        """So many seconds after `arrived`, or now; `limit` names what says so."""
        deadline = cls((time.monotonic() if arrived is None else arrived) + seconds)
        deadline.seconds, deadline.limit = seconds, limit
        return deadline


def told(deadline: float) -> str:
    """How a client is told of its deadline."""
    if isinstance(deadline, Deadline):
        seconds = f"{deadline.seconds:.6f}".rstrip("0").rstrip(".")  # clients give it in microseconds
        return f"its deadline, {seconds} s after it came ({deadline.limit})"
    return "its deadline"


def exceeded(deadline: float, progress: str) -> DeadlineExceeded:
    """`progress` says how far the request had come."""
    return DeadlineExceeded(f"not answered by {told(deadline)}: {progress}")
