"""One request after another, drawn from a mix."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy

from load_tests.bodies import Body
from load_tests.scenarios import Mix

ACCEPT = {
    "json": "application/json",
    "npy": "application/vnd.safetensors",  # what comes as one array goes as several
    "npz": "application/x-npz",
    "safetensors": "application/vnd.safetensors",
}
ROW_SUM = {False: 1e-4, True: 2e-3}
"""How far rows may be from a sum of 1, in float32 and in float16."""


@dataclass(frozen=True)
class Ask:
    """`name` is what it counts under. `weights` says whether the answer has them, to be checked."""

    name: str
    path: str
    body: Body
    accept: str
    weights: bool


def size(tokens: int) -> str:
    """As the service's histograms have it."""
    return "s" if tokens <= 128 else "m" if tokens <= 512 else "l"


def needed(mix: Mix) -> Iterator[tuple[int, int, str]]:
    """Tokens, width and format of every body that may be drawn."""
    for tokens in mix.lengths:
        for form in mix.formats:
            yield tokens, mix.width, form.partition(":")[0]


def draw(
    mix: Mix, bodies: Mapping[tuple[int, int, str], Body], encodings: Sequence[str], chance: random.Random
) -> tuple[Ask, bool]:
    """A request, and whether its answer is one of those to check."""
    (tokens,) = chance.choices(tuple(mix.lengths), tuple(mix.lengths.values()))
    sent, _, wanted = chance.choice(mix.formats).partition(":")
    half = wanted == "float16"
    answered = ACCEPT["safetensors" if half else wanted or sent]
    query = mix.query + ("&dtype=float16" if half else "")
    if mix.compare:
        query += f"&encoding={encodings[0]}&compare=all"
    else:
        among = encodings[: mix.encodings]
        weights = [1 / rank**mix.exponent for rank in range(1, len(among) + 1)]
        query += f"&encoding={chance.choices(among, weights)[0]}"
    form = f"{sent} to {wanted}" if wanted else sent
    name = f"POST /attention [{size(tokens)} {form}]"
    check = chance.randrange(mix.check_every) == 0 and tokens <= 128 and not mix.compare
    return Ask(name, f"/attention?{query}", bodies[tokens, mix.width, sent], answered, "weights" in mix.query), check


def problem_with(ask: Ask, content: bytes) -> str | None:
    """What is wrong with an answer: numbers that are not finite, weights of another shape or that do not sum to 1."""
    named = _arrays(ask.accept, content)
    for name, array in named.items():
        if not np.isfinite(array).all():
            return f"{name} has numbers that are not finite"
    if not ask.weights:
        return None if named else "the answer has no arrays"
    found = [array for name, array in named.items() if name.rpartition("/")[2] == "weights"]
    if len(found) != 1:
        return f"weights were due once, and there are {', '.join(named) or 'no arrays'}"
    length = ask.body.length
    if found[0].shape[-2:] != (length, length):
        return f"weights have shape {found[0].shape} where {length} queries and keys were due"
    error = float(np.abs(found[0].sum(-1, dtype=np.float64) - 1).max())
    return f"rows of weights sum to 1 only within {error:.1e}" if error > ROW_SUM["float16" in ask.path] else None


def _arrays(accept: str, content: bytes) -> dict[str, Any]:
    if accept == ACCEPT["safetensors"]:
        return dict(safetensors.numpy.load(content))
    if accept == ACCEPT["npz"]:
        with np.load(io.BytesIO(content)) as arrays:
            return {name: arrays[name] for name in arrays if arrays[name].dtype.kind == "f"}
    (result,) = json.loads(content)["results"]
    return {name: np.asarray(result[name], float) for name in ("weights", "scores", "output") if name in result}
