"""All metrics of requests of any shape: more queries than keys, one of either, rows picked, nothing to be seen."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from service.analysis.wanted import ALL
from service.routes.compare import PATH
from service.wire import media
from tests.service.analysis import loops

SIZES = st.sampled_from([1, 1, 2, 3, 5, 9])
SEEDS = st.integers(0, 2**32 - 1)
EXAMPLES = settings(max_examples=60, derandomize=True)


def summaries(response: Any, kind: str) -> list[dict[str, Any]]:
    """Those of each matrix in an answer of any format, with their profiles."""
    assert response.status_code == 200, response.text
    if kind == media.JSON:
        return [result["summary"] for result in response.json()["results"]]
    if kind == media.SAFETENSORS:
        arrays = safetensors.numpy.load(response.content)
        length = int.from_bytes(response.content[:8], "little")
        answer = json.loads(json.loads(response.content[8 : 8 + length])["__metadata__"]["metadata"])
    else:
        with np.load(io.BytesIO(response.content)) as file:
            arrays = {name: file[name] for name in file.files}
        answer = json.loads(arrays["metadata"].tobytes())
    found = []
    for result in answer["results"]:
        of = f"{result['name']}/summary/distance_profile/"
        profile = {name.removeprefix(of): array.tolist() for name, array in arrays.items() if name.startswith(of)}
        found.append(result["summary"] | ({"distance_profile": profile} if profile else {}))
    return found


def check_profile(summary: dict[str, Any], weights: np.ndarray, seen: np.ndarray, places: np.ndarray) -> None:
    """Against a loop over the cells of each head; `places` are -1 where a query is at no key."""
    shown = summary["distance_profile"]
    for h, matrix in enumerate(weights.astype(np.float64)):
        rows = [i for i in loops.counted(matrix, seen[h], [False] * len(matrix)) if seen[h, i].sum() > 1]
        rows = [i for i in rows if places[i] >= 0]
        assert shown["rows"][h] == len(rows)
        expected = {d: [0.0, 0.0, 0] for d in shown["distances"]}
        for i in rows:
            for j in np.flatnonzero(seen[h, i]):
                entry = expected[int(places[i] - j)]
                entry[0] += float(matrix[i, j]) / len(rows)
                entry[1] += 1 / int(seen[h, i].sum()) / len(rows)
                entry[2] += 1
        numbers = [shown[name][h] for name in ("weights", "uniform", "pairs")]
        if rows:
            np.testing.assert_allclose(np.array(numbers).T, np.array(list(expected.values())), atol=2e-5)
        else:
            assert not any(numbers[2])


@EXAMPLES
@given(
    seed=SEEDS, queries=SIZES, keys=SIZES, causal=st.booleans(), masked=st.booleans(), jump=st.booleans(),
    picked=st.booleans(), head=st.booleans(), kind=st.sampled_from([media.JSON, media.NPZ, media.SAFETENSORS]),
)  # fmt: skip
def test_every_metric_of_any_attention_is_told(
    client: TestClient, seed: int, queries: int, keys: int, causal: bool, masked: bool, jump: bool, picked: bool,
    head: bool, kind: str,
) -> None:  # fmt: skip
    random = np.random.default_rng(seed)
    body: dict[str, Any] = {
        "queries": random.normal(size=(queries, 6)).tolist(),
        "keys": random.normal(size=(keys, 6)).tolist(),
    }
    places = np.arange(queries)
    if jump:
        places = random.integers(0, keys + 3, queries)
        body |= {"query_positions": places.tolist(), "key_positions": list(range(keys))}
    seen = np.ones((2, queries, keys), bool)
    if masked:
        mask = random.random((2, queries, keys)) < 0.5
        body["mask"], seen = [mask.astype(int).tolist()], seen & mask
    if causal:
        seen &= np.arange(keys) <= places[:, None]
    query = {"encoding": "none", "compare": "alibi", "heads": "2", "causal": str(causal).lower()}
    if picked:
        rows = random.choice(queries, int(random.integers(1, queries + 1)), replace=False)
        query["rows"] = ",".join(map(str, rows))
        seen, places = seen[:, rows], places[rows]
    if head:
        query["head"], seen = "1", seen[1:]
    response = client.post("/attention", params={**query, "return": "weights"}, json=body)
    assert response.status_code == 200, response.text
    matrices = [np.array(result["weights"], np.float32) for result in response.json()["results"]]
    asked = {**query, "return": "summary,comparison", "metrics": ALL}
    found = summaries(client.post("/attention", params=asked, json=body, headers={"accept": kind}), kind)
    for summary, weights in zip(found, matrices, strict=True):
        check_profile(summary, weights.reshape(seen.shape), seen, np.where(places < keys, places, -1))
    asked = {**query, "metrics": ALL, "top_k": str(min(2, keys)), "return": "weights,summary"}
    again = summaries(client.post("/attention", params=asked, json=body, headers={"accept": kind}), kind)
    assert again[0]["entropy"]["rows"] == found[0]["entropy"]["rows"]


@EXAMPLES
@given(
    seed=SEEDS, tokens=SIZES, batch=SIZES, causal=st.booleans(), masked=st.sampled_from([None, "keys", "cells"]),
    picked=st.booleans(),
)  # fmt: skip
def test_every_metric_of_any_batch_is_told(
    client: TestClient, seed: int, tokens: int, batch: int, causal: bool, masked: str | None, picked: bool
) -> None:
    random = np.random.default_rng(seed)
    body: dict[str, Any] = {"embeddings": random.normal(size=(batch, tokens, 4)).tolist()}
    if masked is not None:
        shape = (batch, tokens) if masked == "keys" else (batch, 1, tokens, tokens)
        body["mask"] = (random.random(shape) < 0.4).astype(int).tolist()
    query = {"encoding": "rope", "compare": "t5", "heads": "2", "causal": str(causal).lower(), "metrics": ALL}
    if picked:
        query["rows"] = ",".join(map(str, random.choice(tokens, int(random.integers(1, tokens + 1)), replace=False)))
    for kind in (media.JSON, media.NPZ, media.SAFETENSORS):
        response = client.post(
            "/attention", params={**query, "return": "summary,comparison"}, json=body, headers={"accept": kind}
        )
        for summary in summaries(response, kind):
            rows = sum(np.array(summary[f"rows_{name}"]) for name in ("counted", "invalid", "padding"))
            assert (np.array(rows) == (len(query["rows"].split(",")) if picked else tokens)).all()


@EXAMPLES
@given(
    seed=SEEDS, queries=SIZES, keys=SIZES, causal=st.booleans(), masked=st.booleans(), jump=st.booleans(),
    sinks=st.booleans(),
)  # fmt: skip
def test_every_metric_of_any_matrices_is_told(
    client: TestClient, seed: int, queries: int, keys: int, causal: bool, masked: bool, jump: bool, sinks: bool
) -> None:
    random = np.random.default_rng(seed)
    seen = np.ones((2, queries, keys), bool)
    document: dict[str, Any] = {}
    places = random.integers(0, keys + 3, queries) if jump else np.arange(queries)
    if jump:
        document |= {"query_positions": places.tolist(), "key_positions": list(range(keys))}
    if masked:
        mask = random.random((2, queries, keys)) < 0.5
        document["mask"], seen = [mask.astype(int).tolist()], seen & mask
    if causal:
        seen &= np.arange(keys) <= places[:, None]
    matrices = {}
    for name in ("a", "b"):
        exps = np.where(seen, np.exp(random.normal(size=seen.shape)), 0)
        matrices[name] = exps / np.maximum(exps.sum(-1, keepdims=True), 1e-300)
    document["matrices"] = {name: ((0.25 if sinks else 1.0) * one).tolist() for name, one in matrices.items()}
    response = client.post(
        f"{PATH}?metrics={ALL}&causal={str(causal).lower()}&sinks={str(sinks).lower()}", json=document
    )
    for summary, matrix in zip(summaries(response, media.JSON), matrices.values(), strict=True):
        check_profile(summary, matrix, seen, np.where(places < keys, places, -1))
    profiles = [result["summary"]["distance_profile"]["weights"] for result in response.json()["results"]]
    moved = response.json()["comparison"]["against"]["b"]["profile_tv"]
    for h in range(2):
        if moved["rows"][h]:
            expected = np.abs(np.array(profiles[0][h]) - np.array(profiles[1][h])).sum() / 2
            assert moved["mean"][h] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", [media.JSON, media.NPZ, media.SAFETENSORS])
@pytest.mark.parametrize("body", [{"embeddings": [[1, 0]]}, {"embeddings": [[1, 0], [0, 1]], "mask": [[0, 0], [0, 0]]}])
def test_a_profile_without_distances_is_empty_in_every_format(
    client: TestClient, kind: str, body: dict[str, Any]
) -> None:
    query = "encoding=none&return=summary&metrics=distance_profile"
    (summary,) = summaries(client.post(f"/attention?{query}", json=body, headers={"accept": kind}), kind)
    profile = summary["distance_profile"]
    assert (profile["distances"], profile["weights"], profile["pairs"]) == ([], [[]], [[]])
    assert profile["rows"] == [0]
