"""`python -m service probe`: what position does under an encoding, found out by changing the input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from service.client import AsyncClient
from service.commands import options
from service.commands.asking import MISUSE, ask, fail
from service.commands.console import output, show
from service.commands.inputs import Unreadable, chosen, parameters
from service.commands.metric_tables import figure, plain

EXAMPLES = """
python -m service probe position-only -e all
python -m service probe position-share x.npy -e rope,alibi,t5 --heads 8
python -m service probe shift-gap x.npy -e rope,sinusoidal --offsets 1,1000
python -m service probe length-sweep x.npy -e alibi --lengths 1,2,4 --extend random
python -m service probe all x.npy -e rope --json
"""
PROBES = """
Probes, or all:
  position-only   scores of tokens that are all alike, by distance: what is left is position's doing
  position-share  how much of the scores' variance within rows distance explains
  shift-gap       how far attention moves when all positions move
  order-gap       how far attention moves when the tokens are put into another order
  length-sweep    entropy, distances and sinks at other lengths of the input
"""
EPILOG = options.epilog(EXAMPLES, PROBES)
PRESET = "random"
"""Where no input is named: of most probes the content matters little."""
BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"
WIDTH = 48
HEADS = 8
"""At most drawn of an encoding."""


def probe(
    name: Annotated[str, typer.Argument(metavar="PROBE", help="Which; see below.")],
    source: Annotated[str | None, typer.Argument(metavar="[FILE]", help="The input; - is standard input.")] = None,
    encoding: Annotated[
        list[str] | None, typer.Option("--encoding", "-e", help="With commas, repeated, or all.")
    ] = None,
    heads: options.Heads = None,
    causal: options.Causal = None,
    parameter: options.Parameters = None,
    model: options.Model = None,
    preset: Annotated[
        str | None, typer.Option(help="An input by name, in place of a file.", show_default=PRESET)
    ] = None,
    n: Annotated[int | None, typer.Option("--n", help="Tokens of the preset.")] = None,
    d: Annotated[int | None, typer.Option("--d", help="Width of the preset.")] = None,
    offsets: Annotated[str | None, typer.Option(help="Of shift-gap: by how much positions move, with commas.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Of length-sweep: in lengths of the input, with commas.")] = None,
    extend: Annotated[str | None, typer.Option(help="Of length-sweep: tiled or random.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of order-gap and of random numbers.")] = None,
    as_json: options.AsJson = False,
    url: options.Url = None,
    api_key: options.ApiKey = None,
) -> None:
    """What position does under one encoding or several, found out by changing the input.

    Computes in this process, or asks a running service with --url.
    """
    console = output()
    named = options.several(encoding)
    try:
        about = chosen(source, (preset or PRESET) if source is None else preset)
        given = about.pop("parameters", {}) | parameters(parameter or ())
    except Unreadable as error:
        fail(str(error), MISUSE)
    if source is not None and (n, d) != (None, None):
        fail("--n and --d are those of a --preset", MISUSE)
    asked = {
        "probe": () if name == "all" else name.replace("-", "_"),
        "encoding": None if named[:1] in ([], ["all"]) else named[0],
        "compare": named if named[:1] == ["all"] else named[1:],
        "heads": heads,
        "causal": causal,
        "parameters": given,
        "model": model,
        "offsets": offsets,
        "lengths": lengths,
        "extend": extend,
        "seed": seed,
    }

    async def question(client: AsyncClient) -> dict[str, Any]:
        if source is None:
            about["x"] = await client.preset(preset or PRESET, n=n, d=d)
        return await client.probe(**about, **asked)

    answer = ask(url, api_key, question, f"probing with {source or preset or PRESET}")
    if as_json:
        sys.stdout.write(json.dumps(answer) + "\n")
        return
    bars = BARS if _writable(BARS, console.encoding) else PLAIN_BARS
    for left_out, reason in answer.get("skipped", {}).items():
        show(console, Text(f"left out: {left_out}: {reason}"))
    for title, definition in answer["probes"].items():
        show(console, Text(f"\n{title.replace('_', '-')}", style="bold"), Text(f": {definition['definition']}"))
        found = {one["name"]: one["probes"][title] for one in answer["results"]}
        for encoding_name, one in found.items():
            if "reason" in one:
                show(console, Text(f"{encoding_name}: {one['reason']}"))
        shown = {key: one for key, one in found.items() if "reason" not in one}
        if shown:
            show(console, _TABLES[title](shown, bars))


Found = Mapping[str, Mapping[str, Any]]


def _position_only(found: Found, bars: str) -> Table:
    table = plain(("encoding", "head", "S(d) - S(0)", "d", "least", "largest", "spread"), justify="left")
    for name, one in found.items():
        ends = f"{one['distances'][0]:g} to {one['distances'][-1]:g}"
        for head, curve in list(enumerate(one["curve"]))[:HEADS]:
            spread = max(one["spread"][head])
            table.add_row(
                name, str(head), _sparkline(curve, bars), ends, figure(min(curve)), figure(max(curve)), figure(spread)
            )
        if len(one["curve"]) > HEADS:
            table.add_row(name, f"{len(one['curve']) - HEADS} more")
    return table


def _position_share(found: Found, bars: str) -> Table:
    table = plain(("encoding", "share (mean of heads)", "least", "largest", "chance"))
    for name, one in found.items():
        shares = _flat(one["share"])
        table.add_row(
            name, *(_shown(of(shares)) if shares else "-" for of in (np.mean, min, max)), _mean(one["chance"])
        )
    return table


def _shift_gap(found: Found, bars: str) -> Table:
    offsets = [one["offset"] for one in next(iter(found.values()), {"offsets": ()})["offsets"]]
    table = plain(("encoding", "<mean of heads", *(f"moved by {offset:g}" for offset in offsets)))
    for name, one in found.items():
        for metric in ("jsd", "tv"):
            table.add_row(name, metric, *(_gap(at, metric) for at in one["offsets"]))
    return table


def _order_gap(found: Found, bars: str) -> Table:
    table = plain(("encoding", "jsd (mean of heads)", "tv"))
    for name, one in found.items():
        table.add_row(name, _gap(one, "jsd"), _gap(one, "tv"))
    return table


def _length_sweep(found: Found, bars: str) -> Table:
    lengths = [one["tokens"] for one in next(iter(found.values()), {"lengths": ()})["lengths"]]
    table = plain(("encoding", "<mean of heads", *(f"{tokens} tokens" for tokens in lengths)))
    for name, one in found.items():
        metrics = dict.fromkeys(key for at in one["lengths"] for key, value in at.items() if isinstance(value, Mapping))
        for metric in metrics:
            table.add_row(name, metric, *(_gap(at, metric) for at in one["lengths"]))
        if not metrics:
            table.add_row(name, *dict.fromkeys(at.get("reason", "-") for at in one["lengths"]))
    return table


_TABLES = {
    "position_only": _position_only,
    "position_share": _position_share,
    "shift_gap": _shift_gap,
    "order_gap": _order_gap,
    "length_sweep": _length_sweep,
}


def _gap(at: Mapping[str, Any], metric: str) -> str:
    """A metric's mean of heads; 0 where arithmetic alone would make as much of it."""
    if metric not in at:
        return "-"
    identical = _flat(at.get("identical", [False]))
    return "0" if identical and all(identical) else _mean(at[metric]["mean"])


def _mean(values: Any) -> str:
    known = _flat(values)
    return _shown(np.mean(known)) if known else "-"


def _shown(value: Any) -> str:
    return figure(float(value))


def _flat(values: Any) -> list[Any]:
    """Without what is undefined."""
    return list(_leaves(values if isinstance(values, Iterable) else [values]))


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _leaves(value)
        elif value is not None:
            yield value


def _sparkline(curve: Sequence[float], bars: str) -> str:
    """From its least to its largest; of a long one some, evenly chosen."""
    values = np.array(curve, dtype=float)
    values = values[np.linspace(0, len(values) - 1, min(WIDTH, len(values))).round().astype(int)]
    low, high = np.nanmin(values), np.nanmax(values)
    share = (values - low) / ((high - low) or 1.0)
    return "".join(bars[int(part * (len(bars) - 1) + 0.5)] if np.isfinite(part) else " " for part in share)


def _writable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
