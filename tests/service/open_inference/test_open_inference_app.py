"""`/v2` as a part of the application: models of a fixed width, starting, refusing, clients that leave, failures."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fastapi import FastAPI
from onnx import helper
from pydantic import ByteSize
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.service import counts, tiny
from tests.service.open_inference.bodies import LENGTH, X, binary_body, json_body, read_binary, tensor
from tests.service.test_app import Client, Gated, metrics, run, service, until

PATH = "/v2/models/identity.rope/infer"
TEMPLATE = "/v2/models/{model}/infer"
BODY = json_body(outputs=[{"name": "weights"}])


def ask(app: FastAPI, body: bytes = BODY, path: str = PATH, method: str = "POST") -> Client:
    return Client(app, body, path, method)


def message(body: bytes) -> str:
    document = json.loads(body)
    assert list(document) == ["error"]
    text: str = document["error"]
    return text


def executions(app: FastAPI) -> dict[str, Any]:
    return service(app).statistics.report("identity.rope", "1")


def test_a_client_that_leaves_is_never_computed_and_counts_as_failed() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        before = metrics(app)
        sessions.gate.clear()
        first = ask(app)
        await until(sessions.entered.is_set)
        leaver = ask(app)
        await until(lambda: service(app).engine.queued_jobs == 1)
        leaver.leave()
        await leaver.ended()
        assert leaver.messages == []
        sessions.gate.set()
        assert (await first.answer())[0] == 200
        assert sessions.runs == 1
        moved = counts.changes(before, metrics(app), "attention_requests_total")
        assert moved == {("rope", TEMPLATE, "200"): 1, ("rope", TEMPLATE, "499"): 1}
        report = executions(app)
        assert report["inference_stats"]["success"]["count"] == report["execution_count"] == 1
        assert report["inference_stats"]["fail"]["count"] == 1

    run(scenario)


def test_requests_by_both_doors_share_a_batch_and_are_counted_together() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        sessions.gate.clear()
        first = ask(app)
        await until(sessions.entered.is_set)
        everything = json_body(outputs=[{"name": "weights"}, {"name": "scores"}])
        ours = [ask(app, everything) for _ in range(3)]
        theirs = Client(app, json.dumps({"embeddings": X.tolist()}).encode(), "/attention")
        theirs.scope["headers"] = [(b"content-type", b"application/json")]
        await until(lambda: service(app).engine.queued_jobs == 4)
        sessions.gate.set()
        for client in (first, *ours, theirs):
            assert (await client.answer())[0] == 200
        report = executions(app)
        assert report["inference_count"] == 5
        assert report["execution_count"] == 2
        assert [(one["batch_size"], one["compute_infer"]["count"]) for one in report["batch_stats"]] == [(1, 1), (4, 1)]
        assert report["inference_stats"]["queue"]["ns"] > 0

    run(scenario)


def test_the_deadline_of_a_request_is_its_timeout() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        sessions.gate.clear()
        first = ask(app)
        await until(sessions.entered.is_set)
        status, _, body = await ask(app, json_body(parameters={"timeout": 20_000})).answer()
        assert status == 504
        assert "deadline, 0.02 s after it came (its own timeout)" in message(body)
        sessions.gate.set()
        assert (await first.answer())[0] == 200

    run(scenario)


def test_a_timeout_lengthens_no_deadline() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        sessions.gate.clear()
        assert (await ask(app, json_body(parameters={"timeout": 10**18})).answer())[0] == 504

    run(scenario, deadline_seconds=0.05)


def test_a_full_queue_is_429_with_retry_after_in_the_protocols_form() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        sessions.gate.clear()
        first = ask(app)
        await until(sessions.entered.is_set)
        waiting = ask(app)
        await until(lambda: service(app).engine.queued_jobs == 1)
        status, headers, body = await ask(app).answer()
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert "queued" in message(body)
        sessions.gate.set()
        for client in (first, waiting):
            assert (await client.answer())[0] == 200

    run(scenario, queue_jobs=1)


def test_a_model_that_fails_is_500_and_counts_as_failed_once() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        sessions.failure = RuntimeError("boom")
        status, _, body = await ask(app).answer()
        assert status == 500
        assert "identity.rope failed" in message(body)
        sessions.failure = None
        assert (await ask(app).answer())[0] == 200
        report = executions(app)
        assert report["inference_stats"]["fail"]["count"] == report["inference_stats"]["success"]["count"] == 1

    run(scenario)


def test_a_defect_is_500_without_its_details(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        async def broken(*_: Any) -> None:
            raise ZeroDivisionError("a secret at /home/someone")

        monkeypatch.setattr(service(app).scoring, "score", broken)
        status, headers, body = await ask(app).answer()
        assert status == 500
        assert headers["content-type"] == "application/json"
        assert headers["x-request-id"] in message(body)
        assert b"secret" not in body
        assert "a secret" in caplog.text

    run(scenario)


def test_a_draining_service_is_not_ready_and_refuses_new_work() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        sessions.gate.clear()
        taken = ask(app)
        await until(sessions.entered.is_set)
        service(app).lifecycle.drain()
        status, headers, body = await ask(app).answer()
        assert status == 503
        assert headers["retry-after"]
        assert headers["connection"] == "close"
        assert "shutting down" in message(body)
        for path in ("/v2/health/ready", "/v2/models/identity.rope/ready"):
            assert (await ask(app, b"", path, "GET").answer())[0] == 503
        assert (await ask(app, b"", "/v2/health/live", "GET").answer())[0] == 200
        index = json.loads((await ask(app, b"", "/v2/repository/index").answer())[2])
        assert {one["state"] for one in index} == {"UNAVAILABLE"}
        assert json.loads((await ask(app, b'{"ready":true}', "/v2/repository/index").answer())[2]) == []
        sessions.gate.set()
        assert (await taken.answer())[0] == 200

    run(scenario)


def test_a_body_over_the_limit_is_413_before_and_after_it_is_unpacked() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        assert (await ask(app, b" " * 4000).answer())[0] == 413
        packed = ask(app, gzip.compress(b" " * 400_000))
        packed.scope["headers"].append((b"content-encoding", b"gzip"))  # type: ignore[attr-defined]
        status, _, body = await packed.answer()
        assert status == 413
        assert "unpacks" in message(body)

    run(scenario, max_body_bytes=ByteSize(3000))


# A model whose width is its own


def fixed(folder: Path) -> None:
    """`fixed.plain`: 2 heads of 4."""

    def project(model: onnx.ModelProto, document: dict[str, Any]) -> None:
        graph = model.graph
        for value in graph.input[:2]:
            value.CopyFrom(helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, ["batch", value.name, 8]))
        shape = helper.make_tensor("shape", onnx.TensorProto.INT64, [4], [0, 0, 2, 4])
        graph.initializer.append(shape)
        for node in graph.node:
            for i, name in enumerate(node.input):
                node.input[i] = f"{name}.split" if name in ("queries", "keys") else name
        split = [helper.make_node("Reshape", [name, "shape"], [f"{name}.split"]) for name in ("queries", "keys")]
        nodes = [*split, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)

    sizes: dict[str, Any] = {"heads": 2, "head_dim": 4, "width": 8, "queries": ["batch", "queries", "width"]}
    scores, _ = tiny.write(folder, model="fixed", **sizes)
    tiny.change(scores, project)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("models")
    fixed(folder)
    tiny.write(folder, "torn")
    (folder / "identity" / "torn.positions.onnx").unlink()
    with TestClient(create_app(Settings(device="cpu", workers=1, models=(folder,)))) as client:
        yield client


def test_metadata_states_the_sizes_that_are_fixed(narrow: TestClient) -> None:
    metadata = narrow.get("/v2/models/fixed.plain").json()
    shapes = {one["name"]: one["shape"] for one in (*metadata["inputs"], *metadata["outputs"])}
    assert shapes["embeddings"] == [-1, -1, 8]
    assert shapes["weights"] == [-1, 2, -1, -1]
    assert shapes["output"] == [-1, -1, 2, 4]


def test_a_bare_tensor_is_a_whole_request(narrow: TestClient) -> None:
    rows = X[0]
    answer = narrow.post("/v2/models/fixed.plain/infer", content=rows.tobytes(), headers={LENGTH: "0"})
    assert answer.status_code == 200, answer.text
    document, found = read_binary(answer.content, answer.headers[LENGTH])
    assert [one["name"] for one in document["outputs"]] == ["weights", "scores", "output", "term.content"]
    body, headers = binary_body({"embeddings": rows[None]}, parameters={"binary_data_output": True})
    whole = narrow.post("/v2/models/fixed.plain/infer", content=body, headers=headers)
    assert whole.content == answer.content
    np.testing.assert_allclose(found["scores"][0], np.einsum("qhd,khd->hqk", *[rows.reshape(5, 2, 4)] * 2), atol=1e-5)


@pytest.mark.parametrize("content", [b"", b"123", X.tobytes()[:-4]])
def test_a_bare_tensor_of_no_whole_rows_is_400(narrow: TestClient, content: bytes) -> None:
    answer = narrow.post("/v2/models/fixed.plain/infer", content=content, headers={LENGTH: "0"})
    assert answer.status_code == 400
    assert "32 bytes" in answer.json()["error"]


def test_the_index_lists_what_is_not_served_and_why(narrow: TestClient) -> None:
    index = {one["name"]: one for one in narrow.post("/v2/repository/index").json()}
    assert index["fixed.plain"]["state"] == "READY"
    assert index["identity.torn"]["state"] == "UNAVAILABLE"
    assert "missing" in index["identity.torn"]["reason"]
    assert narrow.get("/v2/models/identity.torn/ready").status_code == 404


def test_heads_of_a_model_that_has_its_own_are_checked(narrow: TestClient) -> None:
    content = json_body(tensor("embeddings", X), parameters={"heads": 4})
    answer = narrow.post("/v2/models/fixed.plain/infer", content=content)
    assert answer.status_code == 400
    assert "2 heads" in answer.json()["error"]


def test_without_models_the_protocol_answers_and_nothing_is_ready(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(device="cpu", models=(tmp_path,)))) as client:
        assert client.get("/v2/health/live").status_code == 200
        assert "no exported models" in client.get("/v2/health/ready").json()["error"]
        assert client.post(PATH, content=BODY).status_code == 404
        assert client.get("/v2/models/stats").json() == {"model_stats": []}
        assert client.post("/v2/repository/index").json() == []
