"""`python -m tests.oracles`: how far each exported encoding is from each of its oracles."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.oracles.errors import CACHE, Row, error_table, write


def main(
    save: Annotated[
        bool, typer.Option("--write", help=f"Also write the figures to {CACHE.name}, for the docs.")
    ] = False,
) -> None:
    """Run every exported encoding beside its oracles and print the largest errors.

    [dim]Examples:[/dim] python -m tests.oracles    |    python -m tests.oracles --write
    """
    console = Console()
    with console.status("starting") as status:
        rows = error_table(status.update)
    console.print(_table(rows))
    if save:
        write(rows)
        console.print(f"written to {CACHE}")


def _table(rows: list[Row]) -> Table:
    table = Table(
        title="largest errors of the exported graphs; scores relative, weights absolute", title_justify="left"
    )
    table.add_column("encoding", no_wrap=True)
    table.add_column("oracle")
    for heading in ("cases", "scores", "weights"):
        table.add_column(heading, justify="right", no_wrap=True)
    before = None
    for row in rows:
        name = "" if row.encoding == before else row.encoding
        table.add_row(name, row.oracle, str(row.cases), f"{row.scores:.1e}", f"{row.weights:.1e}")
        before = row.encoding
    return table


if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode="rich", add_completion=False)
    app.command()(main)
    app()
