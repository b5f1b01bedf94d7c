"""Writes docs/tiny.md and its picture from models/training/tiny.json, which `make train` writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "models" / "training" / "tiny.json"
PAGE = ROOT / "docs" / "tiny.md"
PICTURE = ROOT / "docs" / "images" / "tiny.png"

PANELS: Mapping[str, tuple[str, ...]] = {
    "none, or absolute positions": ("none", "integer", "sinusoidal", "learned", "tupe"),
    "relative positions": (
        *("shaw", "transformer-xl", "t5", "deberta", "alibi", "kerple", "sandwich", "fire", "cope", "fox"),
    ),
    "rotary": ("rope", "rope-proportional", "xpos"),
    "rotary, stretched without training": (
        *("rope", "rope-linear", "rope-ntk", "rope-dynamic", "rope-yarn", "rope-llama3", "rope-longrope"),
    ),
}
FLAT, SOME = 0.02, 0.15
"""Bits per byte, at 8 times the training length more than at it: up to which an encoding counts as flat, as rising a
little.
"""

Bits = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class Claim:
    """What was published, who says so, and whether it is so here."""

    text: str
    source: str
    holds: Callable[[Bits], bool]
    shown: tuple[str, ...]
    """Encodings whose figures decide it."""


def at(bits: Bits, encoding: str, multiple: int) -> float:
    value = bits[encoding][str(multiple)]
    assert value is not None
    return value


def rise(bits: Bits, encoding: str, multiple: int = 8) -> float:
    return at(bits, encoding, multiple) - at(bits, encoding, 1)


CLAIMS = (
    Claim(
        "ALiBi loses nothing beyond the training length",
        "Press et al. 2022, figure 1",
        lambda bits: rise(bits, "alibi") <= FLAT,
        ("alibi",),
    ),
    Claim(
        "at twice the training length sinusoidal positions have failed, RoPE less, T5's bias less still, ALiBi least",
        "Press et al. 2022, figure 1",
        lambda bits: rise(bits, "sinusoidal", 2) > rise(bits, "rope", 2) > rise(bits, "t5", 2) > rise(bits, "alibi", 2),
        ("sinusoidal", "rope", "t5", "alibi"),
    ),
    Claim(
        "T5's bias holds far beyond the training length",
        "Press et al. 2022, figure 1",
        lambda bits: rise(bits, "t5") <= SOME,
        ("t5",),
    ),
    Claim(
        "xPos goes farther than RoPE",
        "Sun et al. 2022",
        lambda bits: rise(bits, "xpos") < rise(bits, "rope"),
        ("xpos", "rope"),
    ),
    Claim(
        "KERPLE's logarithm holds, at fewer bits than ALiBi",
        "Chi et al. 2022 (2205.09921)",
        lambda bits: rise(bits, "kerple") <= FLAT and at(bits, "kerple", 8) < at(bits, "alibi", 8),
        ("kerple", "alibi"),
    ),
    Claim(
        "Sandwich holds, and does no worse than ALiBi",
        "Chi et al. 2022 (2212.10356)",
        lambda bits: rise(bits, "sandwich") <= FLAT and at(bits, "sandwich", 8) <= at(bits, "alibi", 8),
        ("sandwich", "alibi"),
    ),
    Claim(
        "FIRE goes farther than RoPE",
        "Li et al. 2024",
        lambda bits: rise(bits, "fire") < rise(bits, "rope"),
        ("fire", "rope"),
    ),
    Claim(
        "FoX goes farther than RoPE",
        "Lin et al. 2025",
        lambda bits: rise(bits, "fox") < rise(bits, "rope"),
        ("fox", "rope"),
    ),
    Claim(
        "CoPE goes farther than RoPE",
        "Golovneva et al. 2024",
        lambda bits: rise(bits, "cope") < rise(bits, "rope"),
        ("cope", "rope"),
    ),
    Claim(
        "without training, NTK's stretch of RoPE does better than linear interpolation, and YaRN's better than both",
        "Peng et al. 2023",
        lambda bits: at(bits, "rope-yarn", 8) < at(bits, "rope-ntk", 8) < at(bits, "rope-linear", 8),
        ("rope-yarn", "rope-ntk", "rope-linear"),
    ),
    Claim(
        "a causal decoder without any encoding does about as well at its training length, and goes farther",
        "Kazemnejad et al. 2023 (many layers)",
        lambda bits: at(bits, "none", 1) < at(bits, "rope", 1) + SOME and rise(bits, "none") < rise(bits, "rope"),
        ("none", "rope"),
    ),
)


def main() -> None:
    results = json.loads(RESULTS.read_text("utf-8"))
    PAGE.write_text(page(results), "utf-8")
    draw(results, PICTURE)
    print(f"{PAGE.relative_to(ROOT)}, {PICTURE.relative_to(ROOT)}")


def page(results: Mapping[str, Any]) -> str:
    bits: Bits = results["bits_per_byte"]
    recipe, corpus, seconds = results["recipe"], results["corpus"], results["seconds"]
    length = results["training_length"]
    multiples = [int(multiple) for multiple in next(iter(bits.values()))]
    batches = recipe["steps"] * recipe["encodings"] // sum(encoding not in STRETCHED for encoding in bits)
    return f"""# `tiny`: every encoding over one set of trained weights

