"""Writes docs/encodings.md: `make docs`.

From the cards and pictures of a service that it starts, and the errors that `python -m tests.oracles --write` found.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from load_tests.server import running_service

ROOT = Path(__file__).resolve().parent.parent
ERRORS = ROOT / "docs" / "encodings-errors.json"
PICTURES = ROOT / "docs" / "images" / "encodings"
PAGE = ROOT / "docs" / "encodings.md"

INVARIANTS = {
    "shift": ("shift", "scores stay when all positions move together"),
    "prefix": ("prefix", "under a causal mask, scores of the first tokens stay when more are appended"),
    "permutation": ("permutation", "tokens permuted, positions kept: scores permute with them"),
    "toeplitz": ("Toeplitz", "equal tokens give scores that depend on m - n alone"),
    "diagonal": ("diagonal", "S(m, m) is the plain scaled q.k"),
    "far_share": ("far", "all far distances share one bias"),
}
NOTATION = """\
m is the position of the query, n that of the key, r = m - n (positive: the key lies in the past); q and k are vectors
of one head of `head_dim` components, c = 1/sqrt(head_dim), H the number of heads. A *score* is what enters the softmax,
after scale and bias and before the mask. Every encoding also takes `scale`, `softcap` and `sinks`. Under `identity`,
q = k = v = the embeddings, split into heads.

The pictures show what position alone contributes: 64 queries by 64 keys, 4 heads of 16 components, as
`GET /encodings/<id>/positions` with `Accept: image/png` draws them. Learned parameters are at their seeded start.

*Largest errors*: the exported graphs, run by onnxruntime in float32, beside independent implementations on random
heads, widths, lengths, positions, parameters and masks. Scores relative to the largest score of a case; weights
absolute. A weight moves by at most half of what its scores move, and the rounding of float32 scores grows with their
size: the tests hold weights to 1e-6 where no score exceeds 4, else to two float32 epsilons of the largest score
(integer positions, ALiBi at far distances and T5 without its scale have scores of hundreds)."""


def main() -> None:
    """Start a service, ask it for every card and picture, write the page, stop the service."""
    rows: list[dict[str, Any]] = json.loads(ERRORS.read_text())
    PICTURES.mkdir(parents=True, exist_ok=True)
    with running_service() as address:
        listed = json.loads(fetch(f"{address}/encodings"))["encodings"]
        cards = [json.loads(fetch(f"{address}/encodings/{line['id']}")) for line in listed]
        for card in cards:
            causal = "&causal=true" if card["causal"] == "required" else ""
            query = f"queries=64&keys=64&width=64&heads=4{causal}"
            picture = fetch(f"{address}/encodings/{card['id']}/positions?{query}", "image/png")
            (PICTURES / f"{card['id']}.png").write_bytes(picture)
    PAGE.write_text("\n".join(page(cards, rows)) + "\n")
    print(f"{PAGE.relative_to(ROOT)}: {len(cards)} encodings, {len(rows)} oracles")


def fetch(url: str, accept: str = "application/json") -> bytes:
    """The body of a GET."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        body: bytes = answer.read()
    return body


