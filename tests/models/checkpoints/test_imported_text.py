"""Text for imported first layers: what a model makes of it is the reference library's hidden_states[0], and so is the
attention; and GGUF's vocabularies make the tokenizers that they were written from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from models.checkpoints.errors import CheckpointError
from models.checkpoints.gguf_file import GgufFile
from models.checkpoints.gguf_tokenizer import RULES, gguf_tokenizer
from models.checkpoints.importing import import_layer, write_layer_text
from models.checkpoints.reading import read
from models.checkpoints.text import remove_text
from models.text import FOLDER
from service.errors import InvalidInput
from service.text import Text
from tests.models.checkpoints.direct import weights
from tests.models.checkpoints.miniatures import MINIATURES
from tests.models.checkpoints.test_gguf import ARCHITECTURES, write
from tests.models.checkpoints.test_miniatures import make
from tests.models.checkpoints.words import SENTENCE, answered, word_tokenizer

MORE: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "roberta": ({"pad_token_id": 0, "bos_token_id": 1}, {"pad_token_id": 3}),
    "granite": ({"embedding_multiplier": 12.0},),
    "deberta": ({"type_vocab_size": 2, "position_biased_input": True},),
    "deberta-v2": (
        {"type_vocab_size": 2, "embedding_size": 12},
        {"embedding_size": 12, "position_biased_input": False},
    ),
    "nomic_bert": ({"layer_norm_eps": 1e-3},),
}
"""What a model may have besides that bears on its embeddings."""
CASES: list[tuple[str, int, Mapping[str, Any]]] = [(name, seed, {}) for name in MINIATURES for seed in (0, 1)]
CASES += [(name, seed, more) for name, each in MORE.items() for seed, more in enumerate(each)]


def text_of(checkpoint: Path, home: Path) -> Text:
    written = write_layer_text(home, read(checkpoint, 0), ())
    assert not written.reason
    found = Text.read(home, home.name)
    assert found is not None
    return found


@pytest.mark.parametrize(("model_type", "seed", "more"), CASES)
def test_a_text_is_the_librarys_first_hidden_states(
    model_type: str, seed: int, more: Mapping[str, Any], tmp_path: Path
) -> None:
    folder = make(model_type, seed, tmp_path / "model", **more).folder
    tokenizer = word_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    embedded, names = text_of(folder, tmp_path / "home").embed(SENTENCE, 100)
    hidden, attention = answered(folder, tokenizer.encode(SENTENCE).ids)
    assert names == ["[CLS]", *SENTENCE.split(), "[SEP]"]
    np.testing.assert_allclose(embedded, hidden.numpy(), atol=1e-5, rtol=0)
    ours = weights(read(folder, 0).layer, torch.from_numpy(embedded)[None])
    np.testing.assert_allclose(ours[0], attention.numpy(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("model_type", "token"), [("roberta", 0), ("roberta", 3), ("xlm-roberta", 1), ("camembert", 1), ("mpnet", 1)]
)
@pytest.mark.parametrize("text", ["{} the dog {} {} chased {}", "{}", "the cat {} {} {}"])
def test_padding_in_a_text_has_no_position_and_is_not_counted(
    model_type: str, token: int, text: str, tmp_path: Path
) -> None:
    folder = make(model_type, 0, tmp_path / "model", pad_token_id=token, bos_token_id=2, eos_token_id=4).folder
    tokenizer = word_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    padded = text.replace("{}", tokenizer.id_to_token(token) or "")
    embedded, _ = text_of(folder, tmp_path / "home").embed(padded, 100)
    ids = tokenizer.encode(padded).ids
    assert ids.count(token) == text.count("{}")
    hidden, attention = answered(folder, ids)
    np.testing.assert_allclose(embedded, hidden.numpy(), atol=1e-5, rtol=0)
    ours = weights(read(folder, 0).layer, torch.from_numpy(embedded)[None])
    np.testing.assert_allclose(ours[0], attention.numpy(), atol=1e-5, rtol=0)


def test_padding_counts_nothing_of_the_positions_that_there_are(tmp_path: Path) -> None:
    folder = make("roberta", 0, tmp_path / "model", pad_token_id=3, bos_token_id=1).folder
    tokenizer = word_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    found, padding = text_of(folder, tmp_path / "home"), tokenizer.id_to_token(3) or ""
    assert found.embeddings.largest is not None
    most = found.embeddings.largest + 1
    found.embed(" ".join(["dog"] * (most - 2) + [padding] * 5), 1000)
    with pytest.raises(InvalidInput, match=f"has {most + 1} tokens"):
        found.embed(" ".join(["dog"] * (most - 1) + [padding] * 5), 1000)
    placed = found.embed(f"dog {padding}", 100, np.arange(4.0))[0]
    np.testing.assert_allclose(
        placed, found.embeddings.of(np.array(tokenizer.encode(f"dog {padding}").ids), np.arange(4.0)), rtol=0
    )
    assert np.abs(placed - found.embed(f"dog {padding}", 100)[0])[2:].max() > 1e-3


def test_bare_tokens_have_no_row_for_padding(tmp_path: Path) -> None:
    folder = make("roberta", 0, tmp_path / "model", pad_token_id=3, bos_token_id=1).folder
    tokenizer = word_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    found, padding = text_of(folder, tmp_path / "home"), tokenizer.id_to_token(3) or ""
    with pytest.raises(InvalidInput, match=f"'{padding}', padding, which has no position"):
        found.embed(f"dog {padding}", 100, bare=True)
    assert found.embed(f"dog {padding}", 100, bare=True, placed=True)[0].shape[0] == 4
    assert found.embed("dog", 100, bare=True)[0].shape[0] == 3


@pytest.mark.parametrize("model_type", sorted(set(ARCHITECTURES) - {"smollm3", "starcoder2"}))
def test_a_gguf_files_embeddings_are_its_models(model_type: str, tmp_path: Path) -> None:
    more = {"embedding_multiplier": 7.0} if model_type == "granite" else {}
    folder = make(model_type, 0, tmp_path / "model", plain=True, **more).folder
    scale = {"granite.embedding_scale": 7.0} if model_type == "granite" else {}
    path = tmp_path / "a.gguf"
    write(folder, path, ARCHITECTURES[model_type], numbers=scale)
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    home = tmp_path / "home"
    written = write_layer_text(home, read(path, 0), (), tmp_path / "tokenizer.json")
    assert written.dtype == "float32"
    found = Text.read(home, "home")
    assert found is not None
    hidden, _ = answered(folder, word_tokenizer().encode(SENTENCE).ids)
    np.testing.assert_allclose(found.embed(SENTENCE, 100)[0], hidden.numpy(), atol=1e-5, rtol=0)


def test_nomic_berts_norm_has_two_names(tmp_path: Path) -> None:
    """The published one, by which transformers saves it too, and that of its module."""
    folder = make("nomic_bert", 0, tmp_path / "model").folder
    word_tokenizer().save(str(folder / "tokenizer.json"))
    expected, _ = text_of(folder, tmp_path / "published").embed(SENTENCE, 100)
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("emb_ln", "embeddings.LayerNorm"): tensor for name, tensor in tensors.items()}
    assert renamed.keys() != tensors.keys()
    save_file(renamed, folder / "model.safetensors")
    np.testing.assert_array_equal(text_of(folder, tmp_path / "renamed").embed(SENTENCE, 100)[0], expected)


@pytest.mark.parametrize(("dtype", "stored"), [("float16", "F16"), ("bfloat16", "BF16"), ("float64", "F32")])
def test_halves_are_kept_as_they_are(dtype: str, stored: str, tmp_path: Path) -> None:
    """Exactly, tiny and huge numbers too, which bfloat16 has and float16 has not."""
    folder = make("llama", 0, tmp_path / "model").folder
    word_tokenizer().save(str(folder / "tokenizer.json"))
    tensors = load_file(folder / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("embed_tokens.weight"))
    tensors[name][:] *= torch.logspace(-6, 6, len(tensors[name]))[:, None] if dtype == "bfloat16" else 1
    tensors[name] = tensors[name].to(getattr(torch, dtype))
    save_file(tensors, folder / "model.safetensors")
    embedded, _ = text_of(folder, tmp_path / "home").embed(SENTENCE, 100)
    rows = tensors[name].float()[word_tokenizer().encode(SENTENCE).ids]
    assert embedded.dtype == np.float32
    np.testing.assert_array_equal(embedded, rows.numpy())
    with safe_open(tmp_path / "home" / FOLDER / "embeddings.safetensors", framework="pt") as file:
        assert file.get_slice("embeddings").get_dtype() == stored


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_gguf_embeddings_are_kept_in_half_precision_or_dequantised(kind: str, tmp_path: Path) -> None:
    folder = make("llama", 0, tmp_path / "model", plain=True, hidden_size=32).folder
    quantisation = gguf.GGMLQuantizationType[kind]
    write(folder, tmp_path / "a.gguf", "llama", embeddings=quantisation)
    source = GgufFile(tmp_path / "a.gguf")
    table = source.stored("token_embd.weight")
    assert table.dtype == {"F16": torch.float16, "BF16": torch.bfloat16, "Q8_0": torch.float32}[kind]
    torch.testing.assert_close(table.float(), source.tensor("token_embd.weight"), atol=0, rtol=0)


def test_files_are_replaced_and_not_written_into(tmp_path: Path) -> None:
    """A service may have them in its memory."""
    folder = make("bert", 0, tmp_path / "model").folder
    word_tokenizer().save(str(folder / "tokenizer.json"))
    before = text_of(folder, tmp_path / "home")
    kept, _ = before.embed(SENTENCE, 100)
    save_file({name: -tensor for name, tensor in load_file(folder / "model.safetensors").items()},
              folder / "model.safetensors")  # fmt: skip
    after = text_of(folder, tmp_path / "home")
    np.testing.assert_array_equal(before.embed(SENTENCE, 100)[0], kept)
    assert np.abs(after.embed(SENTENCE, 100)[0] - kept).max() > 0.1
    assert sorted(path.name for path in (tmp_path / "home" / FOLDER).iterdir()) == [
        "embeddings.safetensors",
        "tokenizer.json",
    ]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "home" / FOLDER).iterdir()} == {
        (folder / "tokenizer.json").stat().st_mode & 0o777
    }


def test_why_there_is_no_text(tmp_path: Path) -> None:
    folder = make("bert", 0, tmp_path / "model").folder
    found, home = read(folder, 0), tmp_path / "home"
    assert write_layer_text(home, found, ()).reason == "model has no tokenizer.json"
    (folder / "vocab.txt").write_text("[UNK]\n")
    assert "no tokenizer.json, but vocab.txt: transformers' AutoTokenizer" in write_layer_text(home, found, ()).reason
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json cannot be read as a tokenizer" in write_layer_text(home, found, ()).reason
    with pytest.raises(CheckpointError, match="cannot be read as a tokenizer"):
        write_layer_text(home, found, (), folder / "tokenizer.json")
    word_tokenizer().save(str(folder / "tokenizer.json"))
    tensors = load_file(folder / "model.safetensors")
    left = {name: tensor for name, tensor in tensors.items() if "word_embeddings" not in name}
    save_file(left, folder / "model.safetensors")
    assert "no tensor embeddings.word_embeddings.weight" in write_layer_text(home, read(folder, 0), ()).reason
    assert not home.exists()


def test_another_models_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = make("bert", 0, tmp_path / "model").folder
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["another", "model's"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="has 42 tokens, but model embeddings for 40"):
        write_layer_text(tmp_path / "home", read(folder, 0), (), tmp_path / "tokenizer.json")


def test_a_layer_that_takes_the_name_takes_no_text_with_it(tmp_path: Path) -> None:
    folder = make("gptj", 0, tmp_path / "model").folder
    word_tokenizer().save(str(folder / "tokenizer.json"))
    text_of(folder, tmp_path / "home")
    remove_text(tmp_path / "home")
    assert not (tmp_path / "home" / FOLDER).exists()
    remove_text(tmp_path / "home")
    with pytest.raises(CheckpointError, match="a first layer only"):
        import_layer(folder, 1, "one", (), tmp_path, tokenizer=folder / "tokenizer.json")
    with pytest.raises(CheckpointError, match="a first layer only"):
        import_layer(folder, 0, "one", (), tmp_path, text=False, tokenizer=folder / "tokenizer.json")


CORPUS = ["the cat's naïve dogs, 1843 of them — don't they  run?\n\n  Yes: x=3.14;\t£½²", "北京 东京 कखग été ÉTÉ"] * 30
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def published(rule: str) -> Tokenizer:
    """A tokenizer as the models have it for which GGUF has this rule, its merges learned from a few lines."""
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splits: dict[str, list[pre_tokenizers.PreTokenizer]] = {
        "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "smollm": [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "llama-bpe": [pre_tokenizers.Split(Regex(PATTERN.replace("DIGITS", r"\p{N}{1,3}")), "isolated"), bytes_],
        "qwen2": [pre_tokenizers.Split(Regex(PATTERN.replace("DIGITS", r"\p{N}")), "isolated"), bytes_],
    }
    tokenizer = Tokenizer(models.BPE(ignore_merges=rule == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits[rule])
    tokenizer.decoder = decoders.ByteLevel()
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [AddedToken("<|end|>", special=True), AddedToken("<|begin|>", special=True)]
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, special_tokens=special, show_progress=False),
    )
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    if rule == "llama-bpe":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 1)]
        )
    return tokenizer


def vocabulary(tokenizer: Tokenizer, rule: str | None, kind: str = "gpt2", merges: bool = True) -> dict[str, Any]:
    """As llama.cpp's conversion writes it."""
    said: Any = json.loads(tokenizer.to_str())
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])]
    added = {one["id"]: 3 if one["special"] else 4 for one in said["added_tokens"]}
    return {
        "model": kind,
        "pre": rule,
        "tokens": tokens,
        "token_type": [added.get(number, 1) for number in range(len(tokens))],
        "merges": [" ".join(pair) for pair in said["model"]["merges"]] if merges else None,
        "bos_token_id": 1,
        "eos_token_id": 0,
    }