One transformer block that predicts the next byte: 64 wide, 4 heads of 16, an MLP of 256, {size(results)}.
It is trained under {len(bits) - len(STRETCHED)} encodings at once. Embeddings, projections, MLP and the layer that
predicts are shared; each encoding has its own positional arrays, if it has any (T5's biases, Shaw's vectors, ...),
trained along. So head 2 is the same head under each, and what differs between two encodings of `tiny` is the encoding.
A model trained under one encoding alone would do better under that one: these weights are a compromise.

- Attention reads token embeddings as they are: no norm before it. One layer has no induction heads: it sees which
  bytes are near, not what followed them the last time.
- Training is causal, so `causal` is true by default. `causal=false` is served, but was never trained.
- All share one scale of q.k, 1/sqrt(head_dim), T5, TUPE and DeBERTa too (their cards say 1, 1/sqrt(2 head_dim) and
  1/sqrt(3 head_dim)): with shared W_q and W_k, content then scores the same under each. `t5.scale=1` asks for the
  card's.
- What papers fit to their training length is fitted to {length} bytes here: T5's `max_distance` is 64, xPos'
  `scale_base` 64, FIRE's `L` 32, CoPE's `e` has 33 rows; `GET /encodings/ID?model=tiny` shows all.
- `learned` and `tupe` have {length} rows: longer texts are refused under them, and left out of `compare=all`.
- Six ways to stretch RoPE have nothing to train. They meet the trained weights with slower frequencies.

```
curl -s '127.0.0.1:8000/attention?compare=alibi,t5&return=weights' -H 'Content-Type: application/json' \\
     -d '{{"text": "def f(x):"}}'
```

Each byte of the text's UTF-8 is a token; the answer's `tokens` show a space as `␣` and a byte that is no character by
itself as `\\xc3`.

## Bits per byte

On {results["evaluated_bytes"]:,} bytes that training has not seen, cut into windows of 1, 2, 4 and 8 times the training
length; each byte is predicted from those before it in its window. A longer window has fewer bytes with little before
them, so an encoding that carries over falls. For the ways to stretch RoPE `factor` is the multiple.

![Bits per byte at 1 to 8 times the training length](images/tiny.png)

{table(results, multiples)}

Beyond {length} positions `learned` and `tupe` have no row. With further rows left at first values (noise of deviation
0.02): {untrained(results)}.

At 8 times the training length, against 1: {groups(bits)}.

## Beside what was published

The papers train models of many layers on long texts, each under one encoding. Here is one block, {batches:,} batches
for each encoding, and shared weights: the order can be compared, the figures cannot. *Flat* is a rise of at most {FLAT}
bits per byte.

{claims(bits)}

ALiBi's slopes are fixed, 1/4, 1/16, 1/64 and 1/256 for 4 heads: none is steep enough to single out the byte just
before, which one layer that predicts bytes needs most; KERPLE, T5 and FoX learn how steep to be. NTK's, YaRN's and
Llama's ways leave the fast pairs alone, which see the nearest bytes; linear interpolation and LongRoPE with one
factor for all pairs slow those down as well. Without any encoding one layer sees a bag of bytes: what papers report
of such models takes several.

## How it was made

`make train`: {seconds["cpu"] / 60:.0f} minutes of one core. It goes on where it stopped, from a checkpoint in
`results/`, and comes to the same weights, bit for bit, as if it had not. The text is Python's own standard library:
{corpus["trained_on_bytes"]:,} bytes of sources and documentation of Python {corpus["python"]},
{corpus["held_out_bytes"]:,} more held out. Their digest is `{corpus["digest"]}`;
another version of Python has another text. {recipe["steps"]:,} steps, in each {recipe["encodings"]} encodings in turn
on the same {recipe["batch"]} examples of {length} bytes; AdamW at a rate of {recipe["rate"]:g}, level, then falling
over the last {recipe["cool_down"]:.0%} of the steps; each encoding's gradient clipped to a norm of {recipe["clip"]:g};
seed {recipe["seed"]}, torch {results["torch"]}.

