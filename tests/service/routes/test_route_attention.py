"""`POST /attention` as its clients see it."""

from __future__ import annotations

import base64
import io
import json
from typing import Any
from urllib.parse import urlencode

import numpy as np
import orjson
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from service.routes.query import NAMES as QUERY_NAMES
from service.routes.samples import requests
from service.wire import media
from service.wire.members import NAMES
from tests.service import counts, samples

HEAD = ["encoding", "label", "name", "parameters", "conventions"]


def written(array: np.ndarray) -> dict[str, Any]:
    return {"base64": base64.b64encode(array.data).decode(), "dtype": array.dtype.name, "shape": list(array.shape)}


def unpacked(one: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(one["base64"]), one["dtype"]).reshape(one["shape"])


ROWS = [[0.9, 0.1, -0.3, 0.4], [0.2, 0.8, 0.5, -0.1], [-0.4, 0.6, 0.7, 0.2]]


def ask(client: TestClient, document: Any = None, *, query: str = "", **headers: str) -> Any:
    body = orjson.dumps({"embeddings": ROWS} if document is None else document)
    return client.post(f"/attention?{query}", content=body, headers={"content-type": media.JSON, **headers})


def send(client: TestClient, content: bytes, content_type: str, query: str = "", accept: str = media.JSON) -> Any:
    return client.post(f"/attention?{query}", content=content, headers={"content-type": content_type, "accept": accept})


def test_the_default_is_identity_under_rope_with_one_head(client: TestClient) -> None:
    answer = ask(client).json()
    assert answer["model"] == "identity"
    assert answer["shape"] == {"heads": 1, "queries": 3, "keys": 3, "head_dim": 4}
    (result,) = answer["results"]
    assert result["encoding"] == "rope"
    assert result["parameters"]["theta"] == 10000.0
    np.testing.assert_allclose(np.sum(result["weights"], axis=-1), 1, atol=1e-6)
    assert "terms" not in result
    assert "output" not in result


def test_scores_of_no_encoding_are_the_scaled_products_of_the_embeddings(client: TestClient) -> None:
    scores = ask(client, query="encoding=none").json()["results"][0]["scores"]
    x = np.array(ROWS)
    np.testing.assert_allclose(scores[0], x @ x.T / 2, atol=1e-6)


def test_every_format_in_and_out_gives_the_same_numbers(client: TestClient) -> None:
    x = np.array(ROWS, np.float32)
    query = "heads=2&return=weights,scores,terms,output&compare=t5,alibi"
    expected = send(client, samples.npy(x), media.NPY, query).json()
    bodies = {
        media.NPY: samples.npy(x),
        media.NPZ: samples.npz(embeddings=x),
        media.SAFETENSORS: samples.tensors(embeddings=x),
        media.JSON: orjson.dumps({"embeddings": x}, option=orjson.OPT_SERIALIZE_NUMPY),
    }
    for kind, content in bodies.items():
        for accept in media.BINARY:
            answer = send(client, content, kind, query, accept)
            assert answer.headers["content-type"] == accept
            arrays = (
                np.load(io.BytesIO(answer.content)) if accept == media.NPZ else safetensors.numpy.load(answer.content)
            )
            for one in expected["results"]:
                name = one["encoding"]
                for part in ("weights", "scores", "output"):
                    np.testing.assert_array_equal(arrays[f"{name}/{part}"], np.array(one[part], np.float32))
                for term, values in one["terms"].items():
                    np.testing.assert_array_equal(arrays[f"{name}/terms/{term}"], np.array(values, np.float32))


def test_a_batch_keeps_its_axis(client: TestClient) -> None:
    answer = ask(client, {"embeddings": [ROWS, ROWS[::-1]]}).json()
    assert answer["shape"]["batch"] == 2
    alone = ask(client).json()
    np.testing.assert_allclose(answer["results"][0]["weights"][0], alone["results"][0]["weights"], atol=1e-6)


def test_compare_gives_the_reference_first(client: TestClient) -> None:
    answer = ask(client, query="encoding=alibi&compare=none,rope&compare=t5").json()
    assert [one["encoding"] for one in answer["results"]] == ["alibi", "none", "rope", "t5"]


