"""All presets."""

from __future__ import annotations

from service.errors import UnknownName
from service.presets import patterns
from service.presets.preset import Argument, Preset
from service.presets.sentence import FACTOR, read, sentence

N, D, SEED = 64, 64, 0
LARGEST_N, LARGEST_D = 32_768, 8_192


def _tokens(minimum: int = 1) -> Argument:
    return Argument("n", "tokens", N, minimum, LARGEST_N)


_WIDTH = Argument("d", "numbers of each embedding", D, 1, LARGEST_D)
_SEED = Argument("seed", "of the random numbers", SEED, 0, 2**32 - 1)
_SENTENCE = read()

PRESETS: tuple[Preset, ...] = (
    Preset(
        "random",
        "Random tokens",
        "Independent standard normal numbers: no token is like another. What n and seed begin with, more tokens of the "
        "same seed and d begin with too.",
        (_tokens(), _WIDTH, _SEED),
        patterns.random,
    ),
    Preset(
        "repeat",
        "Repeated halves",
        "Random tokens, and the same again: the input of induction heads, which look from a token to what followed it "
        "before.",
        (_tokens(2), _WIDTH, _SEED),
        patterns.repeat,
    ),
    Preset(
        "constant",
        "One token throughout",
        "Every token is the same vector, all ones: whatever differs between two weights is position's doing.",
        (_tokens(), _WIDTH),
        patterns.constant,
    ),
    Preset(
        "needle",
        "A needle",
        "Random tokens, but the last one repeats the one at place n // 4: does it find it, far back?",
        (_tokens(2), _WIDTH, _SEED),
        patterns.needle,
    ),
    Preset(
        "blocks",
        "Two blocks",
        "The first half of the tokens is alike, and so is the second: noise around one vector each. Two tokens of a "
        "block correlate by 0.64.",
        (_tokens(2), _WIDTH, _SEED),
        patterns.blocks,
    ),
    Preset(
        "walk",
        "A smooth walk",
        "Each token is a step from the one before: tokens k apart correlate by 0.9^k, so content alone looks nearby.",
        (_tokens(), _WIDTH, _SEED),
        patterns.walk,
    ),
    Preset(
        "sentence",
        "A real sentence",
        f'"{_SENTENCE.text}" as {_SENTENCE.source} ({_SENTENCE.license}), times {FACTOR}, with its tokens. Which "she" '
        "is whom, only position can tell: equal words have equal rows.",
        (
            Argument("n", "the first tokens of it", len(_SENTENCE.tokens), 1, len(_SENTENCE.tokens)),
            Argument(
                "d",
                "the first components of each embedding",
                _SENTENCE.embeddings.shape[1],
                1,
                _SENTENCE.embeddings.shape[1],
            ),
        ),
        sentence,
    ),
)


def find(name: str) -> Preset:
    """Raises UnknownName."""
    for preset in PRESETS:
        if preset.name == name:
            return preset
    raise UnknownName("preset", name, [preset.name for preset in PRESETS])
