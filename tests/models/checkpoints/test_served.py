"""A layer of each kind, exported and behind a service: what it answers is the library's attention, and what it says of
itself is so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import httpx
import numpy as np
import pytest

from tests.models.checkpoints.serving import client, export, served, served_text
from tests.models.checkpoints.test_miniatures import Miniature, make
from tests.models.checkpoints.words import SENTENCE, answered, word_tokenizer

pytestmark = pytest.mark.timeout(900)  # of a dozen exports

# A model type, a seed and a layer with something of its own.
LAYERS: Mapping[str, tuple[int, int]] = {
    "gpt2": (1, 0),  # learned positions under the layer's own norm
    "roberta": (0, 0),  # rows for padding before the first position
    "electra": (0, 0),  # narrow embeddings, and a projection behind their norm
    "qwen3": (3, 2),  # q/k norms, a window, LongRoPE, two heads to a key head
    "gemma2": (2, 0),  # a cap, a window, YaRN
    "gpt_oss": (0, 2),  # sinks
    "phi": (0, 1),  # layer norms of q and k, half of each head turns
    "mpt": (1, 1),  # clipped projections, a scale of its own
    "falcon": (0, 1),  # slopes of its own
    "t5": (0, 1),
    "deberta-v2": (4, 1),
    "xlnet": (1, 1),
    "modernbert": (2, 1),  # a window on both sides
}


class Served:
    """All of them in one service."""

    def __init__(self, http: httpx.Client, miniatures: Mapping[str, Miniature]) -> None:
        self.http, self.miniatures = http, miniatures


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    checkpoints, exported = tmp_path_factory.mktemp("checkpoints"), tmp_path_factory.mktemp("exported")
    miniatures, exports = {}, []
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for model_type, (seed, index) in LAYERS.items():
            miniatures[model_type] = make(model_type, seed, checkpoints / model_type)
            word_tokenizer().save(str(checkpoints / model_type / "tokenizer.json"))
            exports.append(pool.submit(export, checkpoints / model_type, index, model_type, exported))
    for done in exports:
        done.result()
    with client(exported) as http:
        yield Served(http, miniatures)


@pytest.mark.parametrize("model_type", LAYERS)
def test_served_attention_is_the_librarys(everything: Served, model_type: str) -> None:
    miniature, (_, index) = everything.miniatures[model_type], LAYERS[model_type]
    weights = served(everything.http, model_type, miniature.hidden[index])
    np.testing.assert_allclose(weights, miniature.attention[index].numpy(), atol=1e-5, rtol=0)


def test_the_first_layer_adds_its_positions_itself(everything: Served) -> None:
    """Fed token embeddings: the hidden states without the rows of the table."""
    from transformers import AutoModel

    miniature = everything.miniatures["gpt2"]
    model = AutoModel.from_pretrained(miniature.folder)
    embeddings = model.get_input_embeddings()(miniature.ids).detach()
    weights = served(everything.http, "gpt2", embeddings, encoding="learned")
    np.testing.assert_allclose(weights, miniature.attention[0].numpy(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("model_type", [name for name, (_, index) in LAYERS.items() if index == 0])
def test_a_text_is_attended_to_as_in_the_library(everything: Served, model_type: str) -> None:
    """With the tokens that the tokenizer puts around it, and also where the layer adds its positions itself."""
    _, attention = answered(everything.miniatures[model_type].folder, word_tokenizer().encode(SENTENCE).ids)
    (model,) = (one for one in everything.http.get("/models").json()["models"] if one["name"] == model_type)
    for encoding in {model["default_encoding"], *model["encodings"]}:
        weights, tokens = served_text(everything.http, model_type, SENTENCE, encoding=encoding)
        assert tokens == ["[CLS]", *SENTENCE.split(), "[SEP]"]
        np.testing.assert_allclose(weights, attention.numpy(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("model_type", LAYERS)
def test_terms_sum_to_the_score_before_its_cap(everything: Served, model_type: str) -> None:
    miniature, (_, index) = everything.miniatures[model_type], LAYERS[model_type]
    body = {"embeddings": miniature.hidden[index][0].tolist()}
    query = {"model": model_type, "return": "scores,terms"}
    (result,) = everything.http.post("/attention", params=query, json=body).json()["results"]
    total = sum(np.array(term) for term in result["terms"].values())
    if (cap := result["parameters"].get("softcap")) is not None:
        total = cap * np.tanh(total / cap)
    np.testing.assert_allclose(total, result["scores"], atol=1e-4 * np.abs(total).max(), rtol=0)


def test_a_window_hides_what_the_layer_does_not_see(everything: Served) -> None:
    """Gemma 2's window is of 4 tokens, the query itself among them; ModernBERT's of 3 on either side."""
    models = {model["name"]: model for model in everything.http.get("/models").json()["models"]}
    for model_type, before, after in (("gemma2", 3, 0), ("modernbert", 3, 3)):
        assert models[model_type]["window"] == {"before": before, "after": after}
        miniature, (_, index) = everything.miniatures[model_type], LAYERS[model_type]
        weights = served(everything.http, model_type, miniature.hidden[index])
        m, n = np.indices(weights.shape[-2:])
        seen = (m - n <= before) & (n - m <= after)
        assert (weights[..., ~seen] == 0).all()
        assert (weights[..., seen] > 0).all()
    assert models["t5"]["window"] is None


def test_an_answer_tells_the_layers_own_conventions(everything: Served) -> None:
    body = {"embeddings": [[0.5] * everything.miniatures["gemma2"].hidden[0].shape[-1]] * 3}
    (result,) = everything.http.post("/attention", params={"model": "gemma2"}, json=body).json()["results"]
    told = result["conventions"]
    assert "the layer's own" in told["scale"]
    assert told["layout"].startswith("half, the checkpoint's")
    assert "RMS norm is applied here" in told["input"]
    assert "at most 3 before it" in told["window"]


def test_a_request_may_ask_for_other_values(everything: Served) -> None:
    hidden = everything.miniatures["phi"].hidden[1]
    own = served(everything.http, "phi", hidden)
    other = served(everything.http, "phi", hidden, **{"rope.theta": "100"})
    assert np.abs(own - other).max() > 1e-3