def test_parameters_come_from_the_query_and_from_the_body(client: TestClient) -> None:
    near = ask(client, query="rope.theta=500000&rope.layout=half").json()["results"][0]
    assert near["parameters"]["theta"] == 500000.0
    assert near["parameters"]["layout"] == "half"
    bias = np.zeros((32, 1)).tolist()
    own = ask(client, {"embeddings": ROWS, "parameters": {"t5.bias": bias}}, query="encoding=t5").json()["results"][0]
    np.testing.assert_allclose(own["scores"][0], np.array(ROWS) @ np.array(ROWS).T, atol=1e-5)


def test_a_mask_hides_keys_and_a_row_that_sees_nothing_weighs_nothing(client: TestClient) -> None:
    mask = [[True, False, False], [False, False, False], [1, 1, 1]]
    weights = np.array(ask(client, {"embeddings": ROWS, "mask": mask}).json()["results"][0]["weights"][0])
    np.testing.assert_array_equal(weights[0], [1, 0, 0])
    np.testing.assert_array_equal(weights[1], [0, 0, 0])
    assert (weights[2] > 0).all()


def test_tokens_come_back_as_they_were_sent(client: TestClient) -> None:
    assert ask(client, {"embeddings": ROWS, "tokens": ["a", "é", "\u2581"]}).json()["tokens"] == ["a", "é", "\u2581"]


def test_float16_answers_are_half_as_large(client: TestClient) -> None:
    content = samples.npy(np.ones((64, 8), np.float32))
    full = send(client, content, media.NPY, accept=media.SAFETENSORS)
    half = send(client, content, media.NPY, "dtype=float16", accept=media.SAFETENSORS)
    assert safetensors.numpy.load(half.content)["rope/weights"].dtype == np.float16
    assert len(half.content) < 0.6 * len(full.content)


def test_base64_in_and_out_gives_the_same_numbers(client: TestClient) -> None:
    query = "heads=2&return=weights,scores,terms,output&compare=t5&arrays="
    (expected, answer) = (ask(client, query=query + form) for form in ("lists", "base64"))
    coded = {"embeddings": written(np.array(ROWS, np.float32))}
    assert ask(client, coded, query=query + "lists").json()["results"] == expected.json()["results"]
    assert answer.headers["content-type"] == media.JSON
    for one, other in zip(answer.json()["results"], expected.json()["results"], strict=True):
        assert list(one) == list(other)
        assert list(one["terms"]) == list(other["terms"])
        pairs = [(one[name], other[name]) for name in ("weights", "scores", "output")]
        for mine, theirs in [*pairs, *((one["terms"][name], other["terms"][name]) for name in one["terms"])]:
            assert mine["dtype"] == "float32"
            np.testing.assert_array_equal(unpacked(mine), np.array(theirs, np.float32))


def test_base64_answers_may_be_float16_and_larger_than_lists(client: TestClient) -> None:
    content = samples.npy(np.eye(200, dtype=np.float32))
    assert send(client, content, media.NPY, "heads=2").status_code == 406
    answer = send(client, content, media.NPY, "heads=2&arrays=base64&dtype=float16&encoding=none")
    assert answer.status_code == 200, answer.text
    weights = answer.json()["results"][0]["weights"]
    assert (weights["dtype"], weights["shape"]) == ("float16", [2, 200, 200])
    assert len(answer.content) < 2 * 2 * 200 * 200 * 2 * 1.4
    np.testing.assert_allclose(unpacked(weights).sum(-1), 1, atol=0.02)


def test_what_is_not_finite_is_so_in_base64_too(client: TestClient) -> None:
    result = ask(client, {"embeddings": [[1e30] * 4] * 2}, query="encoding=none&return=scores&arrays=base64").json()
    assert result["results"][0]["nonfinite_cells"] == 4
    assert np.isinf(unpacked(result["results"][0]["scores"])).all()


@pytest.mark.parametrize(
    ("query", "accept", "pointer"),
    [
        ("arrays=base64", media.NPZ, "query:arrays"),
        ("arrays=base64", media.PNG, "query:arrays"),
        ("arrays=hex", media.JSON, "query:arrays"),
        ("dtype=float16", media.JSON, "query:dtype"),
        ("dtype=float16&arrays=lists", media.JSON, "query:dtype"),
    ],
)
def test_forms_that_do_not_go_together_are_refused(client: TestClient, query: str, accept: str, pointer: str) -> None:
    answer = ask(client, query=query, accept=accept)
    assert (answer.status_code, answer.json()["pointer"]) == (422, pointer)