def page(cards: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of the page."""
    yield "# The encodings"
    yield ""
    yield "Generated from the exported models' cards by `make docs`; the errors by `python -m tests.oracles --write`."
    yield ""
    yield NOTATION
    yield ""
    yield from overview(cards, rows)
    for card in cards:
        yield ""
        yield from section(card, [row for row in rows if row["encoding"] == card["id"]])


def overview(cards: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line for each encoding: what holds, and the largest error of all its oracles."""
    headings = [short for short, _ in INVARIANTS.values()]
    yield f"| encoding | {' | '.join(headings)} | oracles | cases | scores | weights |"
    yield f"|---|{':-:|' * len(headings)}--:|--:|--:|--:|"
    for card in cards:
        mine = [row for row in rows if row["encoding"] == card["id"]]
        holds = ["yes" if card["invariants"][name] else "" for name in INVARIANTS]
        cases, scores, weights = sum(row["cases"] for row in mine), worst(mine, "scores"), worst(mine, "weights")
        name = f"[{card['id']}](#{anchor(card)})"
        yield f"| {name} | {' | '.join(holds)} | {len(mine)} | {cases:,} | {scores} | {weights} |"
    yield ""
    yield "; ".join(f"*{short}*: {meaning}" for short, meaning in INVARIANTS.values()) + "."


def section(card: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """All of one encoding."""
    yield f"## {card['id']}"
    yield ""
    aliases = f" Also `{'`, `'.join(card['aliases'])}`." if card["aliases"] else ""
    yield f"**{card['title']}.** {card['summary']}{aliases}"
    yield ""
    yield "```math"
    yield card["formula"]["latex"]
    yield "```"
    yield ""
    yield f"`{card['formula']['plain']}`"
    yield ""
    if card["paper"]:
        paper = card["paper"]
        source = f", arXiv {paper['arxiv']}" if paper["arxiv"] else ""
        yield f"{paper['authors']} {paper['year']}: *{paper['title']}*{source}."
        yield ""
    yield f"![what position alone contributes under {card['id']}](images/encodings/{card['id']}.png)"
    yield ""
    if card["causal"] == "required":
        yield "Causal only."
        yield ""
    own = [parameter for parameter in card["parameters"] if parameter["name"] not in ("scale", "softcap", "sinks")]
    if own:
        yield "| parameter | kind | default | allowed | meaning |"
        yield "|---|---|---|---|---|"
        for parameter in own:
            cells = (
                f"`{parameter['name']}`",
                parameter["kind"],
                default(parameter),
                allowed(parameter),
                parameter["description"],
            )
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        yield ""
    yield "Terms: " + "; ".join(f"`{term['name']}` = {term['description']}" for term in card["terms"]) + "."
    yield ""
    for name, convention in card["conventions"].items():
        yield f"- *{name}*: {convention}"
    if card["seed_article"]:
        yield ""
        yield f"> {card['seed_article']}"
    yield ""
    yield "| oracle | covers | cases | scores | weights |"
    yield "|---|---|--:|--:|--:|"
    for row in rows:
        yield f"| {row['oracle']} | {row['domain']} | {row['cases']} | {row['scores']:.1e} | {row['weights']:.1e} |"


def worst(rows: Sequence[Mapping[str, Any]], figure: str) -> str:
    return f"{max(row[figure] for row in rows):.1e}" if rows else "not checked"


def anchor(card: Mapping[str, Any]) -> str:
    return str(card["id"]).lower()


def default(parameter: Mapping[str, Any]) -> str:
    if parameter["kind"] != "array":
        return "derived" if parameter["default"] is None else json.dumps(parameter["default"])
    initial = parameter["initial"]
    match initial["distribution"]:
        case "normal":
            return f"N({initial['mean']:g}, {initial['deviation']:g})"
        case "uniform":
            return f"U({initial['low']:g}, {initial['high']:g})"
        case named:
            return str(named).replace("_", " ")


def allowed(parameter: Mapping[str, Any]) -> str:
    if parameter["choices"]:
        return ", ".join(parameter["choices"])
    if parameter["kind"] == "array":
        axes = [f"{axis}" + sized(parameter["sizes"].get(axis)) for axis in parameter["shape"]]
        return f"[{', '.join(axes)}]"
    if parameter["minimum"] is None:
        return "true, false" if parameter["kind"] == "flag" else ""
    return f"{parameter['minimum']:g} to {parameter['maximum']:g}"


def sized(size: Mapping[str, Any] | None) -> str:
    if size is None:
        return ""
    start = f" = {size['default']}" if size["default"] else ""
    return f"{start} ({size['minimum']} to {size['maximum']})"


if __name__ == "__main__":
    main()