More steps are not better at this rate: 7,900 of the same recipe came out worse under all of the encodings that were
looked at (on the first 16 KiB of the held-out text, `rope` 2.80 bits where these weights have 2.19, `alibi` 2.90 and
2.60) but `integer` (3.51 and 3.55).

`models/training/tiny.safetensors` holds all weights, also those that are not served (W_o, the MLP, the prediction);
`tiny.json` beside it the figures above. `python -m docs.make_tiny` writes this page.
"""


STRETCHED = tuple(name for name in PANELS["rotary, stretched without training"] if name != "rope")


def size(results: Mapping[str, Any]) -> str:
    counts = results["parameters"]
    return f"{counts['shared']:,} shared weights and {counts['positional']:,} positional ones"


def table(results: Mapping[str, Any], multiples: Sequence[int]) -> str:
    bits: Bits = results["bits_per_byte"]
    length = results["training_length"]
    head = "| encoding | " + " | ".join(f"{length * multiple:,} bytes" for multiple in multiples) + " | rise |"
    lines = [head, "|---|" + "---:|" * (len(multiples) + 1)]
    for encoding in sorted(bits, key=lambda one: (bits[one]["1"] or 0.0, one)):
        figures = [bits[encoding][str(multiple)] for multiple in multiples]
        last = figures[-1]
        grown = "" if last is None else f"{last - at(bits, encoding, 1):+.3f}"
        cells = " | ".join("" if figure is None else f"{figure:.3f}" for figure in figures)
        lines.append(f"| `{encoding}` | {cells} | {grown} |")
    return "\n".join(lines)


def untrained(results: Mapping[str, Any]) -> str:
    found = results["bits_per_byte_of_untrained_rows"]
    return "; ".join(
        f"`{encoding}` " + ", ".join(f"{value:.3f} at {multiple} times" for multiple, value in values.items())
        for encoding, values in found.items()
    )


def groups(bits: Bits) -> str:
    whole = {encoding: rise(bits, encoding) for encoding, found in bits.items() if found["8"] is not None}
    ordered = sorted(whole, key=lambda encoding: whole[encoding])
    parts = (
        ("flat or falling", [one for one in ordered if whole[one] <= FLAT]),
        (f"up by at most {SOME}", [one for one in ordered if FLAT < whole[one] <= SOME]),
        ("up by more", [one for one in ordered if whole[one] > SOME]),
    )
    return "; ".join(f"{name}: {', '.join(f'`{one}`' for one in found) or 'none'}" for name, found in parts)


def claims(bits: Bits) -> str:
    lines = ["| published | here | at 1, 2, 4, 8 times |", "|---|---|---|"]
    for claim in CLAIMS:
        verdict = "so here" if claim.holds(bits) else "**not so here**"
        shown = "; ".join(
            f"`{encoding}` " + " ".join("-" if value is None else f"{value:.2f}" for value in bits[encoding].values())
            for encoding in claim.shown
        )
        lines.append(f"| {claim.text} ({claim.source}) | {verdict} | {shown} |")
    return "\n".join(lines)


def draw(results: Mapping[str, Any], path: Path) -> None:
    """A panel for each kind, on one scale; names stand where lines end."""
    bits: Bits = results["bits_per_byte"]
    figure, axes = plt.subplots(1, len(PANELS), figsize=(15, 5), layout="constrained", sharey=True)
    ceiling = max(value or 0 for name, found in bits.items() if name != "integer" for value in found.values()) + 0.1
    floor = min(value for found in bits.values() for value in found.values() if value is not None) - 0.1
    for axis, (title, names) in zip(axes, PANELS.items(), strict=True):
        ends: list[tuple[float, int, str, Any]] = []
        for name in names:
            points = [(int(multiple), value) for multiple, value in bits[name].items() if value is not None]
            marks = dict(points)
            (line,) = axis.plot(list(marks), list(marks.values()), marker="o", markersize=3.5)
            last = max(marks)
            ends.append((marks[last], last, name, line.get_color()))
        room, lowest = (ceiling - floor) / 30, float("-inf")
        for value, last, name, colour in sorted(ends):
            lowest = max(min(value, ceiling - room), lowest + room)
            axis.annotate(name, (last, lowest), xytext=(6, 0), textcoords="offset points", va="center", color=colour)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator([1, 2, 4, 8]))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticklabels(["1", "2", "4", "8"])
        axis.set_xlim(0.9, 24)
        axis.set_title(title)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylim(floor, ceiling)
    axes[0].set_ylabel("bits per byte on held-out text")
    figure.supxlabel("length / training length", fontsize=10)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
