"""What a training came to, as a file: its circumstances, and bits per byte under each encoding."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from models.training.corpus import Corpus
from models.training.evaluation import BYTES, MULTIPLES, at_multiple, attention_of, bits_per_byte, lengthened
from models.training.recipe import LENGTH, SCALED
from models.training.trainer import Training

BOUNDED = ("learned", "tupe")
"""Encodings with a table of positions, which ends with the training length."""


def results(training: Training, corpus: Corpus, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measures every encoding at every multiple of the training length."""
    block, text = training.block, corpus.held_out[: BYTES + 1]
    measured: dict[str, dict[str, float | None]] = {}
    for encoding in (*block.encodings, *SCALED):
        progress(encoding)
        beyond = 1 if encoding in BOUNDED else max(MULTIPLES)
        measured[encoding] = {
            str(multiple): at_multiple(block, encoding, text, multiple) if multiple <= beyond else None
            for multiple in MULTIPLES
        }
    untrained: dict[str, dict[str, float]] = {}
    for encoding in BOUNDED:
        progress(encoding)
        untrained[encoding] = {}
        for multiple in MULTIPLES[1:]:
            length = multiple * LENGTH
            attend = attention_of(block, encoding, length, lengthened(block, encoding, length))
            untrained[encoding][str(multiple)] = bits_per_byte(block, attend, text, length)
    return {
        "recipe": training.recipe.as_dict(),
        "parameters": {
            "shared": sum(p.numel() for name, p in block.named_parameters() if not name.startswith("positional.")),
            "positional": sum(array.numel() for array in block.positional.values()),
        },
        "training_length": LENGTH,
        "corpus": {
            "python": platform.python_version(),
            "digest": corpus.digest,
            "trained_on_bytes": len(corpus.trained_on),
            "held_out_bytes": len(corpus.held_out),
        },
        "torch": torch.__version__,
        "seconds": {"wall": round(training.wall, 1), "cpu": round(training.cpu, 1)},
        "evaluated_bytes": BYTES,
        "bits_per_byte": measured,
        "bits_per_byte_of_untrained_rows": untrained,
    }


def write(found: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