# A part of the input


def test_rows_and_heads_are_cut_from_the_whole_and_the_shape_says_which(client: TestClient) -> None:
    query = "heads=2&return=weights,scores,terms,output&compare=t5&causal=true"
    whole, part = ask(client, query=query).json(), ask(client, query=query + "&rows=-1,0&head=1").json()
    assert part["shape"] == {"heads": 1, "queries": 2, "keys": 3, "head_dim": 2, "rows": [2, 0], "head": [1]}
    for one, other in zip(part["results"], whole["results"], strict=True):
        assert list(one) == list(other)
        for name in ("weights", "scores"):
            np.testing.assert_allclose(one[name], np.array(other[name])[[1]][:, [2, 0]], atol=1e-6)
        for term, values in one["terms"].items():
            np.testing.assert_allclose(values, np.array(other["terms"][term])[[1]][:, [2, 0]], atol=1e-6)
        np.testing.assert_allclose(one["output"], np.array(other["output"])[[2, 0]][:, [1]], atol=1e-6)


def test_everything_in_its_order_is_not_listed(client: TestClient) -> None:
    shape = ask(client, query="rows=:&head=0").json()["shape"]
    assert shape == {"heads": 1, "queries": 3, "keys": 3, "head_dim": 4}


def test_the_largest_keys_are_the_same_in_every_format(client: TestClient) -> None:
    query = "heads=2&return=scores,terms,output&compare=t5&rows=1:&top_k=2"
    document = {"embeddings": ROWS, "mask": [[1, 1, 1], [0, 1, 0], [1, 1, 1]]}
    expected = ask(client, document, query=query).json()
    sizes = {"heads": 2, "queries": 2, "keys": 3, "head_dim": 2}
    assert expected["shape"] == sizes | {"rows": [1, 2], "top_k": 2, "mask": "[queries, keys]"}
    coded = ask(client, document, query=query + "&arrays=base64").json()
    whole = ask(client, document, query=query.replace("scores", "weights,scores").replace("&top_k=2", "")).json()
    npz = np.load(io.BytesIO(ask(client, document, query=query, accept=media.NPZ).content))
    tensors = safetensors.numpy.load(ask(client, document, query=query, accept=media.SAFETENSORS).content)
    assert set(npz) - {"metadata"} == set(tensors)
    assert json.loads(bytes(npz["metadata"]))["shape"] == expected["shape"]
    for one, packed, other in zip(expected["results"], coded["results"], whole["results"], strict=True):
        assert list(one) == [*HEAD, "top_k", "output", "nonfinite_cells"]
        top, weights = one["top_k"], np.array(other["weights"], np.float32)
        assert list(top) == list(packed["top_k"]) == ["indices", "weights", "scores", "terms"]
        indices = np.array(top["indices"])
        assert (indices[:, 0] == [1, -1]).all()
        np.testing.assert_array_equal(indices[:, 1], np.argsort(-weights[:, 1], axis=-1, kind="stable")[:, :2])
        np.testing.assert_array_equal(np.array(top["weights"], np.float32)[:, 0], [[1, 0]] * 2)
        home = f"{one['encoding']}/top_k"
        pairs = {name: (top[name], packed["top_k"][name]) for name in ("indices", "weights", "scores")}
        pairs |= {f"terms/{term}": (values, packed["top_k"]["terms"][term]) for term, values in top["terms"].items()}
        for name, (values, base) in pairs.items():
            array = npz[f"{home}/{name}"]
            assert array.dtype == (np.int32 if name == "indices" else np.float32)
            for found in (array, tensors[f"{home}/{name}"], unpacked(base)):
                np.testing.assert_array_equal(found, np.array(values, found.dtype))
                assert found.dtype == array.dtype


def test_half_precision_leaves_indices_as_they_are(client: TestClient) -> None:
    answer = ask(client, query="top_k=1&dtype=float16", accept=media.NPZ)
    arrays = np.load(io.BytesIO(answer.content))
    assert (arrays["rope/top_k/indices"].dtype, arrays["rope/top_k/weights"].dtype) == (np.int32, np.float16)


