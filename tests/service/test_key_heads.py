"""Grouped key heads: key head j serves query heads j*g .. j*g + g-1, g = heads / key_heads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float
from starlette.testclient import TestClient
from transformers.models.llama import modeling_llama

from service.admission import Limits, admit, whole_keys
from service.catalogue import Catalogue, Model
from service.engine.engine import Engine
from service.engine.session import Sessions
from service.errors import InvalidInput, PayloadTooLarge
from service.records import MATRICES, AttentionInput, AttentionOptions, ScoringResult, Timings
from service.scoring import Scoring
from service.tables import TableCache
from tests.service import tiny

CATALOGUE = Catalogue.read([Path(__file__).parents[2] / "exported"])
ENCODINGS = CATALOGUE.model("identity").encodings
ROPE = Model("identity", {"rope": tiny.encoding("rope")}, "rope")
LAYER = Model("layer", {"none": tiny.encoding("none", heads=2, head_dim=4, width=8)}, "none")
Score = Callable[..., ScoringResult]


@pytest.fixture(scope="module")
def score() -> Iterator[Score]:
    """Over a real engine."""
    sessions = Sessions("cpu")
    with asyncio.Runner() as runner:
        engine = Engine(sessions, workers=1)
        runner.run(engine.start())
        scoring = Scoring(CATALOGUE, engine, TableCache(sessions))

        def run(input: AttentionInput, **options: Any) -> ScoringResult:
            return runner.run(scoring.score(input, AttentionOptions(returns=MATRICES, **options), Timings()))

        yield run
        runner.run(engine.stop())


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def arrays(result: ScoringResult) -> dict[str, np.ndarray]:
    (one,) = result.results
    return {"weights": one.weights, "scores": one.scores, "output": one.output, **(one.terms or {})}  # type: ignore[dict-item]


def repeated(keys: Float[np.ndarray, "*batch keys width"], key_heads: int, heads: int) -> np.ndarray:
    """Each key head's columns as often as query heads share it, one after the other."""
    width = keys.shape[-1] // key_heads
    parts = [keys[..., h // (heads // key_heads) * width :][..., :width] for h in range(heads)]
    return np.concatenate(parts, axis=-1)


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_grouped_keys_are_keys_repeated_for_each_query_head(score: Score, encoding: str, data: st.DataObject) -> None:
    key_heads, group, half = (data.draw(st.integers(1, 3)) for _ in range(3))
    heads, head_dim = key_heads * group, 2 * half
    lead = data.draw(st.sampled_from([(), (2,)]))
    queries, keys = array(*lead, 3, heads * head_dim), array(*lead, 5, key_heads * head_dim, seed=1)
    at = np.array([2.0, 3.0, 4.0])
    options = {"encoding": encoding, "heads": heads, "causal": ENCODINGS[encoding].causal == "required"}
    grouped = score(AttentionInput(queries=queries, keys=keys, query_positions=at), key_heads=key_heads, **options)
    whole = score(AttentionInput(queries=queries, keys=repeated(keys, key_heads, heads), query_positions=at), **options)
    assert (grouped.heads, grouped.key_heads, grouped.head_dim) == (heads, key_heads, head_dim)
    assert whole.key_heads is None
    for name, expected in arrays(whole).items():
        np.testing.assert_allclose(arrays(grouped)[name], expected, rtol=0, atol=1e-6 * max(1, np.abs(expected).max()))


def test_every_query_head_sees_its_own_key_head_alone(score: Score) -> None:
    """The loop form: one head at a time, rotated as complex numbers."""
    heads, key_heads, head_dim, length = 6, 2, 8, 7
    queries, keys = array(length, heads * head_dim), array(length, key_heads * head_dim, seed=1)
    result = score(AttentionInput(queries=queries, keys=keys), encoding="rope", heads=heads, key_heads=key_heads)
    scores = arrays(result)["scores"]
    theta = 10000.0 ** (-np.arange(head_dim // 2) / (head_dim // 2))
    turned = np.exp(1j * np.arange(length)[:, None] * theta)
    for h in range(heads):
        j = h // (heads // key_heads)
        q = queries[:, h * head_dim : (h + 1) * head_dim].astype(np.float64)
        k = keys[:, j * head_dim : (j + 1) * head_dim].astype(np.float64)
        q, k = ((x[:, 0::2] + 1j * x[:, 1::2]) * turned for x in (q, k))
        np.testing.assert_allclose(scores[h], (q @ k.conj().T).real / head_dim**0.5, atol=1e-5)


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 2), (4, 1), (9, 3)])
def test_weights_and_output_are_those_of_transformers(score: Score, heads: int, key_heads: int) -> None:
    head_dim, length = 8, 6
    queries, keys = array(2, length, heads * head_dim), array(2, length, key_heads * head_dim, seed=1)
    result = score(AttentionInput(queries=queries, keys=keys), encoding="none", heads=heads, key_heads=key_heads)
    q = torch.from_numpy(queries).view(2, length, heads, head_dim).transpose(1, 2)
    k = torch.from_numpy(keys).view(2, length, key_heads, head_dim).transpose(1, 2)
    module: Any = SimpleNamespace(num_key_value_groups=heads // key_heads, training=False)
    output, weights = modeling_llama.eager_attention_forward(module, q, k, k, None, head_dim**-0.5)
    np.testing.assert_allclose(arrays(result)["weights"], weights.numpy(), atol=1e-6)
    np.testing.assert_allclose(arrays(result)["output"], output.numpy(), atol=1e-5)


def test_keys_are_repeated_as_transformers_repeats_them() -> None:
    request = admit(AttentionInput(queries=array(3, 32), keys=array(5, 8)), ROPE, 8, Limits(), key_heads=2)
    assert request.keys.shape == (1, 5, 2, 4)
    theirs = modeling_llama.repeat_kv(torch.from_numpy(request.keys).transpose(1, 2), 4).transpose(1, 2)
    np.testing.assert_array_equal(whole_keys(request.keys, 4), theirs.numpy())
    assert whole_keys(request.keys, 1) is request.keys


@pytest.mark.parametrize(
    ("detail", "pointer", "heads", "key_heads", "parts"),
    [
        (
            "8 query heads cannot share 3 key heads evenly; under heads=8, key_heads may be 1, 2, 4, 8",
            "query:key_heads",
            8,
            3,
            {"queries": array(3, 32), "keys": array(5, 12)},
        ),
        ("cannot share 16 key heads", "query:key_heads", 8, 16, {"queries": array(3, 32), "keys": array(5, 64)}),
        (
            "cannot share 2 key heads evenly; under heads=1",
            "query:key_heads",
            None,
            2,
            {"queries": array(3, 8), "keys": array(5, 8)},
        ),
        (
            "keys are 32 wide, but 2 key heads of head_dim 4, which is that of the queries, are 8 wide",
            "/keys",
            8,
            2,
            {"queries": array(3, 32), "keys": array(5, 32)},
        ),
        ("but embeddings came, which are both", "query:key_heads", 8, 2, {"embeddings": array(3, 32)}),
        (
            "both must have the same width, unless key_heads says",
            "/keys",
            8,
            None,
            {"queries": array(3, 32), "keys": array(5, 8)},
        ),
        ("only keys came", "", 8, 2, {"keys": array(3, 8)}),
    ],
)
def test_what_cannot_be_shared_is_refused_saying_what_can(
    detail: str, pointer: str, heads: int | None, key_heads: int | None, parts: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        admit(AttentionInput(**parts), ROPE, heads, Limits(), key_heads)
    assert detail in caught.value.detail
    assert caught.value.pointer == pointer


def test_a_projected_model_makes_its_own_keys() -> None:
    with pytest.raises(InvalidInput, match="'layer' makes its own keys") as caught:
        admit(AttentionInput(queries=array(3, 8), keys=array(3, 8)), LAYER, None, Limits(), key_heads=1)
    assert caught.value.pointer == "query:key_heads"


def test_keys_that_grow_too_large_when_they_are_repeated_are_refused() -> None:
    input = AttentionInput(queries=array(1, 1024), keys=array(64, 4))
    with pytest.raises(PayloadTooLarge, match="repeated for 256 query heads each, are 65,536 numbers"):
        admit(input, ROPE, 256, Limits(cells=65_535), key_heads=1)
    assert admit(input, ROPE, 256, Limits(cells=65_536), key_heads=1).heads == 256


def test_a_large_request_is_repeated_on_a_thread(score: Score) -> None:
    heads, keys = 64, array(512, 4, seed=1)
    queries = array(2, heads * 4)
    keys = np.repeat(keys, 8, axis=0)  # 4096 keys: 64 x 4 x 4096 numbers once repeated
    grouped = score(AttentionInput(queries=queries, keys=keys), encoding="none", heads=heads, key_heads=1)
    q = queries.reshape(2, heads, 4).astype(np.float64)
    expected = np.einsum("qhd,kd->hqk", q, keys.astype(np.float64)) / 2
    np.testing.assert_allclose(arrays(grouped)["scores"], expected, atol=1e-5)


def test_the_query_string_names_key_heads_and_the_answer_says_them(client: TestClient) -> None:
    body = {"queries": array(3, 16).tolist(), "keys": array(4, 8).tolist()}
    answer = client.post("/attention?heads=4&key_heads=2&compare=alibi", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["shape"] == {"heads": 4, "key_heads": 2, "queries": 3, "keys": 4, "head_dim": 4}
    assert np.array(answer.json()["results"][1]["weights"]).shape == (4, 3, 4)
    plain = client.post("/attention?heads=4", json={"embeddings": body["queries"]}).json()
    assert "key_heads" not in plain["shape"]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("heads=4&key_heads=3", "query:key_heads"),
        ("heads=4&key_heads=0", "query:key_heads"),
        ("heads=4&key_heads=x", "query:key_heads"),
        ("heads=4&key_heads=1", "/keys"),
        ("heads=4&key_head=2", "query:key_head"),
    ],
)
def test_bad_key_heads_are_refused_by_their_place(client: TestClient, query: str, pointer: str) -> None:
    body = {"queries": array(3, 16).tolist(), "keys": array(4, 8).tolist()}
    answer = client.post(f"/attention?{query}", json=body)
    assert answer.status_code == 422
    assert answer.json()["pointer"] == pointer
