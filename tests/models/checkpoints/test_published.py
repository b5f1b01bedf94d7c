"""Layers of published checkpoints: what the service answers is the reference library's attention."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch

from models.hidden_states import hidden_states
from models.text import byte_tokenizer, write_text
from tests.models.checkpoints import published
from tests.models.checkpoints.published import ROOT, SENTENCES
from tests.models.checkpoints.serving import client, export, served, served_text

pytestmark = pytest.mark.timeout(900)  # of the exports, and of downloads


class Published(NamedTuple):
    """A checkpoint, its layers that are imported, and the library's model and tokenizer of it."""

    path: Path
    layers: tuple[int, ...]
    model: Any
    tokenizer: Any


def minilm() -> Published:
    return _folder(published.minilm(), range(6))


def mpnet() -> Published:
    return _folder(published.mpnet(), (0, 6, 11))


def _folder(path: Path, layers: Any) -> Published:
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    return Published(path, tuple(layers), model, AutoTokenizer.from_pretrained(path))


def smollm2() -> Published:
    """As transformers reads GGUF files: dequantised, and the rows of queries and keys put back in order."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = published.smollm2()
    where: dict[str, Any] = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    config = AutoConfig.from_pretrained(**where)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # its embeddings serve as that
    return Published(path, (0, 10, 29), model.model, AutoTokenizer.from_pretrained(**where))


ALL: dict[str, Callable[[], Published]] = {"minilm": minilm, "smollm2": smollm2, "mpnet": mpnet}
everyone = pytest.mark.parametrize(
    "checkpoint",
    ["minilm", *(pytest.param(name, marks=pytest.mark.checkpoints) for name in ("smollm2", "mpnet"))],
    indirect=True,
    scope="module",
)


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest) -> Published:
    return ALL[request.param]()


@pytest.fixture(scope="module")
def service(checkpoint: Published, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("imported")
    for layer in checkpoint.layers:
        export(checkpoint.path, layer, f"layer-{layer}", folder)
    with client(folder) as opened:
        yield opened


@everyone
@pytest.mark.parametrize("sentence", SENTENCES)
def test_served_attention_is_the_reference_librarys(
    checkpoint: Published, service: httpx.Client, sentence: str
) -> None:
    tokens = checkpoint.tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        answer = checkpoint.model(**tokens, output_hidden_states=True, output_attentions=True)
    for layer in checkpoint.layers:
        weights = served(service, f"layer-{layer}", answer.hidden_states[layer])
        np.testing.assert_allclose(weights, answer.attentions[layer].numpy(), atol=1e-5, rtol=0)


@everyone
@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_text_is_attended_to_as_in_the_reference_library(
    checkpoint: Published, service: httpx.Client, sentence: str
) -> None:
    tokens = checkpoint.tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        attention = checkpoint.model(**tokens, output_attentions=True).attentions[0][0]
    weights, names = served_text(service, "layer-0", sentence)
    assert len(names) == tokens.input_ids.shape[1]
    np.testing.assert_allclose(weights, attention.numpy(), atol=1e-5, rtol=0)


minilm_alone = pytest.mark.parametrize("checkpoint", ["minilm"], indirect=True, scope="module")


@minilm_alone
def test_learned_positions_take_a_text_as_bare_tokens(checkpoint: Published, service: httpx.Client) -> None:
    """So under `learned` and under `none` the attention is the same, and only one of them can be in a request."""
    ids = checkpoint.tokenizer(SENTENCES[0], return_tensors="pt").input_ids
    with torch.no_grad():
        attention = checkpoint.model(ids, output_attentions=True).attentions[0][0]
    weights, names = served_text(service, "layer-0", SENTENCES[0], encoding="learned")
    assert names == checkpoint.tokenizer.convert_ids_to_tokens(ids[0])
    np.testing.assert_allclose(weights, attention.numpy(), atol=1e-5, rtol=0)

    query, text = {"model": "layer-0", "return": "weights"}, {"text": SENTENCES[0]}
    answer = service.post("/attention", params={**query, "compare": "all"}, json=text).json()
    assert [result["encoding"] for result in answer["results"]] == ["none"]
    assert "ask for learned in a request of its own" in answer["skipped"]["learned"]
    refused = service.post("/attention", params={**query, "encoding": "learned", "compare": "none"}, json=text)
    assert refused.status_code == 422
    assert "adds positions itself" in refused.json()["detail"]
    assert refused.json()["pointer"] == "query:compare"


@minilm_alone
def test_a_text_may_stand_elsewhere_in_the_models_positions(checkpoint: Published, service: httpx.Client) -> None:
    ids = checkpoint.tokenizer(SENTENCES[0], return_tensors="pt").input_ids
    places = torch.arange(ids.shape[1]) * 3 + 100
    with torch.no_grad():
        attention = checkpoint.model(ids, position_ids=places[None], output_attentions=True).attentions[0][0]
    body = {"text": SENTENCES[0], "positions": places.tolist()}
    for encoding in ("none", "learned"):
        query = {"model": "layer-0", "return": "weights", "encoding": encoding}
        (result,) = service.post("/attention", params=query, json=body).json()["results"]
        np.testing.assert_allclose(np.array(result["weights"]), attention.numpy(), atol=1e-5, rtol=0)


@minilm_alone
@pytest.mark.parametrize(
    ("model", "body", "detail", "pointer"),
    [
        ("layer-0", {"text": "cat " * 511}, "has 513 tokens, but the model has positions for 512", "/text"),
        ("layer-0", {"text": "a", "positions": [0, 1, 512]}, "up to 511, but positions[2] is 512", "/positions"),
        ("layer-0", {"text": "a", "positions": [0, 0.5, 1]}, "whole numbers up to 511", "/positions"),
        ("layer-0", {"text": "a", "positions": [0, 1]}, "2 positions came for 3 tokens", "/positions"),
        ("layer-0", {"text": "a", "query_positions": [0, 1, 2], "key_positions": [0, 1, 2]}, "send them as positions",
         "/query_positions"),
        ("layer-5", {"text": "a"}, "layer 5 of model, which reads what the layers before it make of a text", "/text"),
        ("layer-5", {"text": "a"}, "`python -m models hidden-states CHECKPOINT --layer 5", "/text"),
    ],
)  # fmt: skip
def test_why_a_text_is_not_taken(
    service: httpx.Client, model: str, body: dict[str, object], detail: str, pointer: str
) -> None:
    response = service.post("/attention", params={"model": model}, json=body)
    assert response.status_code == 422
    assert detail in response.json()["detail"]
    assert response.json()["pointer"] == pointer


@minilm_alone
@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_first_layer_takes_token_embeddings_under_learned_positions(
    checkpoint: Published, service: httpx.Client, sentence: str
) -> None:
    tokens = checkpoint.tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        answer = checkpoint.model(**tokens, output_attentions=True)
        embeddings = checkpoint.model.get_input_embeddings()(tokens.input_ids)
    weights = served(service, "layer-0", embeddings, encoding="learned")
    np.testing.assert_allclose(weights, answer.attentions[0].numpy(), atol=1e-5, rtol=0)


@minilm_alone
def test_positions_end_where_the_checkpoints_table_does(checkpoint: Published, service: httpx.Client) -> None:
    body = {"embeddings": [[0.1] * 384] * 2, "positions": [0, 512]}
    response = service.post("/attention", params={"model": "layer-0", "encoding": "learned"}, json=body)
    assert response.status_code == 422
    assert "learned takes positions up to 511, but positions[1] is 512" in response.json()["detail"]


@minilm_alone
def test_the_open_inference_protocol_serves_it_too(checkpoint: Published, service: httpx.Client) -> None:
    hidden = torch.randn(1, 4, 384, generator=torch.Generator().manual_seed(0))
    embeddings = {"name": "embeddings", "shape": [4, 384], "datatype": "FP32", "data": hidden.flatten().tolist()}
    answer = service.post("/v2/models/layer-5.none/infer", json={"inputs": [embeddings]}).json()
    weights = next(output for output in answer["outputs"] if output["name"] == "weights")
    assert weights["shape"] == [12, 4, 4]
    expected = served(service, "layer-5", hidden)
    np.testing.assert_allclose(np.reshape(weights["data"], expected.shape), expected, atol=1e-6)


@minilm_alone
def test_the_catalogue_says_where_a_layer_is_from(checkpoint: Published, service: httpx.Client) -> None:
    models = {model["name"]: model for model in service.get("/models").json()["models"]}
    five = models["layer-5"]
    assert five["checkpoint"] == {"file": "model", "layer": 5, "model_type": "bert"}
    assert (five["heads"], five["head_dim"], five["width"], five["default_encoding"]) == (12, 32, 384, "none")
    assert models["layer-0"]["encodings"] == ["learned", "none"]


def test_the_command_reports_the_parity_that_it_measured(tmp_path: Path) -> None:
    write_text(tmp_path / "minilm-2", byte_tokenizer(), torch.ones(256, 384))  # of a layer that had the name
    command = [sys.executable, "-m", "models", "import", str(published.minilm()), "--layer", "2"]
    command += ["--name", "minilm-2", "--with", "rope", "--output", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("parity:"))
    assert float(line.rsplit(" ", 1)[1]) < 1e-5
    written = {path.name for path in (tmp_path / "minilm-2").iterdir()}
    assert written == {"none.onnx", "none.positions.onnx", "rope.onnx", "rope.positions.onnx"}


@pytest.mark.checkpoints
def test_a_first_layer_is_imported_with_its_text(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "models", "import", str(published.smollm2()), "--layer", "0"]
    command += ["--name", "smollm2-0", "--output", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "text: 49,152 tokens, their embeddings in float32" in run.stdout
    written = {path.name for path in (tmp_path / "smollm2-0" / "text").iterdir()}
    assert written == {"tokenizer.json", "embeddings.safetensors"}
    subprocess.run([*command, "--no-text"], cwd=ROOT, capture_output=True, check=True)
    assert not (tmp_path / "smollm2-0" / "text").exists()


@pytest.mark.checkpoints
@pytest.mark.parametrize("checkpoint", ["smollm2"], indirect=True, scope="module")
def test_a_gguf_files_tokenizer_splits_numbers_as_its_rule_says(service: httpx.Client) -> None:
    """Each digit by itself, of every kind; a space before them too. As llama.cpp does with this file."""
    _, tokens = served_text(service, "layer-0", "in 1843 \u00bd<|im_end|>")
    assert tokens == ["in", "␣", "1", "8", "4", "3", "␣", "½", "<|im_end|>"]


@pytest.mark.checkpoints
@pytest.mark.parametrize("checkpoint", ["smollm2"], indirect=True, scope="module")
def test_hidden_states_are_had_of_a_gguf_file_too(checkpoint: Published) -> None:
    states, tokens = hidden_states(published.smollm2(), 10, SENTENCES[0])
    ids = checkpoint.tokenizer(SENTENCES[0], return_tensors="pt").input_ids
    with torch.no_grad():
        expected = checkpoint.model(ids, output_hidden_states=True).hidden_states[10][0]
    assert tokens == checkpoint.tokenizer.convert_ids_to_tokens(ids[0])
    assert states == pytest.approx(expected.numpy(), abs=1e-3 * float(expected.abs().max()))
