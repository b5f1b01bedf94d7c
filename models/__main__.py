"""`python -m models`: export what is served."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from models.checkpoints.command import EXAMPLES, import_command
from models.encodings import ENCODINGS
from models.export import Exported, export_family
from models.export_analysis import FOLDER as ANALYSIS
from models.export_analysis import ExportedAnalysis, export_analyses
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
    encodings: Annotated[
        list[str] | None,
        typer.Argument(help=f"Encodings to export, or {ANALYSIS}; everything where nothing is named."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder that gets <model>/<encoding>.onnx.")] = Path("exported"),
) -> None:
    """Export the identity family and the analysis graphs: everything, or what is named.

    Each graph is traced, compared with float64 at several shapes, and written only if it agrees.

    [dim]Examples:[/dim] python -m models export    |    python -m models export rope t5 --output /tmp/exported
    """
    known = {encoding.card.id: encoding for encoding in ENCODINGS}
    names = encodings or [*known, ANALYSIS]
    unknown = [name for name in names if name not in known and name != ANALYSIS]
    if unknown:
        console.print(f"[red]unknown encoding {', '.join(unknown)}[/red]; known: {', '.join(known)}, {ANALYSIS}")
        raise typer.Exit(2)
    chosen = [known[name] for name in names if name in known]
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
    analyses: list[ExportedAnalysis] = []
    if ANALYSIS in names:
        with console.status("exporting analysis"):
            analyses = list(export_analyses(output))
    written = []
    if done:
        console.print(_table(done))
        written.append(f"{len(done)} encodings in {output / IDENTITY.name}")
    if analyses:
        console.print(_analysis_table(analyses))
        written.append(f"{len(analyses)} graphs in {output / ANALYSIS}")
    console.print(f"{', '.join(written)} after {time.monotonic() - started:.0f} s")
    console.print(f"An error above {TOLERANCE:g} would have stopped the export.")


app.command("import", epilog=EXAMPLES)(import_command)


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


def _analysis_table(exported: list[ExportedAnalysis]) -> Table:
    table = Table("graph", title=f"{ANALYSIS}: largest error against float64 over all shapes", title_justify="left")
    for heading in ("bytes", "error (relative)", "of", "cases"):
        table.add_column(heading, justify="right")
    for entry in exported:
        p = entry.parity
        table.add_row(entry.name, f"{entry.bytes:,}", f"{p.error:.1e}", p.output, str(p.cases))
    return table


if __name__ == "__main__":
    app()
