"""`python -m models triton-repository`."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from models.triton.repository import OUTPUTS, Disagreement, LaidOut, Skipped, Wanted, lay_out
from service.catalogue import Catalogue, Model
from service.commands.inputs import Unreadable, parameters
from service.encoding import Encoding
from service.errors import ServiceError

console = Console(highlight=False)

EXAMPLES = """
[dim]Examples:[/dim]

python -m models triton-repository /srv/triton

python -m models triton-repository /srv/triton --model identity --heads 8 --width 512 --mask

python -m models triton-repository /srv/triton -e rope -e rope-yarn -p rope.theta=500000 --output weights

tritonserver --model-repository /srv/triton
"""


def triton_repository(
    out: Annotated[
        Path, typer.Argument(help="Folder of the repository; new, or empty.", show_default=False, metavar="OUT")
    ],
    exported: Annotated[
        list[Path] | None,
        typer.Option(help="Folder with <model>/<encoding>.onnx; repeatable. By default exported.", show_default=False),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Models to lay out, repeatable; by default all.", show_default=False)
    ] = None,
    encoding: Annotated[
        list[str] | None,
        typer.Option(
            "--encoding", "-e", help="Encodings to lay out, repeatable; by default all that can be.", show_default=False
        ),
    ] = None,
    heads: Annotated[int, typer.Option(min=1, help="Of the model identity; must divide its width.")] = 4,
    width: Annotated[int, typer.Option(min=1, help="Of the embeddings of the model identity.")] = 64,
    tokens: Annotated[
        int, typer.Option(min=1, help="The most tokens, of encodings whose positions are rows of a table.")
    ] = 2048,
    causal: Annotated[
        bool | None,
        typer.Option("--causal/--no-causal", help="Hide later keys, or do not; by default the model's own."),
    ] = None,
    mask: Annotated[
        bool,
        typer.Option(
            "--mask", help="Add an input: mask \\[batch, tokens], true where a key may be seen. It must be sent."
        ),
    ] = False,
    output: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Outputs, repeatable: {', '.join(OUTPUTS)}, term.NAME. By default {', '.join(OUTPUTS)}.",
            show_default=False,
        ),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            metavar="NAME=VALUE",
            help="A parameter of an encoding, repeatable: rope.theta=500000, t5.bias=@bias.npy.",
            show_default=False,
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="The most rows of a run, Triton's max_batch_size.")] = 64,
) -> None:
    """Lay exported models out as a model repository of Triton Inference Server.

    Each becomes <model>.<encoding>/config.pbtxt and 1/model.onnx: one graph that takes embeddings \\[batch, tokens,
    width] and computes the encoding's tables itself, for Triton has none of the service's code. Sizes of identity,
    causality and parameters are part of it. Each is compared with the graphs it is made of before it is written.
    """
    started = time.monotonic()
    try:
        _check_free(out)
        found = Catalogue.read(exported or [Path("exported")])
        if not found.models:
            raise typer.BadParameter("; ".join(map(str, found.problems)) or "no exported models there")
        models = [found.model(name, pointer=None) for name in model or found.models]
        given = parameters(parameter or ())
        outputs = tuple(dict.fromkeys(output or OUTPUTS))
        wanted = Wanted(heads, width, tokens, causal, mask, outputs, max_batch, **_sorted_out(given))
        done = _write(out, [(one, _encodings(one, encoding)) for one in models], wanted, skipping=not encoding)
    except (ServiceError, Unreadable, Disagreement, typer.BadParameter, OSError) as error:
        message = error.detail if isinstance(error, ServiceError) else str(error)
        console.print(f"[red]{escape(message)}[/red]", soft_wrap=True)
        raise typer.Exit(2) from error
    for problem in found.problems:
        console.print(f"[yellow]left out:[/yellow] {escape(str(problem))}", soft_wrap=True)
    _report(done, out, time.monotonic() - started)


def _check_free(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"{out} is a file; name a folder")
    if out.is_dir() and any(out.iterdir()):
        raise typer.BadParameter(f"{out} is not empty, and nothing in it is replaced; name another folder, or empty it")


def _sorted_out(given: dict[str, Any]) -> dict[str, Any]:
    arrays = {name: np.asarray(value, np.float32) for name, value in given.items() if not isinstance(value, str)}
    return {"scalars": {name: value for name, value in given.items() if name not in arrays}, "arrays": arrays}


def _encodings(model: Model, names: list[str] | None) -> list[Encoding]:
    chosen = [model.encoding(name, pointer=None) for name in names] if names else list(model.encodings.values())
    return list({one.id: one for one in chosen}.values())


def _write(
    out: Path, chosen: list[tuple[Model, list[Encoding]]], wanted: Wanted, *, skipping: bool
) -> list[LaidOut | Skipped]:
    """All or nothing: `out` has its name once everything is in it."""
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    done: list[LaidOut | Skipped] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.absolute().parent) as aside,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        folder = Path(aside) / out.name
        folder.mkdir()
        task = progress.add_task("laying out", total=sum(len(encodings) for _, encodings in chosen))
        for model, encodings in chosen:
            for one in lay_out(model, encodings, wanted, folder, skipping=skipping):
                progress.update(task, description=f"laying out {one.name}", advance=1)
                done.append(one)
        if not any(isinstance(one, LaidOut) for one in done):
            reasons = [one.reason for one in done if isinstance(one, Skipped)]
            raise typer.BadParameter(f"nothing can be laid out so: {reasons[0]}")
        os.replace(folder, out)
    return done


def _report(done: list[LaidOut | Skipped], out: Path, seconds: float) -> None:
    written = [one for one in done if isinstance(one, LaidOut)]
    table = Table("model", title="largest differences from the exported graphs", title_justify="left")
    for heading in ("bytes", "most tokens", "difference"):
        table.add_column(heading, justify="right")
    for one in written:
        longest = "any" if one.longest is None else f"{one.longest:,}"
        table.add_row(one.name, f"{one.bytes:,}", longest, f"{one.difference:.1e}")
    console.print(table)
    for other in done:
        if isinstance(other, Skipped):
            console.print(f"[yellow]left out:[/yellow] {escape(f'{other.name}: {other.reason}')}", soft_wrap=True)
    console.print(f"{len(written)} models in {escape(str(out))} after {seconds:.0f} s", soft_wrap=True)
