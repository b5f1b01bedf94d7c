"""The service on a Ray cluster of three nodes: it answers as one process does, and goes on when parts of it die."""

from __future__ import annotations

import io
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from fastapi import FastAPI
from safetensors.numpy import load as load_safetensors
from starlette.testclient import TestClient

from service.wire import media
from tests.service.cluster.nodes import Cluster, Served, cluster, until

CLIENTS = 6
"""That ask while something dies."""
RANDOM = np.random.default_rng(7)
SMALL = RANDOM.standard_normal((12, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def served(nodes: Cluster) -> Iterator[Served]:
    served = Served(
        nodes,
        *("--min-replicas", "2", "--max-ongoing", "8", "--max-queued", "8"),
        port="0",
        max_body_bytes="2MiB",
        request_cells=str(1 << 26),
        queue_cells=str(1 << 26),
    )
    try:
        until(lambda: served.ready() == 2, "the second replica")
        yield served
    finally:
        served.close()


@pytest.fixture(scope="module")
def remote(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def npy(array: np.ndarray) -> bytes:
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


def ask(client: httpx.Client, encoding: str) -> int:
    """The status of one small request."""
    return client.post(f"/attention?encoding={encoding}", json={"embeddings": [[1, 2], [3, 4]]}).status_code


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "timings"}


def test_replicas_are_spread_over_the_nodes(nodes: Cluster, served: Served) -> None:
    assert [len(node.replicas) for node in (nodes.head, nodes.large, nodes.small)] == [0, 1, 1]


def test_every_encoding_is_answered_as_by_a_single_process(
    remote: httpx.Client, client: TestClient, application: FastAPI
) -> None:
    encodings = [one.id for one in application.state.service.catalogue.models["identity"].encodings.values()]
    assert len(encodings) > 15
    for encoding in encodings:
        query = {"encoding": encoding, "heads": "4", "return": "weights,scores,terms,output,summary", "causal": "true"}
        body = orjson.dumps({"embeddings": SMALL.tolist()})
        head = {"content-type": media.JSON}
        here, there = (one.post("/attention", params=query, content=body, headers=head) for one in (client, remote))
        assert there.status_code == here.status_code == 200, there.text
        assert without_times(there.json()) == without_times(here.json())
        head = {"content-type": media.NPY, "accept": media.SAFETENSORS}
        here, there = (
            one.post("/attention", params=query, content=npy(SMALL), headers=head) for one in (client, remote)
        )
        expected, found = load_safetensors(here.content), load_safetensors(there.content)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_large_bodies_pass_in_both_directions(remote: httpx.Client, client: TestClient) -> None:
    embeddings = RANDOM.standard_normal((2048, 64)).astype(np.float32)
    query = {"encoding": "alibi", "return": "weights", "heads": "2"}
    head = {"content-type": media.NPY, "accept": media.NPZ}
    here, there = (
        one.post("/attention", params=query, content=npy(embeddings), headers=head) for one in (client, remote)
    )
    assert there.status_code == 200, there.text
    assert len(there.content) > 1 << 25
    found, expected = np.load(io.BytesIO(there.content)), np.load(io.BytesIO(here.content))
    np.testing.assert_array_equal(found["alibi/weights"], expected["alibi/weights"])


def test_refusals_and_ids_are_the_services_own(remote: httpx.Client) -> None:
    refused = remote.post("/attention?encoding=rop", json={"embeddings": [[1, 2]]}, headers={"x-request-id": "mine"})
    assert refused.status_code == 422
    assert refused.headers["content-type"] == media.PROBLEM
    assert refused.headers.get_list("x-request-id") == ["mine"]
    assert refused.json()["request_id"] == "mine"
    large = remote.post("/attention", content=bytes(3 << 20), headers={"content-type": media.NPY})
    assert (large.status_code, large.headers["content-type"]) == (413, media.PROBLEM)
    assert remote.get("/v2/systemsharedmemory/status").status_code == 501


def test_metrics_are_those_of_all_replicas(served: Served, remote: httpx.Client) -> None:
    def counted() -> float:
        return sum(served.series("attention_requests_total", endpoint="/models").values())

    before = counted()
    for _ in range(20):
        assert remote.get("/models").status_code == 200
    assert counted() == before + 20
    asked = served.series("attention_requests_total", endpoint="/models")
    assert len(asked) == 2
    text = remote.get("/metrics", headers={"accept": "application/openmetrics-text"}).text
    assert text.count("# EOF\n") == 1
    assert text.endswith("# EOF\n")
    assert text.count("# TYPE attention_requests ") == 1


def test_statistics_are_sums_over_the_replicas(remote: httpx.Client) -> None:
    def counted() -> int:
        (report,) = remote.get("/v2/models/identity.cope/stats").raise_for_status().json()["model_stats"]
        count: int = report["inference_count"]
        assert report["inference_stats"]["success"]["count"] == count
        return count

    before = counted()
    assert {ask(remote, "cope") for _ in range(12)} == {200}
    assert {counted() for _ in range(6)} == {before + 12}


def test_a_model_that_is_unloaded_is_so_on_every_replica(remote: httpx.Client) -> None:
    assert ask(remote, "kerple") == 200
    assert remote.post("/v2/repository/models/identity.kerple/unload").status_code == 200
    assert {ask(remote, "kerple") for _ in range(12)} == {422}
    assert remote.post("/v2/repository/models/identity.kerple/load").status_code == 200
    assert {ask(remote, "kerple") for _ in range(12)} == {200}


def test_a_client_that_leaves_is_noticed_and_counted(served: Served) -> None:
    embeddings = npy(RANDOM.standard_normal((4000, 32)).astype(np.float32))
    query = "/attention?encoding=rope&return=summary&metrics=all&heads=4"

    def left() -> float:
        return sum(served.series("attention_requests_total", endpoint="/attention", status="499").values())

    def under_way() -> float:
        return sum(served.series("attention_inflight_requests", endpoint="/attention").values())

    before = left()
    with served.client() as leaving:
        leaving.timeout = httpx.Timeout(10.0, read=0.25)
        with pytest.raises(httpx.ReadTimeout):
            leaving.post(query, content=embeddings, headers={"content-type": media.NPY})
    until(lambda: left() == before + 1, "the client that left")
    until(lambda: under_way() == 0, "the end of its request")


def crowd(served: Served, clients: int) -> list[httpx.Response]:
    """What so many clients are answered who ask at once for 2^25 numbers each."""
    body = npy(RANDOM.standard_normal((2048, 32)).astype(np.float32))

    def ask(_: int) -> httpx.Response:
        with served.client() as client:
            return client.post("/attention?return=summary&heads=8", content=body, headers={"content-type": media.NPY})

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(ask, range(clients)))


def test_requests_that_are_too_many_are_refused_by_the_proxy_and_the_rest_answered(served: Served) -> None:
    answers = crowd(served, 64)
    statuses = Counter(answer.status_code for answer in answers)
    # Eight for each replica, and eight that wait.
    assert set(statuses) <= {200, 429, 503}, statuses
    assert statuses[200], statuses
    assert statuses[503] >= 20, statuses
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code != 200)


