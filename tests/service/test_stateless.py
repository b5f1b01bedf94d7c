"""No request leaves anything behind: after any sequence of others, a service answers as a fresh process does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from tests.service.process import serving
from tests.service.samples import npz

TENSORS = "application/vnd.safetensors"
LENGTHS = (1, 2, 7, 33, 64, 300)
# Encodings whose formula looks at the whole request are the ones that could remember another.
KEEN = ("rope-dynamic", "rope-longrope", "fire", "cope", "xpos", "t5", "learned")


@pytest.fixture(scope="module")
def clients() -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """A service that has served much, and one that has served nothing."""
    with (
        serving() as used,
        serving() as fresh,
        httpx.Client(base_url=f"http://127.0.0.1:{used.port}", timeout=60) as one,
        httpx.Client(base_url=f"http://127.0.0.1:{fresh.port}", timeout=60) as other,
    ):
        yield one, other


def test_any_sequence_of_requests_gives_the_bytes_of_a_fresh_process(
    clients: tuple[httpx.Client, httpx.Client],
) -> None:
    used, fresh = clients
    encodings = [line["id"] for line in used.get("/encodings").json()["encodings"]]
    rng = np.random.default_rng(11)
    requests = [_request(rng, encodings) for _ in range(150)]
    for query, body in requests:
        _arrays(used, query, body)
    probes = [requests[i] for i in rng.permutation(len(requests))[:60]]
    for query, body in probes:
        assert _arrays(used, query, body) == _arrays(fresh, query, body), query


def test_a_request_among_63_others_gets_the_numbers_it_gets_alone(clients: tuple[httpx.Client, httpx.Client]) -> None:
    used, _ = clients
    encodings = [line["id"] for line in used.get("/encodings").json()["encodings"]]
    rng = np.random.default_rng(12)
    for _ in range(3):
        requests = [_request(rng, encodings) for _ in range(64)]
        alone = [_arrays(used, query, body) for query, body in requests]
        with ThreadPoolExecutor(64) as pool:
            together = list(pool.map(lambda request: _arrays(used, *request), requests))
        for (query, _), one, other in zip(requests, alone, together, strict=True):
            assert one.keys() == other.keys(), query
            for name in one.keys() - {"detail"}:
                mine, theirs = (np.frombuffer(arrays[name], np.float32) for arrays in (one, other))
                largest = max(1.0, float(np.abs(mine).max()))
                assert np.abs(mine - theirs).max() <= 1e-6 * largest, (query, name)


def _request(rng: np.random.Generator, encodings: list[str]) -> tuple[dict[str, str], bytes]:
    encoding = str(rng.choice(KEEN if rng.random() < 0.5 else encodings))
    length, heads = int(rng.choice(LENGTHS)), int(rng.choice((1, 2, 4)))
    arrays = {"embeddings": rng.standard_normal((length, heads * 8)).astype(np.float32)}
    if rng.random() < 0.4:
        arrays["positions"] = np.arange(length) + float(rng.integers(0, 5000))
    query = {"encoding": encoding, "heads": str(heads), "causal": "true", "return": "weights,scores,terms,output"}
    if encoding in ("rope-dynamic", "rope-longrope"):
        query[f"{encoding}.original_length"] = str(rng.choice((16, 64, 4096)))
    if rng.random() < 0.2:
        query[f"{encoding}.softcap"] = str(rng.choice((5.0, 50.0)))
    return query, npz(**arrays)


def _arrays(client: httpx.Client, query: dict[str, str], body: bytes) -> dict[str, Any]:
    """Every array of the answer as bytes; of a refusal, what it says."""
    answer = client.post(
        "/attention", params=query, content=body, headers={"Content-Type": "application/x-npz", "Accept": TENSORS}
    )
    if answer.status_code != 200:
        assert answer.status_code == 422, answer.text
        return {"detail": json.loads(answer.content)["detail"]}
    return {name: array.tobytes() for name, array in safetensors.numpy.load(answer.content).items()}