def test_a_batch_and_embeddings_of_any_format_have_rows_and_largest_keys(client: TestClient) -> None:
    batch = np.stack([np.array(ROWS, np.float32), np.array(ROWS[::-1], np.float32)])
    for kind, content in (
        (media.NPY, samples.npy(batch)),
        (media.NPZ, samples.npz(embeddings=batch)),
        (media.SAFETENSORS, samples.tensors(embeddings=batch)),
    ):
        answer = send(client, content, kind, "rows=-1&top_k=2&return=weights").json()
        assert answer["shape"]["batch"] == 2
        top = answer["results"][0]["top_k"]
        assert np.shape(top["indices"]) == np.shape(top["weights"]) == (2, 1, 1, 2)


def test_a_part_of_a_long_input_fits_into_json(client: TestClient) -> None:
    content = samples.npy(np.ones((300, 4), np.float32))
    assert send(client, content, media.NPY).status_code == 406
    for query in ("rows=-20:", "top_k=20", "rows=0:150&top_k=40"):
        answer = send(client, content, media.NPY, query)
        assert answer.status_code == 200, answer.text
    assert send(client, content, media.NPY, "rows=0:50").status_code == 406


def test_rows_and_largest_keys_can_be_drawn(client: TestClient) -> None:
    for query in ("rows=-1", "top_k=1", "rows=1:&head=1&heads=2&top_k=2&return=scores"):
        answer = ask(client, {"embeddings": ROWS, "tokens": ["a", "b", "c"]}, query=query, accept=media.PNG)
        assert answer.status_code == 200, answer.text
        assert answer.content.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("query", "pointer", "words"),
    [
        ("rows=3", "query:rows", "not there: there are 3 queries, 0 to 2 (or -3 to -1)"),
        ("rows=a", "query:rows", "neither an index nor a slice"),
        ("rows=", "query:rows", "empty"),
        ("head=1", "query:head", "not there: there is 1 head, 0 (or -1)"),
        ("top_k=4", "query:top_k", "may be 1 to 3"),
        ("top_k=0", "query:top_k", "from 1 on"),
        ("top=1", "query:top", "did you mean top_k"),
    ],
)
def test_parts_that_are_not_there_are_refused(client: TestClient, query: str, pointer: str, words: str) -> None:
    for accept in (media.JSON, media.NPZ):
        answer = ask(client, query=query, accept=accept)
        assert (answer.status_code, answer.json()["pointer"]) == (422, pointer)
        assert words in answer.json()["detail"]


@pytest.mark.parametrize("name", requests())
def test_the_examples_of_the_documentation_work(client: TestClient, name: str) -> None:
    assert ask(client, requests()[name]["value"]).status_code == 200


def test_each_answer_says_where_its_time_went(client: TestClient) -> None:
    answer = ask(client)
    timing = dict(part.strip().split(";dur=") for part in answer.headers["server-timing"].split(","))
    assert list(timing) == ["decode", "queue", "batch_assembly", "compute", "postprocess", "serialize", "total"]
    stages = sum(float(value) for name, value in timing.items() if name != "total")
    assert 0 < stages <= float(timing["total"]) + 0.01
    assert answer.json()["timings"]["batch_jobs"] == 1


