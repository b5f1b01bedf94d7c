"""What llama.cpp's conversion does to tensors of some architectures, undone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

PAIRED = ("llama", "granite", "smollm3")
"""Architectures whose rows of W_q and W_k are reordered, so that the pairs of the half layout lie side by side."""
PLUS_ONE = ("gemma", "gemma2")
"""Architectures whose norms are stored as what they multiply by, 1 + w."""


def restored(tensor: Tensor, name: str, architecture: str, config: Mapping[str, Any]) -> Tensor:
    """The tensor as transformers has it; `name` is GGUF's."""
    role = name.rsplit(".", 2)[-2]
    if architecture in PAIRED and role in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if role == "attn_q" else "num_key_value_heads"]
        return halves(tensor, heads)
    if architecture in PLUS_ONE and role.endswith("norm"):
        return tensor - 1
    return tensor


def halves(rows: Tensor, heads: int) -> Tensor:
    """Rows (0, 1), (2, 3), ... of each head, which are pairs, as (0, D/2), (1, D/2 + 1), ..."""
    paired = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return paired.transpose(1, 2).reshape(rows.shape)
