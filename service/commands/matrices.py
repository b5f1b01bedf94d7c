"""`python -m service compare-matrices`: attention matrices from elsewhere, in files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from service.client import AsyncClient, Matrices
from service.commands import metric_tables, options
from service.commands.asking import MISUSE, ask, fail
from service.commands.console import output, show
from service.commands.inputs import STDIN, Unreadable, matrix

EXAMPLES = """
python -m service compare-matrices mine.npy theirs.npy --causal
python -m service compare-matrices fp32.npy fp16.npy --metrics jsd,tv --by-head
python -m service compare-matrices reference.npy mine.npy yours.npy --csv metrics.csv
"""
FILES = """
Files: npy, or a list in JSON, each of one matrix [queries, keys], [heads, queries, keys] or
[batch, heads, queries, keys], all of one shape; the first is the reference. - is standard input.
"""
EPILOG = options.epilog(EXAMPLES, FILES)


def compare_matrices(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="The first is the reference.")],
    metrics: options.Metrics = None,
    causal: options.Causal = None,
    sinks: Annotated[bool, typer.Option("--sinks", help="Rows may sum to less than 1.")] = False,
    tolerance: Annotated[float | None, typer.Option(help="How far from 1 a row may sum.")] = None,
    by_head: options.ByHead = False,
    as_json: options.AsJson = False,
    csv: options.Csv = None,
    url: options.Url = None,
    api_key: options.ApiKey = None,
) -> None:
    """Summarise attention matrices that you have, and compare the others with the first.

    Computes in this process, or asks a running service with --url.
    """
    console = output()
    try:
        named = {name: matrix(file) for name, file in zip(_names(files), files, strict=True)}
    except Unreadable as error:
        fail(str(error), MISUSE)

    async def question(client: AsyncClient) -> Matrices:
        return await client.compare_matrices(
            named, metrics=metrics, causal=causal, sinks=sinks or None, tolerance=tolerance
        )

    found = ask(url, api_key, question, "comparing")
    records = found.records()
    try:
        metric_tables.to_file(records, csv)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", MISUSE)
    if as_json:
        sys.stdout.write(json.dumps(found.document) + "\n")
    elif csv != STDIN:
        sizes = ", ".join(f"{name} {size}" for name, size in found.shape.items() if isinstance(size, int))
        show(console, Text(sizes, style="bold"))
        for table in (metric_tables.heads if by_head else metric_tables.means)(records, console.width):
            show(console, table)


def _names(files: list[str]) -> list[str]:
    """Those of the files without folders and endings, where these tell them apart."""
    stems = [Path(file).stem if file != STDIN else STDIN for file in files]
    if len(set(stems)) == len(files):
        return stems
    if len(set(files)) < len(files):
        fail("a file was named twice; compare different ones", MISUSE)
    return files
