"""A layer's text: the checkpoint's tokenizer and token embeddings, beside the graphs of its first layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from models.checkpoints.embeddings import Embeddings, embeddings
from models.checkpoints.errors import CheckpointError, some
from models.checkpoints.gguf_file import GgufFile
from models.checkpoints.gguf_tokenizer import gguf_tokenizer
from models.checkpoints.hugging_face import Folder
from models.checkpoints.source import Config, Source, Tensors
from models.text import EMBEDDINGS, FOLDER, TOKENIZER, Made, write_text

SLOW = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
"""Vocabularies in forms of their own, which transformers turns into tokenizer.json."""


@dataclass(frozen=True)
class WrittenText:
    """What was written, or in `reason` why nothing was."""

    tokens: int = 0
    bytes: int = 0
    dtype: str = ""
    reason: str = ""


def write_checkpoint_text(
    home: Path,
    source: Source,
    config: Mapping[str, Any],
    bare: list[str],
    tokenizer: Path | None = None,
) -> WrittenText:
    """Writes `home/text/`, from the checkpoint's own tokenizer or from the file `tokenizer`. What cannot be read is the
    result's reason, for the layer can be served without it; but CheckpointError where `tokenizer` cannot.
    """
    if tokenizer is not None:
        found = read_tokenizer(tokenizer)
    else:
        try:
            found = tokenizer_of(source)
        except CheckpointError as error:
            return WrittenText(reason=str(error))
    try:
        made = embeddings(Tensors(source), Config(config, source.name))
        table = source.stored(made.tokens)
    except CheckpointError as error:
        return WrittenText(reason=str(error))
    missing = found.get_vocab_size() - len(table)
    if missing > 0 and tokenizer is not None:
        raise CheckpointError(
            f"{tokenizer} has {found.get_vocab_size():,} tokens, but {source.name} embeddings for {len(table):,}: it "
            "is another model's"
        )
    folder = write_text(home, found, table, made=_made(made, bare))
    return WrittenText(
        found.get_vocab_size(),
        sum((folder / name).stat().st_size for name in (TOKENIZER, EMBEDDINGS)),
        str(table.dtype).removeprefix("torch."),
    )


def remove_text(home: Path) -> None:
    """That of another layer that had the name."""
    folder = home / FOLDER
    for name in (TOKENIZER, EMBEDDINGS):
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def tokenizer_of(source: Source) -> Tokenizer:
    """Raises CheckpointError where there is none, or none that can be read exactly."""
    if isinstance(source, GgufFile):
        return gguf_tokenizer(source)
    assert isinstance(source, Folder)
    if (source.path / TOKENIZER).is_file():
        return read_tokenizer(source.path / TOKENIZER)
    other = [name for name in SLOW if (source.path / name).is_file()]
    because = (
        f", but {some(other)}: transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...) makes it of them"
        if other
        else ""
    )
    raise CheckpointError(f"{source.name} has no {TOKENIZER}{because}")


def read_tokenizer(path: Path) -> Tokenizer:
    """Raises CheckpointError."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{path} cannot be read as a tokenizer: {error}") from error


def _made(found: Embeddings, bare: list[str]) -> Made:
    norm, projection = found.norm, found.projection
    return Made(
        scale=found.scale,
        segment=found.segment,
        positions=found.positions,
        padding=None if found.padding is None else (found.padding.token, found.padding.row),
        norm=None if norm is None or norm.weight is None else (norm.weight, norm.bias),
        epsilon=0.0 if norm is None else norm.epsilon,
        projection=None if projection is None else (projection.weight, projection.bias),
        projection_first=found.projection_first,
        bare=bare,
    )
