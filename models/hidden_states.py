"""`python -m models hidden-states`: what one layer of a checkpoint reads, as a file to post."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from jaxtyping import Float32
from rich.console import Console

console = Console()


class HiddenStatesError(RuntimeError):
    """The states cannot be had; the message says why, and what would help."""


def hidden_states(
    checkpoint: Path | str, layer: int, text: str
) -> tuple[Float32[np.ndarray, "tokens width"], list[str]]:
    """`hidden_states[layer]` of transformers for this text, and its tokens: what attention layer `layer` is given, 0
    being the first.

    Raises HiddenStatesError.
    """
    if find_spec("transformers") is None:
        raise HiddenStatesError(
            "this needs the package transformers, which serving does not: install it (make develop does), or save "
            f"`model(**tokens, output_hidden_states=True).hidden_states[{layer}][0]` where you have it"
        )
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
        model: Any = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise HiddenStatesError(f"transformers cannot load {checkpoint}: {reason}") from error
    layers = model.config.get_text_config().num_hidden_layers
    if not 0 <= layer < layers:
        raise HiddenStatesError(f"{checkpoint} has the layers 0 to {layers - 1}, but layer {layer} was asked for")
    tokens = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        states = model(**tokens, output_hidden_states=True).hidden_states[layer][0]
    return states.float().numpy(), tokenizer.convert_ids_to_tokens(tokens["input_ids"][0].tolist())


def command(
    checkpoint: Annotated[str, typer.Argument(help="A folder with config.json, weights and tokenizer, or a name.")],
    layer: Annotated[int, typer.Option(help="The attention layer that is to read them; 0 is the first.")],
    text: Annotated[str, typer.Option(help="What the model reads.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The .npy file to write.")],
) -> None:
    """Write what a layer of a checkpoint reads for a text: the embeddings to post to that layer's model.

    [dim]Example:[/dim] python -m models hidden-states ./bert --layer 3 --text "The cat sat." -o h.npy
    """
    try:
        states, tokens = hidden_states(checkpoint, layer, text)
    except HiddenStatesError as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        raise typer.Exit(2) from None
    with output.open("wb") as file:
        np.save(file, states)
    console.print(f"{output}: {states.shape[0]} tokens, {states.shape[1]} wide", highlight=False)
    print(json.dumps(tokens, ensure_ascii=False))  # noqa: T201, for a pipe
    console.print(
        f"curl -s '127.0.0.1:8000/attention?model=NAME' -H 'Content-Type: application/x-npy' --data-binary @{output}",
        highlight=False,
        soft_wrap=True,
    )
