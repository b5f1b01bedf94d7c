"""The protocol as anyone speaks it with curl: JSON, headers, statuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from starlette.testclient import TestClient

from service.routes.open_inference import METHODS
from service.telemetry import STATUSES
from tests.service import counts
from tests.service.open_inference.bodies import LENGTH, X, json_body, tensor

ROPE = "/v2/models/identity.rope"
EMBEDDINGS = tensor("embeddings", X)


def infer(client: TestClient, content: bytes, model: str = "identity.rope", **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(f"/v2/models/{model}/infer", content=content, headers=named)


def scores(client: TestClient, content: bytes, **headers: str) -> Any:
    answer = infer(client, content, **headers)
    assert answer.status_code == 200, answer.text
    (output,) = [one for one in answer.json()["outputs"] if one["name"] == "scores"]
    assert output["datatype"] == "FP32"
    return np.array(output["data"], np.float32).reshape(output["shape"])


def error(answer: Any, status: int) -> str:
    """The message; the body holds nothing else."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    assert "total;dur=" in answer.headers["server-timing"]
    document = answer.json()
    assert list(document) == ["error"]
    message: str = document["error"]
    assert message
    return message


def test_a_json_request_is_answered_in_json(client: TestClient) -> None:
    answer = infer(client, json_body(id="a", outputs=[{"name": "weights"}]))
    assert answer.headers["content-type"] == "application/json"
    assert LENGTH not in answer.headers
    document = answer.json()
    (output,) = document.pop("outputs")
    assert document == {"model_name": "identity.rope", "model_version": "1", "id": "a"}
    assert output["name"] == "weights"
    assert output["shape"] == [2, 1, 5, 5]
    assert len(output["data"]) == 50
    assert "parameters" not in output
    np.testing.assert_allclose(np.reshape(output["data"], output["shape"]).sum(-1), 1, atol=1e-6)


def test_nested_and_flat_data_are_the_same(client: TestClient) -> None:
    nested = scores(client, json_body(tensor("embeddings", X)))
    flat = scores(client, json_body(tensor("embeddings", X, flat=True)))
    np.testing.assert_array_equal(nested, flat)


def test_json_is_what_attention_says(client: TestClient) -> None:
    expected = client.post("/attention?heads=4", json={"embeddings": X.tolist()}).json()["results"][0]
    found = scores(client, json_body(EMBEDDINGS, parameters={"heads": 4}))
    assert found.tobytes() == np.array(expected["scores"], np.float32).tobytes()


def test_without_a_batch_axis_there_is_none_in_the_answer(client: TestClient) -> None:
    one = scores(client, json_body(tensor("embeddings", X[0])))
    assert one.shape == (1, 5, 5)
    np.testing.assert_array_equal(one, scores(client, json_body(EMBEDDINGS))[0])


def test_no_outputs_or_an_empty_list_of_them_are_all_outputs(client: TestClient) -> None:
    described = [one["name"] for one in client.get(ROPE).json()["outputs"]]
    for content in (json_body(EMBEDDINGS), json_body(EMBEDDINGS, outputs=[])):
        assert [one["name"] for one in infer(client, content).json()["outputs"]] == described


def test_the_content_type_is_not_looked_at(client: TestClient) -> None:
    for kind in ("application/json", "application/octet-stream", "text/plain"):
        assert infer(client, json_body(EMBEDDINGS), content_type=kind).status_code == 200


def test_true_and_false_are_a_mask(client: TestClient) -> None:
    mask = {"name": "mask", "shape": [5], "datatype": "BOOL", "data": [True, True, False, True, True]}
    answer = infer(client, json_body(EMBEDDINGS, mask, outputs=[{"name": "weights"}])).json()["outputs"][0]
    weights = np.reshape(answer["data"], answer["shape"])
    assert (weights[..., 2] == 0).all()
    assert (weights[..., 3] > 0).all()


def test_a_parameter_may_be_one_number_in_a_tensor(client: TestClient) -> None:
    theta = {"name": "parameter.theta", "shape": [1], "datatype": "FP64", "data": [500]}
    as_tensor = scores(client, json_body(EMBEDDINGS, theta))
    np.testing.assert_array_equal(as_tensor, scores(client, json_body(EMBEDDINGS, parameters={"theta": 500})))
    twice = infer(client, json_body(EMBEDDINGS, theta, parameters={"theta": 500}))
    assert "twice" in error(twice, 400)


@pytest.mark.parametrize(
    ("coding", "accepted"),
    [("gzip", "gzip"), ("deflate", "deflate"), ("deflate", "deflate, gzip;q=0.5"), ("gzip", "br, gzip"), (None, "br")],
)
def test_json_is_compressed_where_the_client_accepts_it(client: TestClient, coding: str | None, accepted: str) -> None:
    answer = infer(client, json_body(EMBEDDINGS), accept_encoding=accepted)
    assert answer.headers.get("content-encoding") == coding
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.json()["model_name"] == "identity.rope"


