"""`python -m models import`."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from models.checkpoints.errors import CheckpointError
from models.checkpoints.importing import Import, import_layer
from models.checkpoints.text import WrittenText
from models.parity import ParityError
from models.trace import TraceError

console = Console()
ROUNDING = 1e-4  # of weights, at most: scores of some layers reach hundreds, and float32 has seven digits

EXAMPLES = """
[dim]Examples:[/dim]

python -m models import ~/models/all-MiniLM-L6-v2 --layer 5 --name minilm-5

python -m models import SmolLM2-135M.Q4_1.gguf --layer 10 --name smollm2-10 --with rope-yarn,alibi

python -m models import my-layer.safetensors --name mine --output /tmp/exported
"""


def import_command(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A folder with config.json and safetensors, a .gguf file, or a .safetensors file in the plain form.",
            show_default=False,
        ),
    ],
    name: Annotated[str, typer.Option(help="The model's name in the service.", show_default=False)],
    layer: Annotated[
        int | None, typer.Option(help="Which layer, the first being 0; not of the plain form.", show_default=False)
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with", help="Other encodings for the same content weights; repeatable, or separated by commas."
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder that gets <name>/<encoding>.onnx.")] = Path("exported"),
    text: Annotated[
        bool, typer.Option("--text/--no-text", help="Whether layer 0 gets the tokenizer and the token embeddings too.")
    ] = True,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer.json to take in place of the checkpoint's.", show_default=False),
    ] = None,
) -> None:
    """Import an attention layer of a checkpoint, to be served under a name.

    The layer takes hidden states, what the reference library returns as hidden_states\\[layer]; its norm, projections,
    grouped heads, encoding, scale and softcap are the checkpoint's. Layer 0 takes text as well, where the checkpoint
    has a tokenizer. No pickle is ever read.
    """
    started = time.monotonic()
    chosen = [one.strip() for entry in others or [] for one in entry.split(",") if one.strip()]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("reading", total=None)

            def show(what: str) -> None:
                progress.update(task, description=what)
                progress.advance(task)

            done = import_layer(
                checkpoint.expanduser(), layer, name, chosen, output, show, text=text, tokenizer=tokenizer
            )
    except (CheckpointError, TraceError, ParityError) as error:
        console.print(f"[red]{escape(str(error))}[/red]", soft_wrap=True)
        raise typer.Exit(2) from error
    _report(done, name, output, time.monotonic() - started)


def _report(done: Import, name: str, output: Path, seconds: float) -> None:
    layer = done.layer
    grouped = f", {layer.key_heads} key heads" if layer.key_heads != layer.heads else ""
    console.print(
        f"{layer.heads} heads of {layer.head_dim}{grouped}, width {layer.width}, {layer.parameters:,} numbers read",
        highlight=False,
    )
    table = Table("encoding", "of the layer")
    table.add_column("files", overflow="fold")
    for heading in ("bytes", "scores", "weights", "output"):
        table.add_column(heading, justify="right")
    for entry in done.exported:
        own = "its own" if entry.encoding == layer.positional.id else ""
        parity = entry.parity
        errors = (f"{parity.scores:.1e}", f"{parity.weights:.1e}", f"{parity.output:.1e}")
        table.add_row(entry.encoding, own, f"{name}/{entry.scores_path.name}", f"{entry.bytes:,}", *errors)
    console.print(table)
    console.print("The last three columns are the largest differences from float64.")
    compared = done.compared
    if compared.difference is None:
        console.print(f"parity: not measured, {compared.reason}", highlight=False)
    else:
        wrong = compared.difference > ROUNDING
        console.print(
            f"parity: attention weights differ from transformers' by at most {compared.difference:.1e}"
            + (", which is no rounding: look at the notes, and at both" if wrong else ""),
            highlight=False,
            style="red" if wrong else None,
            soft_wrap=True,
        )
    if done.text is not None:
        console.print(_of_text(done.text), highlight=False, soft_wrap=True)
    for note in layer.notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False, soft_wrap=True)
    most, beside = _memory(resource.RUSAGE_SELF), _memory(resource.RUSAGE_CHILDREN)
    console.print(
        f"written to {escape(str(output / name))} after {seconds:.1f} s, with {most:,.0f} MiB at most"
        f" ({beside:,.0f} MiB beside it for the comparison)",
        highlight=False,
        soft_wrap=True,
    )


def _of_text(written: WrittenText) -> str:
    if written.reason:
        return f"[yellow]text: none,[/yellow] {escape(written.reason)}"
    return (
        f"text: {written.tokens:,} tokens, their embeddings in {written.dtype}, {written.bytes / 1e6:,.0f} MB "
        "(--no-text leaves them out)"
    )


def _memory(who: int) -> float:
    """The most that it had, in MiB."""
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**20
