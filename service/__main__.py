"""The command line: `python -m service`."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from service import __version__
from service.commands import cluster, encodings, matrices, probe, score
from service.settings import Settings, SettingsError, variables
from service.standard_error import StandardError

EXAMPLES = """
python -m service                                       serve on http://127.0.0.1:8000
ATTENTION_PORT=9000 python -m service                   on another port
ATTENTION_HOST=0.0.0.0 ATTENTION_DEVICE=cuda python -m service
ATTENTION_MODELS=exported:/srv/models python -m service  with more models
python -m service ray --min-replicas 2                  from a Ray cluster: docs/ray.md
python -m service encodings                             what would be served
python -m service score --preset sentence -e rope -c alibi   in the terminal, without a server
curl -s 127.0.0.1:8000/attention -H 'Content-Type: application/json' \\
     -d '{"embeddings": [[0.9, 0.1], [0.2, 0.8]]}'       who attends to whom
"""

MISUSE = 2
FAILED = 1


def _epilog() -> str:
    """Every variable, its default and its meaning, and examples. \b keeps click from rewrapping a paragraph."""
    rows = variables()
    width = max(len(name) for name, _, _ in rows)
    settings = "\n".join(f"  {name:{width}}  {meaning} [{default}]" for name, default, meaning in rows)
    examples = "\n".join("  " + line for line in EXAMPLES.strip().splitlines())
    return f"\b\nEnvironment variables [default]:\n{settings}\n\n\b\nExamples:\n{examples}"


cli = typer.Typer(
    name="python -m service",
    help="The attention scoring service: who attends to whom under a positional encoding.",
    epilog=_epilog(),
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 160, "help_option_names": ["-h", "--help"]},
)


def main() -> None:
    cli(prog_name="python -m service")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@cli.callback(invoke_without_command=True)
def default(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        serve()


@cli.command()
def serve() -> None:
    """Serve over HTTP until SIGTERM or Ctrl-C (the default)."""
    settings = _settings()
    from service.serve import run  # only now: it loads onnxruntime

    own = sys.stderr is sys.__stderr__
    with contextlib.redirect_stderr(StandardError()) if own else contextlib.nullcontext():
        code = run(settings, Console(stderr=True))
    raise typer.Exit(code)


cli.command("ray", epilog=cluster.EPILOG)(cluster.cluster)
cli.command(epilog=encodings.EPILOG)(encodings.encodings)
cli.command(epilog=score.EPILOG)(score.score)
cli.command(epilog=probe.EPILOG)(probe.probe)
cli.command(epilog=matrices.EPILOG)(matrices.compare_matrices)


def _settings() -> Settings:
    try:
        return Settings.read()
    except SettingsError as error:
        _fail(str(error), MISUSE)


def _fail(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(code)


if __name__ == "__main__":
    logging.captureWarnings(True)
    main()