def test_binary_is_compressed_only_for_a_client_that_names_one_coding(client: TestClient) -> None:
    content = json_body(EMBEDDINGS, parameters={"binary_data_output": True})
    assert infer(client, content, accept_encoding="gzip").headers["content-encoding"] == "gzip"
    assert "content-encoding" not in infer(client, content, accept_encoding="gzip, deflate, br").headers
    assert "content-encoding" not in infer(client, content, accept_encoding="identity").headers


def test_the_request_id_of_http_is_kept_and_every_stage_is_timed(client: TestClient) -> None:
    answer = infer(client, json_body(EMBEDDINGS), x_request_id="mine-1")
    assert answer.headers["x-request-id"] == "mine-1"
    assert "compute;dur=" in answer.headers["server-timing"]


def test_health_has_the_bodies_of_the_specification(client: TestClient) -> None:
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json()["ready"] is True
    assert client.get(f"{ROPE}/ready").json() == {"name": "identity.rope", "ready": True}
    assert client.get(f"{ROPE}/versions/1/ready").json() == {"name": "identity.rope", "ready": True}
    assert client.get("/v2/").json() == client.get("/v2").json()


def test_a_head_request_has_no_body(client: TestClient) -> None:
    answer = client.head("/v2/health/ready")
    assert answer.status_code == 200
    assert answer.content == b""


def test_the_index_lists_what_is_ready(client: TestClient) -> None:
    everything = client.post("/v2/repository/index").json()
    assert {"name": "identity.rope", "version": "1", "state": "READY", "reason": ""} in everything
    assert client.post("/v2/repository/index", json={"ready": True}).json() == everything
    for bad in (b"[]", b'{"ready": 1}', b'{"redy": true}', b"{"):
        error(client.post("/v2/repository/index", content=bad), 400)


@pytest.mark.parametrize(
    "path",
    ["/v2/none", "/v2/models", "/v2/models/identity.rope/generate", "/v2/models/identity.rope/versions/x", "/v2//"],
)
def test_an_unknown_path_is_404(client: TestClient, path: str) -> None:
    assert path in error(client.get(path), 404)


@pytest.mark.parametrize("template", METHODS)
def test_the_wrong_verb_is_405_and_the_right_ones_are_named(client: TestClient, template: str) -> None:
    wrong = "DELETE" if "GET" in METHODS[template] else "GET"
    answer = client.request(wrong, template.replace("{model}", "identity.rope"))
    assert "allowed" in error(answer, 405)
    assert answer.headers["allow"] == ", ".join(sorted(METHODS[template]))


def test_a_query_string_is_refused_rather_than_ignored(client: TestClient) -> None:
    assert "encoding" in error(client.post(f"{ROPE}/infer?encoding=alibi", content=json_body(EMBEDDINGS)), 400)


