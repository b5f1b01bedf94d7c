"""`python -m service score`: who attends to whom, in a terminal or into files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.columns import Columns
from rich.console import Console, Group
from rich.text import Text

from service.client import JSON, AsyncClient, Attention, Calls
from service.commands import metric_tables, options
from service.commands.asking import MISUSE, ask, fail
from service.commands.console import coloured, output, show
from service.commands.heat_map import HeatMaps
from service.commands.inputs import STDIN, Unreadable, chosen, parameters

EXAMPLES = """
python -m service score x.npy -e rope --compare alibi,t5 --heads 4
python -m service score --preset sentence -e none -c rope,alibi --heads 8
python -m service score x.npy -e rope -c rope@long -p rope@long.theta=500000 --causal
python -m service score x.npy -e alibi --heads 8 --csv metrics.csv --png map.png --npz answer.npz
python -m service score x.npy -e t5 -p t5.bias=@bias.npy --heads 8 --json | jq '.results[0].summary.entropy'
echo '[[1, 0], [1, 1], [0, 1]]' | python -m service score - -e alibi --url http://127.0.0.1:8000
"""
INPUT = """
Input: an npy file of embeddings [tokens, width] or [batch, tokens, width]; an npz or safetensors file with arrays
named as the members of a request (embeddings, queries, keys, positions, mask, t5.bias, ...); the same in JSON, or only
a list of rows. Told apart by their first bytes.
"""
EPILOG = options.epilog(EXAMPLES, INPUT)

Source = Annotated[str | None, typer.Argument(metavar="[FILE]", help="What to score; - is standard input.")]


def score(
    source: Source = None,
    encoding: options.Encoding = None,
    compare: options.Compare = None,
    heads: options.Heads = None,
    causal: options.Causal = None,
    parameter: options.Parameters = None,
    model: options.Model = None,
    key_heads: Annotated[int | None, typer.Option(min=1, help="Must divide heads: grouped key heads.")] = None,
    preset: Annotated[str | None, typer.Option(help="An input by name, in place of a file.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Tokens of the preset.")] = None,
    d: Annotated[int | None, typer.Option("--d", help="Width of the preset.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the preset.")] = None,
    text: Annotated[str | None, typer.Option(help="In place of a file, for models with a tokenizer.")] = None,
    head: Annotated[int, typer.Option(help="Which to draw, in the terminal.")] = 0,
    by_head: options.ByHead = False,
    no_map: Annotated[bool, typer.Option("--no-map", help="Metrics only.")] = False,
    returns: Annotated[
        list[str] | None,
        typer.Option("--return", help="What --json and --npz hold: weights, scores, terms, output, summary, ..."),
    ] = None,
    metrics: options.Metrics = None,
    as_json: options.AsJson = False,
    csv: options.Csv = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a picture of every head.")] = None,
    npz: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the arrays, for numpy.load.")] = None,
    zoom: Annotated[int | None, typer.Option(min=1, max=4, help="Pixels to each point of the picture.")] = None,
    url: options.Url = None,
    api_key: options.ApiKey = None,
) -> None:
    """Who attends to whom under one encoding or several: metrics, comparisons, heat maps.

    Computes in this process, or asks a running service with --url.
    """
    console = output()
    try:
        about, drawn = chosen(source, preset, text), {"n": n, "d": d, "seed": seed}
        given = about.pop("parameters", {}) | parameters(parameter or ())
    except Unreadable as error:
        fail(str(error), MISUSE)
    if preset is None and any(value is not None for value in drawn.values()):
        fail("--n, --d and --seed are those of a --preset", MISUSE)
    if zoom is not None and png is None:
        fail("--zoom is that of a picture: --png FILE", MISUSE)
    if returns and not as_json and npz is None:
        fail("--return says what --json and --npz hold, and neither is asked for", MISUSE)
    others = options.several(compare)
    asked = {
        "encoding": encoding,
        "compare": others,
        "heads": heads,
        "key_heads": key_heads,
        "causal": causal,
        "model": model,
        "parameters": given,
    }
    of_all = ["summary", *(["comparison"] if others else [])]
    wanted = options.several(returns)
    shown = not as_json and csv != STDIN

    async def question(client: AsyncClient) -> _Answers:
        if preset is not None:
            about["x"] = await client.preset(preset, **drawn)
        everything = {**about, **asked}
        answers = _Answers()
        if shown or csv is not None:
            answers.metrics = await client.attention(**everything, returns=of_all, metrics=metrics)
        if shown and not no_map:
            answers.map = await client.attention(**everything, returns="weights", head=head)
        if as_json:
            call = Calls.attention(None, **everything, returns=wanted or of_all, metrics=metrics)
            answers.json = await client.send(call.answered(JSON, lambda response: response.text))
        if npz is not None:
            answers.arrays = await client.attention(**everything, returns=wanted or ["weights", "scores", *of_all])
        if png is not None:
            answers.png = await client.picture(**everything, zoom=zoom, returns="weights")
        return answers

    answers = ask(url, api_key, question, f"scoring {source or preset or 'the text'}")
    _write(answers, csv, png, npz)
    if as_json:
        sys.stdout.write(answers.json + "\n")
    elif shown and answers.metrics is not None:
        _show(console, answers.metrics, answers.map, head, by_head)


@dataclass(slots=True)
class _Answers:
    """Each part is asked for on its own: matrices, which are large, only where they are wanted."""

    metrics: Attention | None = None
    map: Attention | None = None
    json: str = ""
    arrays: Attention | None = None
    png: bytes = b""


def _write(answers: _Answers, csv: str | None, png: Path | None, npz: Path | None) -> None:
    records = [] if answers.metrics is None else answers.metrics.records()
    try:
        metric_tables.to_file(records, csv)
        if png is not None:
            png.write_bytes(answers.png)
        if npz is not None and answers.arrays is not None:
            answers.arrays.save(npz)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", MISUSE)


def _show(console: Console, metrics: Attention, maps: Attention | None, head: int, by_head: bool) -> None:
    show(console, Text(_title(metrics), style="bold"))
    for name, reason in metrics.skipped.items():
        show(console, Text(f"left out: {name}: {reason}"))
    if maps is not None:
        show(console, _maps(console, maps, head))
    for table in (metric_tables.heads if by_head else metric_tables.means)(metrics.records(), console.width):
        show(console, table)


def _title(answer: Attention) -> str:
    shape = answer.shape
    sizes = ", ".join(f"{name} {shape[name]}" for name in ("batch", "heads", "queries", "keys") if name in shape)
    return f"{answer.model}: {sizes}{', causal' if answer.causal else ''}"


def _maps(console: Console, answer: Attention, head: int) -> Group:
    maps = {
        name: one.weights.reshape(-1, *one.weights.shape[-2:])[0]
        for name, one in answer.items()
        if one.weights is not None
    }
    pictures = HeatMaps.of(maps.values(), coloured=coloured(console), encoding=console.encoding)
    names = _names(answer)
    blocks = [Group(Text(name, style="bold"), pictures.draw(weights, names), Text()) for name, weights in maps.items()]
    of_batch = ", the first of the batch" if "batch" in answer.shape else ""
    caption = Text(f"weights of head {head}{of_batch}: ").append_text(pictures.legend())
    side_by_side = [Columns(blocks, padding=(0, 4))] if console.is_terminal else blocks
    return Group(Text(), *side_by_side, caption.append("; a line is a query, a column a key"), Text())


def _names(answer: Attention) -> list[str]:
    """What a line is called: its token, or its place."""
    queries = answer.shape["queries"]
    tokens = answer.tokens
    same = tokens is not None and len(tokens) == queries and not answer.document.get("cross")
    return list(tokens) if tokens is not None and same else [str(i) for i in np.arange(queries)]
