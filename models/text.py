"""What lets an exported model take text: its tokenizer and token embeddings, beside its graphs (docs/architecture.md).

Any model can carry them: `tiny`, whose tokens are bytes, and layers of other people's checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copymode
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

FOLDER, TOKENIZER, EMBEDDINGS = "text", "tokenizer.json", "embeddings.safetensors"
ROWS, MADE = 1, 2
"""The format where rows are taken as they are, and where something is made of them."""
READ = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Made:
    """What a model makes of the rows of its tokens: times `scale`, + `segment`, + the row of `positions` at the token's
    position, then `norm`, (x - mean)/sqrt(var + epsilon) times a weight + a bias, then `projection`, a matrix times it
    + a bias; with `projection_first` that before the norm. `padding` is a token without a position, which is not
    counted, and what is added to it.

    `bare` are the model's encodings that take the rows as they are, for they do all this themselves.
    """

    scale: float = 1.0
    segment: Float[Tensor, " width"] | None = None
    positions: Float[Tensor, "positions width"] | None = None
    padding: tuple[int, Float[Tensor, " width"]] | None = None
    norm: tuple[Float[Tensor, " width"], Float[Tensor, " width"] | None] | None = None
    epsilon: float = 0.0
    projection: tuple[Float[Tensor, "out width"], Float[Tensor, " out"] | None] | None = None
    projection_first: bool = False
    bare: Sequence[str] = ()

    @property
    def steps(self) -> list[str]:
        """Those that there are, in order."""
        last = ["projection", "norm"] if self.projection_first else ["norm", "projection"]
        there = {
            "scale": self.scale != 1,
            "segment": self.segment is not None,
            "positions": self.positions is not None,
            "norm": self.norm is not None,
            "projection": self.projection is not None,
        }
        return [step for step in ("scale", "segment", "positions", *last) if there[step]]

    def tensors(self) -> dict[str, Tensor]:
        """By their names in the file, in float32."""
        found = {"segment": self.segment, "positions": self.positions}
        found["padding"] = None if self.padding is None else self.padding[1]
        for name, pair in (("norm", self.norm), ("projection", self.projection)):
            weight, bias = pair or (None, None)
            found |= {f"{name}.weight": weight, f"{name}.bias": bias}
        return {name: tensor.float() for name, tensor in found.items() if tensor is not None}


def write_text(
    home: Path,
    tokenizer: Tokenizer,
    embeddings: Float[Tensor, "tokens width"],
    encoding: str | None = None,
    made: Made | None = None,
) -> Path:
    """Writes `<home>/text/`, `home` being `exported/<model>`: row i of `embeddings` (float32, float16 or bfloat16) is
    what the model's graphs take for token i, once what is `made` of it is. `encoding` is the one that text is scored
    under unless a request names another; None: the model's own. Files that are there are replaced, not written into: a
    service may read them by memory map. Returns the folder.
    """
    if embeddings.dtype not in READ:
        raise ValueError(f"embeddings are {embeddings.dtype}; float32, float16 and bfloat16 are read")
    folder = home / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"format": ROWS, "model": home.name, "encoding": encoding}
    tensors = {"embeddings": embeddings.detach().contiguous()}
    if made is not None and made.steps:
        about |= {"format": MADE, "steps": made.steps, "scale": made.scale, "epsilon": made.epsilon}
        about["bare"] = list(made.bare)
        if made.padding is not None:
            about["padding"] = made.padding[0]
        tensors |= {name: tensor.detach().contiguous() for name, tensor in made.tensors().items()}
    names, rows = folder / f"{TOKENIZER}.partial", folder / f"{EMBEDDINGS}.partial"
    names.write_text(tokenizer.to_str(pretty=True) + "\n", "utf-8")
    save_file(tensors, rows, {"attention": json.dumps(about, sort_keys=True)})
    copymode(names, rows)  # safetensors leaves it to its owner alone
    names.replace(folder / TOKENIZER)
    rows.replace(folder / EMBEDDINGS)
    return folder


def byte_tokenizer() -> Tokenizer:
    """Every byte of the text's UTF-8 is a token, whose id is the byte."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    # The library's letters for bytes, as in GPT-2: those that Latin-1 cannot print get the next from U+0100 on.
    others = [byte for byte in range(256) if byte not in printed]
    letters = {chr(byte): byte for byte in printed} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