@pytest.mark.parametrize(
    ("expected", "content"),
    [
        ("not JSON", b""),
        ("not JSON", b"{"),
        ("not JSON", b'{"inputs": [NaN'),
        ("unknown member", b'{"Infinity \\ud800": 1}'),
        ("must hold", b"[]"),
        ("must hold", b'{"inputs": [3]}'),
        ("list", b'{"inputs": {}}'),
        ("list", b"{}"),
        ("nothing to score", b'{"inputs": []}'),
        ("input", orjson.dumps({"imputs": []})),
        ("id", json_body(EMBEDDINGS, id=3)),
        ("parameters", json_body(EMBEDDINGS, parameters=[])),
        ("heads", json_body(EMBEDDINGS, parameters={"heads": None})),
        ("theta", json_body(EMBEDDINGS, parameters={"theta": [1]})),
        ("theta", json_body(EMBEDDINGS, parameters={"theta": 1, "rope.theta": 1})),
        ("name", json_body({**EMBEDDINGS, "name": ""})),
        ("dtype", json_body({**EMBEDDINGS, "dtype": "FP32"})),
        ("shape", json_body({**EMBEDDINGS, "shape": None})),
        ("shape", json_body({**EMBEDDINGS, "shape": [2, 5, True]})),
        ("shape", json_body({**EMBEDDINGS, "shape": [2, 5, -8]})),
        ("shape", json_body({**EMBEDDINGS, "shape": [1] * 40})),
        ("shape", json_body({**EMBEDDINGS, "shape": [2**40, 2**40]})),
        ("shape", json_body({**EMBEDDINGS, "shape": [0, 2**63]})),
        ("shape", json_body({**EMBEDDINGS, "shape": [5, 2, 8]})),
        ("shape", json_body({**EMBEDDINGS, "data": [1, 2, 3]})),
        ("datatype", json_body({**EMBEDDINGS, "datatype": "FP31"})),
        ("datatype", json_body({**EMBEDDINGS, "datatype": 32})),
        ("BYTES", json_body({**EMBEDDINGS, "datatype": "BYTES"})),
        ("BF16", json_body({**EMBEDDINGS, "datatype": "BF16"})),
        ("whole numbers", json_body({**EMBEDDINGS, "datatype": "INT32"})),
        ("255", json_body({"name": "embeddings", "shape": [1, 2], "datatype": "UINT8", "data": [3, 300]})),
        (
            "true or false",
            json_body(EMBEDDINGS, {"name": "mask", "shape": [5], "datatype": "BOOL", "data": [0, 2, 0, 1, 1]}),
        ),
        ("equal length", json_body({**EMBEDDINGS, "data": [[1, 2], [3]]})),
        ("string", json_body({**EMBEDDINGS, "data": ["a"] * 80})),
        ("a list", json_body({**EMBEDDINGS, "data": 3})),
        ("neither", json_body({name: EMBEDDINGS[name] for name in ("name", "shape", "datatype")})),
        ("both", json_body({**EMBEDDINGS, "parameters": {"binary_data_size": 320}})),
        ("binary", json_body({**EMBEDDINGS, "parameters": {"binary": 320}})),
        ("twice", json_body(EMBEDDINGS, EMBEDDINGS)),
        ("twice", json_body(EMBEDDINGS, outputs=[{"name": "scores"}, {"name": "scores"}])),
        ("output", json_body(EMBEDDINGS, outputs=[{"name": "score"}])),
        ("binary_data", json_body(EMBEDDINGS, outputs=[{"name": "scores", "parameters": {"binary_data": 1}}])),
        ("binary_data", json_body(EMBEDDINGS, outputs=[{"name": "scores", "parameters": {"binary": True}}])),
        ("too large", json_body({"name": "embeddings", "shape": [1, 2], "datatype": "FP64", "data": [1e300, 1]})),
        (
            "/embeddings/0/1/0",
            b'{"inputs": [{"name": "embeddings", "shape": [1, 2, 2], "datatype": "FP32", '
            b'"data": [1, 2, NaN, Infinity]}]}',
        ),
        ("at most", json_body(*({**EMBEDDINGS, "name": f"parameter.x{i}"} for i in range(200)))),
    ],
)
def test_every_bad_request_is_400_and_says_what_is_wrong(client: TestClient, expected: str, content: bytes) -> None:
    assert expected in error(infer(client, content), 400)


def test_an_unread_coding_is_415_and_a_broken_one_400(client: TestClient) -> None:
    assert "gzip" in error(infer(client, json_body(EMBEDDINGS), content_encoding="br"), 415)
    assert "gzip" in error(infer(client, json_body(EMBEDDINGS), content_encoding="gzip"), 400)
    assert infer(client, json_body(EMBEDDINGS), content_encoding="identity").status_code == 200


def test_many_small_lists_are_413(client: TestClient) -> None:
    assert "limit" in error(infer(client, b"[" * 1_100_000), 413)


def test_each_request_moves_one_series_under_its_template(client: TestClient) -> None:
    before = counts.read(client)
    infer(client, json_body(EMBEDDINGS))
    infer(client, json_body(EMBEDDINGS), model="identity.t5/versions/1")
    infer(client, json_body(EMBEDDINGS), model="identity.relative-2")
    infer(client, b"", model="identity.rope")
    infer(client, b"", model="a" * 50)
    client.get(f"{ROPE}/versions/1/stats")
    client.get("/v2/a/b")
    client.delete("/v2")
    after = counts.read(client)
    template = "/v2/models/{model}/infer"
    assert counts.changes(before, after, "attention_requests_total") == {
        ("rope", template, "200"): 1,
        ("t5", template, "200"): 2,
        ("rope", template, "400"): 1,
        ("unknown", template, "404"): 1,
        ("", "/v2/models/{model}/stats", "200"): 1,
        ("", "other", "404"): 1,
        ("", "/v2", "405"): 1,
        ("", "/metrics", "200"): 1,
    }
    assert before.keys() == after.keys(), "every series exists from the start"
    assert counts.changes(before, after, "attention_rejected_total") == {
        ("malformed",): 1,
        ("not_found",): 2,
        ("method",): 1,
    }


def test_what_is_wrong_with_a_request_is_never_422_here() -> None:
    assert {400, 404, 405, 413, 415, 429, 500, 501, 503, 504} <= set(STATUSES)


def test_every_endpoint_is_documented_and_its_example_works(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert set(METHODS) <= set(paths)
    operation = paths["/v2/models/{model}/infer"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    model = operation["parameters"][0]["example"]
    assert client.post(f"/v2/models/{model}/infer", json=example).status_code == 200
