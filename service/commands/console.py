"""What a terminal can show; a pipe gets plain text, as wide as it needs to be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

UNBOUNDED = 10_000
"""Columns of a file."""


def output() -> Console:
    """Standard output: colours on a terminal that has them, unless NO_COLOR is set."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=UNBOUNDED)
    return console


def coloured(console: Console) -> bool:
    """Sixteen colours are too few to tell weights apart."""
    return console.color_system in ("256", "truecolor") and not console.no_color


def show(console: Console, *shown: RenderableType) -> None:
    """Prints; a file gets no blanks at the ends of lines."""
    if console.is_terminal:
        console.print(*shown, sep="")
        return
    with console.capture() as text:
        console.print(*shown, sep="")
    console.file.write("".join(line.rstrip() + "\n" for line in text.get().splitlines()))


@contextmanager
def working(doing: str) -> Iterator[None]:
    """Shows, on a terminal, that something goes on, and for how long it has; nothing stays of it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(doing, total=None)
        yield
