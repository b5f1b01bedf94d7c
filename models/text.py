"""What lets an exported model take text: its tokenizer and token embeddings, beside its graphs (docs/architecture.md).

Any model can carry them: `tiny`, whose tokens are bytes, and layers of other people's checkpoints.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

FOLDER, TOKENIZER, EMBEDDINGS = "text", "tokenizer.json", "embeddings.safetensors"
FORMAT = 1


def write_text(
    home: Path,
    tokenizer: Tokenizer,
    embeddings: Float[Tensor, "tokens width"],
    encoding: str | None = None,
) -> Path:
    """Writes `<home>/text/`, `home` being `exported/<model>`: row i of `embeddings` (float32 or float16) is what the
    model's graphs take for token i. `encoding` is the one that text is scored under unless a request names another;
    None: the model's own. Returns the folder.
    """
    if embeddings.dtype not in (torch.float32, torch.float16):
        raise ValueError(f"embeddings are {embeddings.dtype}; float32 and float16 are read")
    folder = home / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOKENIZER).write_text(tokenizer.to_str(pretty=True) + "\n", "utf-8")
    about = {"format": FORMAT, "model": home.name, "encoding": encoding}
    table = {"embeddings": embeddings.detach().contiguous()}
    (folder / EMBEDDINGS).write_bytes(save(table, {"attention": json.dumps(about, sort_keys=True)}))
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
