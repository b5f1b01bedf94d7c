"""Draws the README's picture from the answers of a service that it starts, and stops again: `make images`."""

from __future__ import annotations

import io
import json
import urllib.request
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float

from load_tests.server import running_service

ROOT = Path(__file__).resolve().parent.parent
ENCODINGS = ("none", "sinusoidal", "rope", "alibi", "t5")
HEADS, HEAD = 8, 0
# The rows of the table are about 1 long: as they are, every weight would be within a few per cent of 1/tokens.
GAIN = 8.0


def ask(address: str, embeddings: Float[np.ndarray, "tokens width"]) -> dict[str, Float[np.ndarray, "tokens tokens"]]:
    """The weights of one head under each encoding, in one request."""
    body = io.BytesIO()
    np.save(body, embeddings)
    first, *others = ENCODINGS
    request = urllib.request.Request(
        f"{address}/attention?encoding={first}&compare={','.join(others)}&heads={HEADS}&return=weights",
        data=body.getvalue(),
        headers={"Content-Type": "application/x-npy", "Accept": "application/x-npz"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        arrays = np.load(io.BytesIO(answer.read()))
    return {encoding: arrays[f"{encoding}/weights"][HEAD] for encoding in ENCODINGS}


def draw(weights: dict[str, Float[np.ndarray, "tokens tokens"]], tokens: list[str], path: Path) -> None:
    """One panel for each encoding on one scale: how many times the uniform share a key gets, as a power of two."""
    figure, axes = plt.subplots(1, len(weights), figsize=(15, 3.7), layout="constrained", sharey=True)
    limit = np.log2(len(tokens))
    for axis, (encoding, matrix) in zip(axes, weights.items(), strict=True):
        times_uniform = np.log2(np.maximum(matrix * len(tokens), 2.0**-limit))
        picture = axis.imshow(times_uniform, cmap="PuOr_r", vmin=-limit, vmax=limit)
        axis.set_title(encoding)
        axis.set_xticks(range(len(tokens)), tokens, rotation=90)
        axis.set_yticks(range(len(tokens)), tokens)
    axes[0].set_ylabel("query")
    figure.supxlabel("key", fontsize=10)
    ticks = np.arange(-3, 4)
    bar = figure.colorbar(picture, ax=axes, ticks=ticks, shrink=0.85, label="weight / uniform weight")
    bar.ax.set_yticklabels([f"{2.0**tick:g}x" if tick >= 0 else f"1/{2**-tick}x" for tick in ticks])
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    about = json.loads((ROOT / "tests/data/sentence.json").read_text())
    embeddings = np.load(ROOT / "tests/data/sentence.npy")
    with running_service() as address:
        weights = ask(address, embeddings * np.float32(GAIN))
    draw(weights, about["tokens"], ROOT / "docs/images/sentence.png")


if __name__ == "__main__":
    main()
