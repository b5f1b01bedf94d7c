"""A real sentence: the token embeddings of a published model, as docs/make_preset_sentence.py has copied them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import orjson
from jaxtyping import Float32

from service.presets.preset import Tokens

HOME = Path(__file__).parent
FACTOR = 8
"""The rows are short: as they are, every weight would be close to 1/n. A power of two, so it rounds nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Sentence:
    """`source` and `license` are those of the numbers."""

    text: str
    tokens: tuple[str, ...]
    source: str
    license: str
    embeddings: Float32[np.ndarray, "tokens width"]


@cache
def read() -> Sentence:
    about = orjson.loads((HOME / "sentence.json").read_bytes())
    embeddings: Float32[np.ndarray, "tokens width"] = np.load(HOME / "sentence.npy", allow_pickle=False)
    return Sentence(about["text"], tuple(about["tokens"]), about["source"], about["license"], embeddings)


def sentence(n: int, d: int) -> Tokens:
    """The first n tokens, the first d components of each."""
    found = read()
    return Tokens(FACTOR * np.ascontiguousarray(found.embeddings[:n, :d], dtype="<f4"), found.tokens[:n])
