"""`python -m models train`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from models.training import results
from models.training.checkpoint import CheckpointMismatch, resume, save, save_weights
from models.training.corpus import Corpus
from models.training.family import RESULTS, WEIGHTS
from models.training.recipe import SCALED, TRAINED, Recipe
from models.training.results import BOUNDED
from models.training.trainer import Training

EVERY = 250
"""Steps from one checkpoint to the next."""
SMOOTHING = 0.98
BITS = 1.4427

console = Console()


def train(
    steps: Annotated[int, typer.Option(help="Steps in all.", min=1)] = Recipe.steps,
    checkpoint: Annotated[
        Path, typer.Option(help="Where the run is saved as it goes on; a run that stopped goes on from there.")
    ] = Path("results/tiny.safetensors"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, whatever has been saved.")] = False,
    weights: Annotated[Path, typer.Option(help="File of the trained weights.")] = WEIGHTS,
    report: Annotated[Path, typer.Option(help="File of bits per byte under each encoding.")] = RESULTS,
) -> None:
    """Train the model `tiny` on one core: a byte-level block under every encoding at once, over one set of weights.

    The text is Python's own standard library. The same version of Python and of torch gives the same weights. Write the
    graphs that are served with `python -m models export --model tiny` afterwards.
    """
    torch.set_num_threads(1)  # the order of sums, and so the last bits of the weights, depend on it
    corpus, recipe = Corpus.read(), Recipe(steps=steps)
    training = _begun(checkpoint, fresh, recipe, corpus)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("training", total=recipe.steps, completed=training.step)
        wall, cpu = time.monotonic() - training.wall, time.process_time() - training.cpu
        smoothed: float | None = None
        for losses in training.steps(corpus.trained_on):
            mean = sum(losses.values()) / len(losses)
            smoothed = mean if smoothed is None else SMOOTHING * smoothed + (1 - SMOOTHING) * mean
            progress.update(task, advance=1, description=f"training, {BITS * smoothed:.3f} bits per byte")
            if training.step % EVERY == 0 or training.step == recipe.steps:
                training.wall, training.cpu = time.monotonic() - wall, time.process_time() - cpu
                save(training, corpus.digest, checkpoint)
        task = progress.add_task("measuring", total=len(TRAINED) + len(SCALED) + len(BOUNDED))
        found = results.results(
            training,
            corpus,
            lambda encoding: progress.update(task, advance=1, description=f"measuring {encoding}"),
        )
    save_weights(training, corpus.digest, weights)
    results.write(found, report)
    console.print(f"wrote {weights} and {report} after {training.wall:.0f} s ({training.cpu:.0f} s of the processor)")


def _begun(checkpoint: Path, fresh: bool, recipe: Recipe, corpus: Corpus) -> Training:
    if fresh or not checkpoint.exists():
        return Training.start(TRAINED, recipe)
    try:
        training = resume(checkpoint, TRAINED, recipe, corpus.digest)
    except CheckpointMismatch as error:
        console.print(f"[red]{error}[/red]; name another --checkpoint, or start anew with --fresh")
        raise typer.Exit(2) from None
    console.print(f"going on from step {training.step} of {checkpoint}")
    return training
