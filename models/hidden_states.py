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

from models.checkpoints.errors import CheckpointError, some
from models.checkpoints.gguf_file import GgufFile
from models.checkpoints.gguf_tokenizer import gguf_tokenizer

console = Console()


class HiddenStatesError(RuntimeError):
    """The states cannot be had; the message says why, and what would help."""


def hidden_states(
    checkpoint: Path | str, layer: int, text: str
) -> tuple[Float32[np.ndarray, "tokens width"], list[str]]:
    """`hidden_states[layer]` of transformers for this text, and its tokens: what attention layer `layer` is given, 0
    being the first; of an encoder with a decoder, the encoder's. A `.gguf` file is dequantised, and its tokens are
    those that `models.checkpoints.gguf_tokenizer` makes, or else transformers'.

    Raises HiddenStatesError.
    """
    if find_spec("transformers") is None:
        raise HiddenStatesError(
            "this needs the package transformers, which serving does not: install it (make develop does), or save "
            f"`model(**tokens, output_hidden_states=True).hidden_states[{layer}][0]` where you have it"
        )
    path = Path(checkpoint)
    try:
        tokenizer, model = _of_gguf(path) if path.suffix == ".gguf" else _of_folder(checkpoint)
    except (OSError, ValueError, KeyError, CheckpointError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise HiddenStatesError(f"transformers cannot load {checkpoint}: {reason}") from error
    layers = model.config.get_text_config().num_hidden_layers
    if not 0 <= layer < layers:
        raise HiddenStatesError(f"{checkpoint} has the layers 0 to {layers - 1}, but layer {layer} was asked for")
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    if not ids.numel():
        raise HiddenStatesError("the text has no tokens")
    with torch.no_grad():
        states = encoder(input_ids=ids, output_hidden_states=True).hidden_states[layer][0]
    return states.float().numpy(), tokenizer.convert_ids_to_tokens(ids[0].tolist())


def _of_folder(checkpoint: Path | str) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    return tokenizer, AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()


def _of_gguf(path: Path) -> tuple[Any, Any]:
    """As `from_pretrained` does it, which asks for one more package only to load what is here loaded already."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    where: dict[str, Any] = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    try:
        tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=gguf_tokenizer(GgufFile(path)))
    except CheckpointError:
        tokenizer = AutoTokenizer.from_pretrained(**where)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(**where)).float().eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing = [name for name in model.load_state_dict(tensors, strict=False).missing_keys if name != "lm_head.weight"]
    if missing:
        raise ValueError(f"its module has {some(missing)}, which the file lacks")
    return tokenizer, model.base_model


def command(
    checkpoint: Annotated[
        str, typer.Argument(help="A folder with config.json, weights and tokenizer, a .gguf file, or a name.")
    ],
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
