"""What a newcomer is told on the way to a first answer: each message leads on."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from starlette.testclient import TestClient

from service.routes import query
from service.wire import media
from service.wire.members import IN_QUERY
from tests.service import samples

ROWS = [[0.9, 0.1, -0.3, 0.4], [0.2, 0.8, 0.5, -0.1], [-0.4, 0.6, 0.7, 0.2]]


def refused(
    client: TestClient, asked: str = "", *, body: bytes | None = None, kind: str = media.JSON, **more: Any
) -> Any:
    content = orjson.dumps({"embeddings": ROWS, **more}) if body is None else body
    answer = client.post(f"/attention?{asked}", content=content, headers={"content-type": kind})
    assert answer.status_code in (400, 422), answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("theta=5", ["rope.theta"]),
        ("thetta=5", ["rope.theta"]),
        ("compare=rope-yarn&theta=5", ["rope.theta", "rope-yarn.theta"]),
        ("encoding=t5&max_distance=5", ["t5.max_distance"]),
        ("haeds=4", ["heads", "head"]),
    ],
)
def test_a_bare_parameter_is_taken_for_that_of_the_encodings_asked_for(
    client: TestClient, asked: str, nearest: list[str]
) -> None:
    problem = refused(client, asked)
    assert problem["nearest"][:1] == nearest[:1]
    assert set(problem["nearest"]) <= {*nearest, "key_heads"}
    assert f"did you mean {nearest[0]}" in problem["detail"]


def test_a_parameter_that_does_not_exist_is_not_helped_by_asking_for_its_encoding(client: TestClient) -> None:
    problem = refused(client, "alibi.theta=5")
    assert "compare=" not in problem["detail"]
    assert "parameter of alibi" in problem["detail"]
    assert problem["nearest"] == ["rope.theta"]


def test_a_parameter_that_exists_is_helped_by_asking_for_its_encoding(client: TestClient) -> None:
    assert "compare=t5" in refused(client, "t5.max_distance=5")["detail"]


def test_all_names_of_the_query_string_are_known_to_readers_of_bodies() -> None:
    assert set(query.NAMES) <= set(IN_QUERY)


@pytest.mark.parametrize(
    ("name", "value", "form"),
    [
        ("heads", 2, "/attention?heads=2"),
        ("compare", ["alibi", "t5"], "/attention?compare=alibi,t5"),
        ("causal", True, "/attention?causal=true"),
        ("encoding", "alibi", "/attention?encoding=alibi"),
        ("return", "weights,scores", "/attention?return=weights,scores"),
        ("dtype", None, "/attention?dtype=..."),
        ("rope.theta", 5, "/attention?rope.theta=5"),
    ],
)
def test_what_belongs_into_the_query_string_is_told_in_its_form(
    client: TestClient, name: str, value: Any, form: str
) -> None:
    problem = refused(client, body=orjson.dumps({"embeddings": ROWS, name: value}))
    assert form in problem["detail"]
    assert "query string" in problem["detail"]
    assert problem["pointer"] == f"/{name}"


def test_the_same_is_told_of_an_array_in_npz(client: TestClient) -> None:
    body = samples.npz(embeddings=np.ones((2, 2)), heads=np.array(2))
    assert "/attention?heads=..." in refused(client, body=body, kind=media.NPZ)["detail"]


def test_a_number_in_quotes_is_shown_without(client: TestClient) -> None:
    problem = refused(client, parameters={"rope.theta": "5"})
    assert '"rope.theta": 5' in problem["detail"]
    assert problem["pointer"] == "/parameters/rope.theta"
    assert "/attention?rope.layout=half" in refused(client, parameters={"rope.layout": "half"})["detail"]


def header(text: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(16)


@pytest.mark.parametrize(
    "text",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': tuple((2,2)), }",
        b"hello",
        b"\xff\xfe{'descr': '<f4'",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,2",
    ],
)
def test_an_odd_npy_header_is_told_without_the_insides_of_python(client: TestClient, text: bytes) -> None:
    detail = refused(client, body=header(text), kind=media.NPY)["detail"]
    assert "'fortran_order': False" in detail
    for inside in ("object at", "malformed node", "EOF", "codec"):
        assert inside not in detail


def test_a_byte_of_latin_1_is_named_by_its_place(client: TestClient) -> None:
    body = '{"embeddings": [[1, 2]], "tokens": ["café"]}'.encode("latin-1")
    detail = refused(client, body=body)["detail"]
    assert f"0xe9 at offset {body.index(0xE9)}" in detail
    assert "UTF-8" in detail
    assert "surrogate" not in detail
    answer = client.post("/encodings/rope/resolve", content=body, headers={"content-type": media.JSON})
    assert "0xe9 at offset" in answer.json()["detail"]


def test_one_is_not_said_in_the_plural(client: TestClient) -> None:
    assert "has 1 number, but" in refused(client, body=b'{"embeddings": [[1, 2], [3]]}')["detail"]
    assert "2 names came under tokens for 1 token;" in refused(client, embeddings=[[1, 2]], tokens=["a", "b"])["detail"]
    assert "1 position came for 3 tokens" in refused(client, positions=[1])["detail"]
    cross = orjson.dumps({"queries": ROWS, "keys": ROWS, "query_positions": [1]})
    assert "1 query_position came for 3 queries" in refused(client, body=cross)["detail"]


def test_a_range_is_written_as_short_as_it_can_be(client: TestClient) -> None:
    assert "rope.theta is 1e+20; allowed: 1 to 1e+15" in refused(client, "rope.theta=1e20")["detail"]


def test_a_name_too_long_to_read_is_cut_wherever_it_is_shown(client: TestClient) -> None:
    for problem in (
        refused(client, body=orjson.dumps({"embeddings": ROWS, "x" * 5000: 1})),
        refused(client, "alibi." + "x" * 5000 + "=1"),
        refused(client, parameters={"y" * 5000: [1]}),
    ):
        assert len(problem["pointer"]) < 200
        assert "x" * 200 not in json.dumps(problem)
        assert "y" * 200 not in json.dumps(problem)


@pytest.mark.parametrize(
    "body",
    [
        b'{"embeddings": [[1, 2]], "embeddings": [[3, 4]]}',
        b'{"embeddings": [[1, 2]], "parameters": {"rope.theta": 5, "rope.theta": 6}}',
        b'{"embeddings": [[1, 2]], "mask": [true], "mask": [false]}',
    ],
)
def test_a_member_that_comes_twice_is_named(client: TestClient, body: bytes) -> None:
    assert "twice" in refused(client, body=body)["detail"]


def test_a_token_that_is_named_like_a_member_is_no_second_member(client: TestClient) -> None:
    body = orjson.dumps({"tokens": ["mask", "tokens"], "mask": [True, True], "embeddings": [[1, 2], [3, 4]]})
    assert client.post("/attention", content=body, headers={"content-type": media.JSON}).status_code == 200


def test_a_deadline_that_was_past_at_once_is_told_as_such(client: TestClient) -> None:
    tensor = {"name": "embeddings", "shape": [1, 3, 4], "datatype": "FP32", "data": [ROWS]}
    answer = client.post("/v2/models/identity.rope/infer", json={"inputs": [tensor], "parameters": {"timeout": 1}})
    assert answer.status_code == 504
    assert "already passed" in answer.json()["error"]
    assert "-" not in answer.json()["error"]


def paths(client: TestClient) -> Any:
    return client.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize("path", ["/attention", "/encodings/rope/resolve"])
def test_what_may_fail_is_documented(client: TestClient, path: str) -> None:
    responses = paths(client)[path]["post"]["responses"]
    assert {"400", "408", "413", "415", "422", "500"} <= set(responses)
    for status, response in responses.items():
        if status.isdigit() and status >= "400":
            example = response["content"][media.PROBLEM]["example"]
            assert example["status"] == int(status)
            assert len(example["detail"]) > len(example["title"])


def test_what_may_fail_of_the_open_inference_protocol_is_documented(client: TestClient) -> None:
    assert {"400", "404", "408", "413", "415", "429", "500", "503", "504"} <= set(
        paths(client)["/v2/models/{model}/infer"]["post"]["responses"]
    )
    assert {"400", "408", "500"} <= set(paths(client)["/v2/repository/index"]["post"]["responses"])


def test_documented_refusals_are_those_of_the_service(client: TestClient) -> None:
    responses = paths(client)["/attention"]["post"]["responses"]

    def example(status: int) -> Any:
        return responses[str(status)]["content"][media.PROBLEM]["example"]["detail"]

    assert refused(client, "retrun=weights")["detail"] == example(422)
    assert refused(client, body=b'{"embeddings": [[1, 0], [1, 1]')["detail"] == example(400)
    unread = client.post("/attention", content=b"x", headers={"content-type": "application/x-www-form-urlencoded"})
    assert unread.json()["detail"] == example(415)
    unwritten = client.post("/attention", json={"embeddings": ROWS}, headers={"accept": "text/csv"})
    assert unwritten.json()["detail"] == example(406)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/docs",
        "/docs/example.npy",
        "/openapi.json",
        "/metrics",
        "/encodings",
        "/encodings/rope",
        "/encodings/rope/positions",
        "/models",
        "/health/live",
        "/health/ready",
        "/v2",
        "/encodings/rop",
        "/nowhere",
    ],
)
def test_head_answers_as_get_without_a_body(client: TestClient, path: str) -> None:
    get, head = client.get(path), client.head(path)
    assert head.status_code == get.status_code
    assert head.headers["content-type"] == get.headers["content-type"]
    assert head.content == b""
    if "metrics" not in path and "positions" not in path and get.status_code == 200:
        assert head.headers["content-length"] == get.headers["content-length"]


def test_head_of_what_is_only_posted_is_not_allowed(client: TestClient) -> None:
    answer = client.head("/attention")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert client.delete("/models").headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("mask", "read"),
    [
        (np.ones((3, 3)), "[batch, keys]"),
        (np.ones((1, 3, 3)), "[batch, queries, keys]"),
        (np.ones(3), "[keys]"),
    ],
)
@pytest.mark.parametrize("accept", [media.JSON, media.SAFETENSORS])
def test_the_answer_says_how_a_mask_was_read(client: TestClient, mask: np.ndarray, read: str, accept: str) -> None:
    document = {"embeddings": [ROWS] * 3, "mask": mask.tolist()}
    answer = client.post("/attention", json=document, headers={"accept": accept})
    assert read in (answer.json()["shape"]["mask"] if accept == media.JSON else answer.content.decode("latin-1"))
    assert "mask" not in client.post("/attention", json={"embeddings": ROWS}).json()["shape"]