def gguf_with(path: Path, said: Mapping[str, Any]) -> GgufFile:
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in said.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            writer.add_uint32(key, value) if isinstance(value, int) else writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Tokenizer, Tokenizer]]:
    """By rule, a tokenizer and what its GGUF file gives."""
    folder, found = tmp_path_factory.mktemp("gguf"), {}
    for rule in ("gpt-2", "smollm", "llama-bpe", "qwen2"):
        theirs = published(rule)
        found[rule] = theirs, gguf_tokenizer(gguf_with(folder / f"{rule}.gguf", vocabulary(theirs, rule)))
    return found


PIECES = st.lists(
    st.sampled_from([*"abcxyz XYZ0129'’-_.,;:!?\n\r\t½²Ⅻé\u0301ß中文कए😀\u00a0", "<|end|>", "<think>", "'LL"])
)


@settings(max_examples=150)
@given(pieces=PIECES | st.text(st.characters(codec="utf-8"), max_size=30).map(list))
def test_a_gguf_files_vocabulary_makes_the_tokenizer_that_it_is_of(
    pairs: Mapping[str, tuple[Tokenizer, Tokenizer]], pieces: list[str]
) -> None:
    for theirs, ours in pairs.values():
        assert ours.encode("".join(pieces)).tokens == theirs.encode("".join(pieces)).tokens


