"""The commands of `python -m models`, where PyTorch is installed."""

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
from models.encodings.encoding import Encoding
from models.export import Exported, export_family
from models.export_analysis import FOLDER as ANALYSIS
from models.export_analysis import ExportedAnalysis, export_analyses
from models.family import IDENTITY, Family
from models.hidden_states import command as hidden_states
from models.parity import TOLERANCE
from models.text import byte_tokenizer, write_text
from models.training import family as tiny
from models.training.checkpoint import load_weights
from models.training.command import train
from models.triton.command import EXAMPLES as TRITON_EXAMPLES
from models.triton.command import triton_repository

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    help="Train, import and export attention models.",
)
console = Console()


@app.callback()
def main() -> None:
    """Train, import and export attention models."""


@app.command()
def export(
    encodings: Annotated[
        list[str] | None,
        typer.Argument(help=f"Encodings to export, or {ANALYSIS}; everything where nothing is named."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder that gets <model>/<encoding>.onnx.")] = Path("exported"),
    model: Annotated[list[str] | None, typer.Option(help="Models to export, by default all.")] = None,
) -> None:
    """Export the models identity and tiny and the analysis graphs: everything, or what is named.

    Each graph is traced, compared with float64 at several shapes, and written only if it agrees.

    [dim]Examples:[/dim] python -m models export    |    python -m models export rope t5 --output /tmp/exported
    """
    known = {encoding.card.id: encoding for encoding in ENCODINGS}
    names = encodings or ([*known] if model else [*known, ANALYSIS])
    _check_known("encoding", [name for name in names if name != ANALYSIS], [*known], ANALYSIS)
    wanted = model or [IDENTITY.name, tiny.NAME]
    _check_known("model", wanted, [IDENTITY.name, tiny.NAME])
    chosen = [known[name] for name in names if name in known]
    started = time.monotonic()
    written = [_export(name, chosen, output) for name in wanted if chosen]
    if ANALYSIS in names:
        with console.status("exporting analysis"):
            analyses = list(export_analyses(output))
        console.print(_analysis_table(analyses))
        written.append(f"{len(analyses)} graphs in {output / ANALYSIS}")
    console.print(f"{', '.join(written)} after {time.monotonic() - started:.0f} s")
    console.print(f"An error above {TOLERANCE:g} would have stopped the export.")


def _check_known(kind: str, names: list[str], known: list[str], *others: str) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        console.print(f"[red]unknown {kind} {', '.join(unknown)}[/red]; known: {', '.join((*known, *others))}")
        raise typer.Exit(2)


def _export(model: str, chosen: list[Encoding], output: Path) -> str:
    """One model under the encodings that were chosen, and its text; what was written, in words."""
    family = IDENTITY
    if model == tiny.NAME:
        block, _ = load_weights(tiny.WEIGHTS)
        family = tiny.family(block)
        chosen = [encoding for encoding in chosen if encoding in tiny.encodings(block)]
        write_text(output / model, byte_tokenizer(), block.embeddings)
    done: list[Exported] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("exporting", total=len(chosen))
        for exported in export_family(
            family, chosen, output, lambda name: progress.update(task, description=f"exporting {model} {name}")
        ):
            done.append(exported)
            progress.advance(task)
    console.print(_table(family, done))
    return f"{len(done)} encodings in {output / model}"


app.command("import", epilog=EXAMPLES)(import_command)
app.command()(train)
app.command("hidden-states")(hidden_states)
app.command("triton-repository", epilog=TRITON_EXAMPLES)(triton_repository)


def _table(family: Family, exported: list[Exported]) -> Table:
    title = f"{family.name}: largest errors against float64 over all shapes"
    table = Table("encoding", title=title, title_justify="left")
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
