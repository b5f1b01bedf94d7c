"""The trained model as a family to export, with the tokenizer and the embeddings that let it take text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.encodings import ENCODINGS
from models.encodings.encoding import Encoding
from models.family import Family
from models.training.block import Block
from models.training.checkpoint import digest
from models.training.recipe import DEFAULTS, HEAD_DIM, HEADS, LENGTH, SCALED, WIDTH

NAME = "tiny"
WEIGHTS = Path(__file__).with_name("tiny.safetensors")
"""Committed: what `make train` writes and `make export` reads."""
RESULTS = Path(__file__).with_name("tiny.json")


ONE_SCALE = "1/sqrt(head_dim) under every encoding of this model, since all share W_q and W_k"
JOINT = f"causal, {LENGTH} bytes at a time, under all encodings of this model at once over one set of content weights"
STRETCHED = "none under this encoding, which meets what was trained under rope and others"
NO_FUTURE = "; rows of future keys were never trained, for training is causal"
TRAINED: Mapping[str, Mapping[str, str]] = {
    "learned": {"table": f"trained with the model, {LENGTH} rows: positions beyond them are refused"},
    "shaw": {"K": "16; trained with the model" + NO_FUTURE},
    "transformer-xl": {"u and v": "live in head space, one of each for every head; trained with the model, as W is"},
    "t5": {"bias": "trained with the model" + NO_FUTURE},
    "tupe": {"table": f"trained with the model, {LENGTH} rows: positions beyond them are refused"},
    "deberta": {"k": f"{LENGTH // 2}; trained with the model" + NO_FUTURE},
    "kerple": {"p and a": "trained with the model"},
    "fire": {"network": "1 -> 32 -> heads with one relu, trained with the model", "c and L": "0.1 and 32, not trained"},
    "cope": {"e": "N = 32, trained with the model"},
    "fox": {"w_f and b_f": "trained with the model"},
}
"""Lines in place of the cards', which tell of the first values."""


def conventions(encoding: str) -> dict[str, str]:
    """What is particular to this model."""
    lines = dict(TRAINED.get(encoding, {}))
    if "scale" in DEFAULTS.get(encoding, {}):
        lines["scale"] = ONE_SCALE
    return lines | {"training": STRETCHED if encoding in SCALED else JOINT}


def family(block: Block) -> Family:
    """Causal unless a request says otherwise: so it was trained. What is trained is part of the graphs."""
    prefixes = {encoding: f"{encoding}/" for encoding in block.encodings}
    shared = (
        block.embeddings,
        *(layer.weight for layer in (block.attention.w_q, block.attention.w_k, block.attention.w_v)),
    )
    return Family(
        NAME,
        block.attention,
        (HEADS, HEAD_DIM, WIDTH),
        default_causal=True,
        fixed={
            encoding: {
                name.removeprefix(prefix): array.detach()
                for name, array in block.positional.items()
                if name.startswith(prefix)
            }
            for encoding, prefix in prefixes.items()
        },
        defaults=DEFAULTS,
        conventions={encoding: conventions(encoding) for encoding in (*block.encodings, *SCALED)},
        details={"weights": digest(shared)},
    )


def encodings(block: Block) -> list[Encoding]:
    """Those it was trained under, and the ways to stretch one of them."""
    return [encoding for encoding in ENCODINGS if encoding.card.id in (*block.encodings, *SCALED)]