def test_a_replica_whose_queue_is_full_says_so_in_its_own_words(served: Served) -> None:
    answers = crowd(served, 16)
    statuses = Counter(answer.status_code for answer in answers)
    # Of eight at a replica two are under way and two may wait.
    assert {200, 429} <= set(statuses) <= {200, 429, 503}, statuses
    for answer in answers:
        if answer.status_code == 429:
            assert answer.headers["content-type"] == media.PROBLEM
            assert int(answer.headers["retry-after"]) >= 1
    refused = sum(served.series("attention_rejected_total", reason="queue_full").values())
    assert refused >= statuses[429]


class Load:
    """Clients that ask one request after the other. `outcomes` counts how each ended: its status, or the name of what
    was raised; what is answered is checked."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.outcomes: Counter[int | str] = Counter()
        self.again: Counter[int | str] = Counter()
        """What came of asking once more."""
        self._expected: np.ndarray | None = None
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def goes_on(self) -> None:
        """Waits for some more answers."""
        with self._lock:
            enough = self.outcomes[200] + 30
        until(lambda: self.outcomes[200] >= enough, f"the load ({self.outcomes})", seconds=30.0)

    def _ask(self) -> None:
        with self._served.client() as client:
            while not self._over.is_set():
                outcome = self._one(client)
                with self._lock:
                    self.outcomes[outcome] += 1
                if outcome != 200:
                    time.sleep(0.5)
                    outcome = self._one(client)
                    with self._lock:
                        self.again[outcome] += 1

    def _one(self, client: httpx.Client) -> int | str:
        try:
            answer = client.post(
                "/attention?encoding=rope&heads=4&return=weights",
                content=npy(SMALL),
                headers={"content-type": media.NPY, "accept": media.SAFETENSORS},
            )
        except httpx.TransportError as error:
            return type(error).__name__
        if answer.status_code == 200:
            weights = load_safetensors(answer.content)["rope/weights"]
            with self._lock:
                self._expected = weights if self._expected is None else self._expected
            if not np.array_equal(weights, self._expected):
                return "wrong"
        return answer.status_code


LOST = {500, 503, "RemoteProtocolError", "ReadError"}
"""How a request may end whose replica died under it: 500 (or, where its answer had begun, a cut connection); 503 with
Retry-After where none is left."""


def check_lost(load: Load) -> None:
    lost = load.outcomes - Counter({200: load.outcomes[200]})
    assert set(lost) <= LOST, load.outcomes
    # Only what was under way: at most one of each client.
    assert lost.total() <= CLIENTS, load.outcomes
    assert set(load.again) <= {200}, load.again


def test_a_replica_that_is_killed_under_load_costs_what_it_had_and_is_replaced(
    nodes: Cluster, served: Served, remote: httpx.Client
) -> None:
    (replica,) = nodes.large.replicas
    before = set(served.series("attention_ready"))
    assert remote.post("/v2/repository/models/identity.kerple/unload").status_code == 200
    with Load(served) as load:
        load.goes_on()
        replica.kill()
        load.goes_on()
        until(lambda: served.ready() == 2 and set(served.series("attention_ready")) != before, "another replica")
        load.goes_on()
    check_lost(load)
    # The new one was told what the other does not serve.
    assert {ask(remote, "kerple") for _ in range(12)} == {422}
    assert remote.post("/v2/repository/models/identity.kerple/load").status_code == 200


def test_a_node_that_is_killed_under_load_costs_what_it_had_and_another_takes_its_place(
    nodes: Cluster, served: Served
) -> None:
    assert len(nodes.small.replicas) == 1
    with Load(served) as load:
        load.goes_on()
        nodes.small.kill()
        load.goes_on()
        until(lambda: len(nodes.large.replicas) == 2 and served.ready() == 2, "a replica on the other node")
        load.goes_on()
    check_lost(load)


def test_what_is_under_way_is_answered_when_it_is_told_to_end(served: Served) -> None:
    """The last test: nothing is served afterwards."""
    embeddings = npy(RANDOM.standard_normal((4000, 32)).astype(np.float32))

    def under_way() -> bool:
        return sum(served.series("attention_inflight_requests", endpoint="/attention").values()) > 0

    def ask() -> int:
        with served.client() as client:
            query = "/attention?encoding=rope&return=summary&metrics=all&heads=4"
            return client.post(query, content=embeddings, headers={"content-type": media.NPY}).status_code

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        until(under_way, "the request")
        assert served.end() == 0, "".join(served.output)
        assert asked.result() == 200
