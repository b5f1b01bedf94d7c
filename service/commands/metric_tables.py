"""Metrics as tables: of each encoding, and between each and the reference."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich import box
from rich.table import Table

from service.client import RECORD
from service.commands.inputs import STDIN

Records = Sequence[Mapping[str, Any]]

NUMBER, GAP = 9, 3
"""Characters of the widest number, and between two columns."""


def means(records: Records, width: int) -> Iterator[Table]:
    """The mean over heads (and the batch) of each metric, an encoding a column; several tables where one would be wider
    than `width`.
    """
    summaries = [record for record in records if record["reference"] is None]
    pairs = [record for record in records if record["reference"] is not None]
    yield from _tables("metric, mean of heads", "encoding", summaries, width)
    if pairs:
        yield from _tables(f"compared with {pairs[0]['reference']}", "encoding", pairs, width)


def heads(records: Records, width: int) -> Iterator[Table]:
    """Each metric of each head (mean of the batch), a head a column, tables for each encoding and pair."""
    for encoding, reference in dict.fromkeys((record["encoding"], record["reference"]) for record in records):
        own = [r for r in records if (r["encoding"], r["reference"]) == (encoding, reference)]
        against = f" compared with {reference}" if reference else ""
        yield from _tables(f"{encoding}{against}, by head", "head", own, width)


def to_file(records: Records, path: str | None) -> None:
    """As CSV, a row for each metric of each head; what is undefined is empty. `-` is standard output, None no file."""
    if path is None:
        return
    with nullcontext(sys.stdout) if path == STDIN else Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, RECORD, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)


def plain(columns: Iterable[str], title: str | None = None, justify: Literal["left", "right"] = "right") -> Table:
    """`justify` is for all columns but the first and those whose name begins with `<`, which are on the left."""
    first, *others = columns
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for column in others:
        left = column.startswith("<")
        table.add_column(column.removeprefix("<"), justify="left" if left else justify)
    return table


def figure(value: float) -> str:
    return f"{value:.4g}"


def _tables(title: str, column: str, records: Records, width: int) -> Iterator[Table]:
    """Means of the values that there are, a row for each metric, a column for each of what this member says."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        values = found.setdefault(record["metric"], {}).setdefault(str(record[column]), [])
        if record["value"] is not None:
            values.append(record["value"])
    columns = list(dict.fromkeys(str(record[column]) for record in records))
    first = max(map(len, [title, *found]))
    for part in _parts(columns, width - first):
        table = plain((title, *part))
        for name, cells in found.items():
            table.add_row(name, *(figure(float(np.mean(cells[key]))) if cells.get(key) else "-" for key in part))
        yield table


def _parts(columns: Sequence[str], width: int) -> Iterator[list[str]]:
    """As many in one part as fit, at least one."""
    part: list[str] = []
    taken = 0
    for column in columns:
        needed = max(len(column), NUMBER) + GAP
        if part and taken + needed > width:
            yield part
            part, taken = [], 0
        part.append(column)
        taken += needed
    if part:
        yield part
