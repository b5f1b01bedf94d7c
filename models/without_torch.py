"""`python -m models` where PyTorch is not installed, as in the environment that serves."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console

from models.triton.command import EXAMPLES as TRITON_EXAMPLES
from models.triton.command import triton_repository

MISSING = "needs PyTorch, which is not installed here; `make develop` installs it and all else that it takes"
NEEDING = {
    "export": "Export the models identity and tiny and the analysis graphs.",
    "import": "Import one attention layer of a checkpoint.",
    "train": "Train the model tiny.",
    "hidden-states": "Write what one layer of a checkpoint reads, as a file to post.",
}
"""The commands that need it, and what they do."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    help="Train, import and export attention models.",
    epilog=f"PyTorch is not installed here, which {', '.join(NEEDING)} need: `make develop` installs it.",
)


@app.callback()
def main() -> None:
    """Train, import and export attention models."""


def _add(name: str, what: str) -> None:
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(name, help=f"{what} It {MISSING}.", context_settings=settings)
    def refuse() -> NoReturn:
        Console(stderr=True, soft_wrap=True).print(f"{name} {MISSING}", style="red", highlight=False)
        raise typer.Exit(1)


for _name, _what in NEEDING.items():
    _add(_name, _what)
app.command("triton-repository", epilog=TRITON_EXAMPLES)(triton_repository)
