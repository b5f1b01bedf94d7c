"""Bits per byte on text that training has not seen, at the training length and beyond."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn.functional import cross_entropy

from models.training.block import BY_ID, Block, scalar
from models.training.recipe import LENGTH, SCALED

MULTIPLES = (1, 2, 4, 8)
BYTES = 64 << 10
"""Of the held-out text, from its beginning: the same bytes at every length."""
CELLS = 1 << 22
"""Scores computed at a time."""

Attend = Callable[[Tensor], Tensor]
"""Embeddings [batch, tokens, width] -> what attention returns of them [batch, tokens, heads, head_dim]."""


def stretching(encoding: str, multiple: int) -> dict[str, Tensor]:
    """Parameters of a way to stretch RoPE, set for texts of so many training lengths; of others none."""
    if encoding not in SCALED:
        return {}
    known = {parameter.name: parameter for parameter in BY_ID[encoding].card.parameters}
    changed = {"factor": scalar(known["factor"], float(multiple))} if "factor" in known else {}
    if "long_factor" in known:
        changed["long_factor"] = scalar(known["long_factor"], [float(multiple)])
    return changed


def bits_per_byte(block: Block, attend: Attend, text: UInt8[Tensor, " bytes"], length: int) -> float:
    """Mean over windows of `length` bytes that follow one another, each predicted from its own bytes alone; the first
    byte of a window is given.
    """
    heads = block.attention.heads
    windows = (len(text) - 1) // length
    read = text[: windows * length].view(windows, length).long()
    following = text[1 : windows * length + 1].view(windows, length).long()
    at_once = max(1, CELLS // (heads * length * length))
    nats = 0.0
    with torch.no_grad():
        for some in (slice(start, start + at_once) for start in range(0, windows, at_once)):
            x = block.embeddings[read[some]]
            logits = block.logits(x, attend(x)).flatten(0, 1)
            nats += float(cross_entropy(logits.double(), following[some].flatten(), reduction="sum"))
    return nats / (windows * length * math.log(2))


def attention_of(block: Block, encoding: str, length: int, changed: Mapping[str, Tensor] | None = None) -> Attend:
    """What the block's own attention returns, its tables computed once."""
    with torch.no_grad():
        tables = block.tables(encoding, length, changed)
    return lambda x: block.attend(encoding, x, tables)


def lengthened(block: Block, encoding: str, length: int) -> dict[str, Tensor]:
    """A table of positions with rows that no training has touched, drawn as the trained ones once were."""
    table = block.parameters_of(encoding)["table"]
    rows = 0.02 * torch.randn((length - len(table), table.shape[1]), generator=torch.Generator().manual_seed(0))
    return {"table": torch.cat([table, rows.to(table.dtype)])}


def at_multiple(block: Block, encoding: str, text: UInt8[Tensor, " bytes"], multiple: int) -> float:
    """Bits per byte at so many training lengths. Raises IndexError where an array has no row for a position."""
    length = multiple * LENGTH
    return bits_per_byte(block, attention_of(block, encoding, length, stretching(encoding, multiple)), text, length)
