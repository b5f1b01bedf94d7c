"""What is wrong with a checkpoint, or with what was asked of it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 8


class CheckpointError(Exception):
    """A checkpoint that cannot be imported; the message says what was looked for and what is there."""


def some(names: Iterable[str]) -> str:
    """A few of the names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(names[:SHOWN]) or "nothing") + more


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The names most like it; of a checkpoint's thousands the last parts decide."""
    return get_close_matches(name, list(names), n=SHOWN, cutoff=0.5)