NOT_FINITE = b'{"embeddings": [[1.0, NaN]]}'
LONG = b'{"embeddings": [' + b"[1]," * 131_072 + b"[1]]}"
BAD: dict[str, tuple[bytes, str, str, int, str | None]] = {
    "ragged rows": (b'{"embeddings": [[1, 2], [3]]}', media.JSON, "", 422, "/embeddings/1"),
    "NaN": (NOT_FINITE, media.JSON, "", 422, "/embeddings/0/1"),
    "NaN in a string": (b'{"embeddings": [["NaN"]]}', media.JSON, "", 422, "/embeddings/0/0"),
    "null": (b'{"embeddings": [[null]]}', media.JSON, "", 422, "/embeddings/0/0"),
    "empty input": (b'{"embeddings": []}', media.JSON, "", 422, "/embeddings"),
    "no body": (b"", media.JSON, "", 400, None),
    "1-D": (b'{"embeddings": [1, 2]}', media.JSON, "", 422, "/embeddings"),
    "4-D": (b'{"embeddings": [[[[1]]]]}', media.JSON, "", 422, "/embeddings"),
    "strings": (samples.npy(np.array([["a"]])), media.NPY, "", 422, "/embeddings"),
    "complex": (samples.npy(np.ones((2, 2), complex)), media.NPY, "", 422, "/embeddings"),
    "too long": (LONG, media.JSON, "", 413, "/embeddings"),
    "unknown encoding": (b'{"embeddings": [[1, 2]]}', media.JSON, "encoding=rop", 422, "query:encoding"),
    "unknown comparison": (b'{"embeddings": [[1, 2]]}', media.JSON, "compare=rop", 422, "query:compare"),
    "unknown model": (b'{"embeddings": [[1, 2]]}', media.JSON, "model=tyny", 422, "query:model"),
    "unknown parameter": (b'{"embeddings": [[1, 2]]}', media.JSON, "rope.thta=5", 422, "query:rope.thta"),
    "unknown query name": (b'{"embeddings": [[1, 2]]}', media.JSON, "encodng=rope", 422, "query:encodng"),
    "parameter out of range": (b'{"embeddings": [[1, 2]]}', media.JSON, "rope.theta=-1", 422, "query:rope.theta"),
    "heads that do not divide": (b'{"embeddings": [[1, 2]]}', media.JSON, "heads=3", 422, "query:heads"),
    "truncated JSON": (b'{"embeddings": [[1, 2', media.JSON, "", 400, None),
    "truncated npy": (samples.npy(np.ones((4, 4)))[:-3], media.NPY, "", 400, "/embeddings"),
    "too large": (samples.npy(np.ones((1024, 256))), media.NPY, "", 413, None),
    "not JSON": (b"hello", media.JSON, "", 400, None),
    "pickled npy": (samples.npy(np.array([[None]]), allow_pickle=True), media.NPY, "", 400, "/embeddings"),
    "JSON sent as npy": (b'{"embeddings": [[1]]}', media.NPY, "", 400, "/embeddings"),
    "npy sent as JSON": (samples.npy(np.ones((2, 2))), media.JSON, "", 400, None),
    "no content type": (b'{"embeddings": [[1]]}', "", "", 415, "header:Content-Type"),
    "octets": (b'{"embeddings": [[1]]}', "application/octet-stream", "", 415, "header:Content-Type"),
    "a form": (b"embeddings=1", "application/x-www-form-urlencoded", "", 415, "header:Content-Type"),
    "float16 in JSON": (b'{"embeddings": [[1, 2]]}', media.JSON, "dtype=float16", 422, "query:dtype"),
    "too many numbers for JSON": (samples.npy(np.ones((128, 4))), media.NPY, "", 406, "header:Accept"),
    "zoom without a picture": (b'{"embeddings": [[1, 2]]}', media.JSON, "zoom=2", 422, "query:zoom"),
    "parameter of an npz": (
        samples.npz(**{"embeddings": np.ones((2, 2)), "alibi.slopes": np.ones(3)}),
        media.NPZ,
        "encoding=alibi&heads=1",
        422,
        "/alibi.slopes",
    ),
    "unknown parameter of an npz": (
        samples.npz(**{"embeddings": np.ones((2, 2)), "rope.frob": np.ones(1)}),
        media.NPZ,
        "",
        422,
        "/rope.frob",
    ),
    "unknown parameter of safetensors": (
        samples.tensors(**{"embeddings": np.ones((2, 2)), "rope.frob": np.ones(1)}),
        media.SAFETENSORS,
        "",
        422,
        "/rope.frob",
    ),
    "unknown parameter in JSON": (
        b'{"embeddings": [[1, 2]], "parameters": {"rope.frob": [1]}}',
        media.JSON,
        "",
        422,
        "/parameters/rope.frob",
    ),
    "text without a tokenizer": (b'{"text": "hello"}', media.JSON, "model=identity", 422, "/text"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused_in_words_and_the_service_goes_on(client: TestClient, name: str) -> None:
    content, content_type, query, status, pointer = BAD[name]
    before = counts.read(client)
    answer = send(client, content, content_type, query)
    problem = answer.json()
    assert answer.status_code == status, problem
    assert answer.headers["content-type"] == media.PROBLEM
    assert problem["status"] == status
    assert problem.get("pointer") == pointer
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert len(problem["detail"]) > 20
    moved = counts.changes(before, counts.read(client), "attention_requests_total")
    del moved["", "/metrics", "200"]
    assert sum(moved.values()) == 1, moved
    ((_, endpoint, counted),) = moved
    assert (endpoint, counted) == ("/attention", str(status))
    assert ask(client).status_code == 200


def test_the_numbers_of_a_refusal_can_be_read_by_a_program(client: TestClient) -> None:
    problem = send(client, samples.npy(np.ones((1024, 256))), media.NPY).json()
    assert problem["limit"] == 1 << 20
    problem = ask(client, query="encoding=rop").json()
    assert "rope" in problem["nearest"]


def test_an_answer_too_large_for_json_is_refused_before_it_is_computed(client: TestClient) -> None:
    before = counts.read(client)
    problem = send(client, samples.npy(np.ones((128, 4))), media.NPY).json()
    assert problem["allowed"] == list(media.BINARY)
    assert not counts.changes(before, counts.read(client), "attention_batches_total")
    assert send(client, samples.npy(np.ones((128, 4))), media.NPY, accept=media.NPZ).status_code == 200


def test_what_only_the_model_knows_still_counts_against_the_json_limit(client: TestClient) -> None:
    """Four terms of 60 x 60 and more: the lower bound from the request alone is within the limit, the answer is not."""
    content = samples.npy(np.ones((60, 4)))
    answer = send(client, content, media.NPY, "encoding=transformer-xl&return=weights,scores,terms")
    assert answer.status_code == 406


def test_an_accept_that_cannot_be_met_is_refused(client: TestClient) -> None:
    assert ask(client, accept="image/gif").status_code == 406


def test_a_packed_request_is_refused(client: TestClient) -> None:
    answer = ask(client, **{"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert answer.json()["pointer"] == "header:Content-Encoding"


def test_a_chunked_body_is_bounded_as_it_arrives(client: TestClient) -> None:
    def chunks() -> Any:
        yield b'{"embeddings": ['
        for _ in range(200):
            yield b" " * 10_000

    answer = client.post("/attention", content=chunks(), headers={"content-type": media.JSON})
    assert answer.status_code == 413
    assert answer.json()["limit"] == 1 << 20


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
def test_the_wrong_verb_is_told_the_right_one(client: TestClient, method: str) -> None:
    answer = client.request(method, "/attention")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert method == "HEAD" or answer.json()["allowed"] == ["POST"]


def test_a_sane_request_id_is_kept_and_another_is_replaced(client: TestClient) -> None:
    assert ask(client, **{"x-request-id": "run-7/a:1"}).headers["x-request-id"] == "run-7/a:1"
    for insane in ("", "a b", "x" * 200, "<script>"):
        assert ask(client, **{"x-request-id": insane}).headers["x-request-id"] not in ("", insane)
    assert ask(client).headers["x-request-id"] != ask(client).headers["x-request-id"]


def test_scores_that_overflow_are_null_in_json_and_counted(client: TestClient) -> None:
    before = counts.read(client)
    result = ask(client, {"embeddings": [[1e30, 1e30], [-1e30, 1e30]]}, query="encoding=none").json()["results"][0]
    assert result["nonfinite_cells"] > 0
    assert None in result["scores"][0][0]
    assert counts.changes(before, counts.read(client), "attention_nonfinite_outputs_total") == {("none",): 1}


numbers = st.floats() | st.integers(-3, 3) | st.booleans() | st.none() | st.text(max_size=3)
nested = st.recursive(numbers, lambda inner: st.lists(inner, max_size=3), max_leaves=12)
members = st.dictionaries(st.sampled_from([*NAMES, "t5.bias"]), nested, max_size=4)
values = st.sampled_from(["rope", "all", "t5,alibi", "2", "-1", "true", "weights", "terms", "nan", "1e999", "", "half"])
queries = st.lists(st.tuples(st.sampled_from([*QUERY_NAMES, "rope.theta", "t5.max_distance"]), values), max_size=3)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=members, query=queries, sound=st.booleans())
def test_whatever_comes_is_answered_or_refused_in_words(
    client: TestClient, document: dict[str, Any], query: list[tuple[str, str]], sound: bool
) -> None:
    if sound:
        document = {**document, "embeddings": ROWS}
    answer = client.post(
        f"/attention?{urlencode(query)}", content=json.dumps(document), headers={"content-type": media.JSON}
    )
    assert answer.status_code in (200, 400, 406, 413, 422), answer.text
    assert answer.status_code == 200 or len(answer.json()["detail"]) > 10