def test_what_a_file_says_of_first_and_last_tokens_counts(tmp_path: Path) -> None:
    said = vocabulary(published("gpt-2"), "gpt-2")
    said |= {"add_bos_token": True, "add_eos_token": True}
    assert gguf_tokenizer(gguf_with(tmp_path / "a.gguf", said)).encode("a").tokens == ["<|begin|>", "a", "<|end|>"]
    said = {**vocabulary(published("llama-bpe"), "llama-bpe"), "add_bos_token": False}
    assert gguf_tokenizer(gguf_with(tmp_path / "b.gguf", said)).encode("a").tokens == ["a"]


def test_a_long_vocabulary_is_read_whole(tmp_path: Path) -> None:
    tokenizer = published("gpt-2")
    tokenizer.add_tokens([f"<{number}>" for number in range(2000)])
    ours = gguf_tokenizer(gguf_with(tmp_path / "a.gguf", vocabulary(tokenizer, "gpt-2")))
    assert ours.get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pre": "no-such-rule"}, "names a rule, 'no-such-rule', that is not known here"),
        ({"pre": None}, "does not say how text is split (tokenizer.ggml.pre; known: gpt-2"),
        ({"model": "llama"}, "is of the kind 'llama', and how such a model treats spaces"),
        ({"model": None}, "has no vocabulary"),
        ({"merges": ["ab"]}, "merges that are no pairs"),
    ],
)
def test_a_vocabulary_that_cannot_be_read_exactly_is_none(
    change: Mapping[str, Any], reason: str, tmp_path: Path
) -> None:
    said = {**vocabulary(published("gpt-2"), "gpt-2"), **change}
    with pytest.raises(CheckpointError) as caught:
        gguf_tokenizer(gguf_with(tmp_path / "a.gguf", said))
    assert reason in str(caught.value)
    assert "--tokenizer" in str(caught.value)


def test_every_rule_is_one_of_four() -> None:
    """Those that the tests above go through."""
    kinds = {(rule.split, rule.whole, rule.begins, rule.composed) for rule in RULES.values()}
    assert len(kinds) == 4
