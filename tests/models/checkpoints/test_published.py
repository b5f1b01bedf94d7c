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

from tests.models.checkpoints import published
from tests.models.checkpoints.published import ROOT, SENTENCES
from tests.models.checkpoints.serving import client, export, served

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


@pytest.mark.parametrize("checkpoint", ["minilm"], indirect=True, scope="module")
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


@pytest.mark.parametrize("checkpoint", ["minilm"], indirect=True, scope="module")
def test_positions_end_where_the_checkpoints_table_does(checkpoint: Published, service: httpx.Client) -> None:
    body = {"embeddings": [[0.1] * 384] * 2, "positions": [0, 512]}
    response = service.post("/attention", params={"model": "layer-0", "encoding": "learned"}, json=body)
    assert response.status_code == 422
    assert "learned takes positions up to 511, but positions[1] is 512" in response.json()["detail"]


@pytest.mark.parametrize("checkpoint", ["minilm"], indirect=True, scope="module")
def test_the_open_inference_protocol_serves_it_too(checkpoint: Published, service: httpx.Client) -> None:
    hidden = torch.randn(1, 4, 384, generator=torch.Generator().manual_seed(0))
    embeddings = {"name": "embeddings", "shape": [4, 384], "datatype": "FP32", "data": hidden.flatten().tolist()}
    answer = service.post("/v2/models/layer-5.none/infer", json={"inputs": [embeddings]}).json()
    weights = next(output for output in answer["outputs"] if output["name"] == "weights")
    assert weights["shape"] == [12, 4, 4]
    expected = served(service, "layer-5", hidden)
    np.testing.assert_allclose(np.reshape(weights["data"], expected.shape), expected, atol=1e-6)


@pytest.mark.parametrize("checkpoint", ["minilm"], indirect=True, scope="module")
def test_the_catalogue_says_where_a_layer_is_from(checkpoint: Published, service: httpx.Client) -> None:
    models = {model["name"]: model for model in service.get("/models").json()["models"]}
    five = models["layer-5"]
    assert five["checkpoint"] == {"file": "model", "layer": 5, "model_type": "bert"}
    assert (five["heads"], five["head_dim"], five["width"], five["default_encoding"]) == (12, 32, 384, "none")
    assert models["layer-0"]["encodings"] == ["learned", "none"]


def test_the_command_reports_the_parity_that_it_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "models", "import", str(published.minilm()), "--layer", "2"]
    command += ["--name", "minilm-2", "--with", "rope", "--output", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("parity:"))
    assert float(line.rsplit(" ", 1)[1]) < 1e-5
    written = {path.name for path in (tmp_path / "minilm-2").iterdir()}
    assert written == {"none.onnx", "none.positions.onnx", "rope.onnx", "rope.positions.onnx"}
