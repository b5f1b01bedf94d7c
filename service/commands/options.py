"""Options that commands share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from service.client import URL
from service.commands.asking import CODES

Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help=f"Ask the service that runs there, {URL} say, not one inside this process."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        envvar="API_KEY",
        show_envvar=True,
        help="For a service at --url that asks for one. In the environment other users of the machine cannot see it.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="The service's own answer, as JSON.")]
Csv = Annotated[
    str | None, typer.Option("--csv", metavar="FILE", help="Write every metric of every head; - is standard output.")
]
Encoding = Annotated[
    str | None, typer.Option("--encoding", "-e", help="Id or alias, with or without a label: rope@long.")
]
Compare = Annotated[
    list[str] | None, typer.Option("--compare", "-c", help="More of them, with commas, repeated, or all.")
]
Model = Annotated[str | None, typer.Option(help="As GET /models lists them.")]
Heads = Annotated[int | None, typer.Option(min=1, help="Must divide the width.")]
Causal = Annotated[bool | None, typer.Option("--causal/--no-causal", help="Hide later keys, or do not.")]
Metrics = Annotated[str | None, typer.Option(help="Names with commas, default, or all.")]
ByHead = Annotated[bool, typer.Option("--by-head", help="Metrics of each head, not their means.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--parameter",
        "-p",
        metavar="NAME=VALUE",
        help="A parameter of an encoding, repeated: rope.theta=500000, t5.bias=@bias.npy.",
    ),
]


def epilog(examples: str, *more: str) -> str:
    """\b keeps click from rewrapping a paragraph."""
    return "\n\n".join("\b\n" + paragraph.strip() for paragraph in (f"Examples:\n{_indented(examples)}", *more, CODES))


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.strip().splitlines())


def several(given: Iterable[str] | None) -> list[str]:
    """Repeated, or with commas."""
    return [part for one in given or () for part in one.split(",")]
