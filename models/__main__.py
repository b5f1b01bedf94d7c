"""`python -m models`: export what is served."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from models.encodings import ENCODINGS
from models.export import Exported, export_family
from models.family import IDENTITY
from models.parity import TOLERANCE

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", add_completion=False, help="Export attention models to ONNX."
)
console = Console()


@app.callback()
def main() -> None:
    """Export attention models to ONNX."""


@app.command()
def export(
    encodings: Annotated[list[str] | None, typer.Argument(help="Encodings to export; all where none is named.")] = None,
    output: Annotated[Path, typer.Option(help="Folder that gets <model>/<encoding>.onnx.")] = Path("exported"),
) -> None:
    """Export the identity family: every encoding, or those named.

    Each graph is traced, compared with float64 at several shapes, and written only if it agrees.

    [dim]Examples:[/dim] python -m models export    |    python -m models export rope t5 --output /tmp/exported
    """
    known = {encoding.card.id: encoding for encoding in ENCODINGS}
    unknown = [name for name in encodings or [] if name not in known]
    if unknown:
        console.print(f"[red]unknown encoding {', '.join(unknown)}[/red]; known: {', '.join(known)}")
        raise typer.Exit(2)
    chosen = [known[name] for name in encodings] if encodings else list(ENCODINGS)
    started = time.monotonic()
    done: list[Exported] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("exporting", total=len(chosen))
        for exported in export_family(
            IDENTITY, chosen, output, lambda name: progress.update(task, description=f"exporting {name}")
        ):
            done.append(exported)
            progress.advance(task)
    console.print(_table(done))
    took = time.monotonic() - started
    console.print(f"{len(done)} encodings in {output / IDENTITY.name} after {took:.0f} s")
    console.print(f"An error above {TOLERANCE:g} would have stopped the export.")


def _table(exported: list[Exported]) -> Table:
    table = Table("encoding", title="identity: largest errors against float64 over all shapes", title_justify="left")
    for heading in ("bytes", "scores (relative)", "weights", "terms (relative)", "output", "cases"):
        table.add_column(heading, justify="right")
    for entry in exported:
        p = entry.parity
        table.add_row(
            entry.encoding,
            f"{entry.bytes:,}",
            f"{p.scores:.1e}",
            f"{p.weights:.1e}",
            f"{p.terms:.1e}",
            f"{p.output:.1e}",
            str(p.cases),
        )
    return table


if __name__ == "__main__":
    app()
