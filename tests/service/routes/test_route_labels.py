"""One encoding under several parameters in one request: `rope` beside `rope@long`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import safetensors.numpy
from PIL import Image
from starlette.testclient import TestClient

from service.wire import media
from tests.service import counts, samples

RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((12, 32)).astype(np.float32)
BIAS = RANDOM.standard_normal((32, 4)).astype(np.float32)
EVERYTHING = "heads=4&return=weights,scores,terms,output"


def post(client: TestClient, query: str, accept: str = media.JSON, **members: Any) -> Any:
    body = orjson.dumps({"embeddings": X, **members}, option=orjson.OPT_SERIALIZE_NUMPY)
    return client.post(f"/attention?{query}", content=body, headers={"content-type": media.JSON, "accept": accept})


def arrays(client: TestClient, query: str, **members: Any) -> dict[str, np.ndarray]:
    answer = post(client, query, media.NPZ, **members)
    assert answer.status_code == 200, answer.text
    return {name: array for name, array in np.load(io.BytesIO(answer.content)).items() if name != "metadata"}


def of(name: str, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key.removeprefix(name + "/"): array for key, array in found.items() if key.startswith(name + "/")}


@pytest.mark.parametrize(
    ("id", "first", "second"),
    [
        ("rope", "", "theta=500000"),
        ("rope-yarn", "factor=4", "factor=8"),
        ("rope", "scale=0.25&softcap=2", "layout=half"),
        ("t5", "", "max_distance=16"),
        ("alibi", "", "scale=1"),
        ("rope", "", ""),
    ],
)
def test_an_instance_is_the_encoding_asked_alone_with_its_parameters(
    client: TestClient, id: str, first: str, second: str
) -> None:
    def parameters(owner: str, given: str) -> str:
        return "".join(f"&{owner}.{one}" for one in given.split("&") if one)

    both = arrays(
        client,
        f"{EVERYTHING}&encoding={id}&compare={id}@b-2,none{parameters(id, first)}{parameters(id + '@b-2', second)}",
    )
    for name, given in ((id, first), (f"{id}@b-2", second)):
        alone = of(id, arrays(client, f"{EVERYTHING}&encoding={id}{parameters(id, given)}"))
        mine = of(name, both)
        assert mine.keys() == alone.keys()
        assert len(mine) >= 4
        for key, array in alone.items():
            np.testing.assert_array_equal(mine[key], array)
    if first != second:
        assert not np.array_equal(both[f"{id}/scores"], both[f"{id}@b-2/scores"])


def test_an_array_in_the_body_is_of_one_instance(client: TestClient) -> None:
    both = arrays(client, f"{EVERYTHING}&encoding=t5&compare=relative-2@mine", parameters={"t5@mine.bias": BIAS})
    own = arrays(client, f"{EVERYTHING}&encoding=t5", parameters={"t5.bias": BIAS})
    plain = arrays(client, f"{EVERYTHING}&encoding=t5")
    for key in ("weights", "scores", "output", "terms/bias"):
        np.testing.assert_array_equal(both[f"t5@mine/{key}"], own[f"t5/{key}"])
        np.testing.assert_array_equal(both[f"t5/{key}"], plain[f"t5/{key}"])
    named = post(client, "heads=4&encoding=relative-2@mine&compare=none", parameters={"relative-2@mine.bias": BIAS})
    assert named.json()["results"][0]["parameters"]["bias"] == {"shape": [32, 4], "source": "request"}


@pytest.mark.parametrize("kind", media.BINARY)
def test_binary_bodies_name_arrays_by_instances_too(client: TestClient, kind: str) -> None:
    members = {"embeddings": X, "t5@mine.bias": BIAS}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **members)
    content = file.getvalue() if kind == media.NPZ else safetensors.numpy.save(members)
    answer = client.post(
        "/attention?heads=4&compare=t5@mine", content=content, headers={"content-type": kind, "accept": kind}
    )
    assert answer.status_code == 200, answer.text
    if kind == media.NPZ:
        found = dict(np.load(io.BytesIO(answer.content)))
        about = json.loads(found.pop("metadata").tobytes())
    else:
        found = safetensors.numpy.load(answer.content)
        size = int.from_bytes(answer.content[:8], "little")
        about = json.loads(json.loads(answer.content[8 : 8 + size])["__metadata__"]["metadata"])
    assert {"rope/weights", "rope/scores", "t5@mine/weights", "t5@mine/scores"} == set(found)
    assert [(one["encoding"], one["label"], one["name"]) for one in about["results"]] == [
        ("rope", None, "rope"),
        ("t5", "mine", "t5@mine"),
    ]
    alone = arrays(client, "heads=4&encoding=t5", parameters={"t5.bias": BIAS})
    np.testing.assert_array_equal(found["t5@mine/weights"], alone["t5/weights"])


@pytest.mark.parametrize("form", ["lists", "base64"])
def test_json_says_id_label_and_name(client: TestClient, form: str) -> None:
    query = "heads=2&encoding=rope&compare=rope@long,rope-yarn@x8&rope@long.theta=500000&rope-yarn@x8.factor=8"
    results = post(client, f"{query}&arrays={form}").json()["results"]
    assert [(one["encoding"], one["label"], one["name"]) for one in results] == [
        ("rope", None, "rope"),
        ("rope", "long", "rope@long"),
        ("rope-yarn", "x8", "rope-yarn@x8"),
    ]
    assert [one["parameters"]["theta"] for one in results[:2]] == [10_000, 500_000]
    assert results[2]["parameters"]["factor"] == 8


def test_the_largest_keys_go_by_the_name_too(client: TestClient) -> None:
    found = arrays(client, "heads=2&compare=rope@long&rope@long.theta=500000&top_k=3&rows=-1&return=weights")
    whole = arrays(client, "heads=2&encoding=rope&rope.theta=500000&return=weights")["rope/weights"][:, -1:]
    np.testing.assert_allclose(found["rope@long/top_k/weights"], np.sort(whole)[..., ::-1][..., :3], rtol=1e-5)
    assert "rope/top_k/indices" in found


def test_a_label_may_be_escaped_in_the_query_string(client: TestClient) -> None:
    results = post(client, "compare=rope%40long&rope%40long.theta=5").json()["results"]
    assert results[1]["parameters"]["theta"] == 5


def test_a_picture_is_titled_by_the_names(client: TestClient) -> None:
    answer = post(client, "encoding=rope&compare=rope@long&rope@long.theta=500000", media.PNG)
    assert answer.status_code == 200
    assert Image.open(io.BytesIO(answer.content)).info["Title"] == "Attention weights: rope, rope@long"


def test_all_adds_what_is_not_there_without_a_label(client: TestClient) -> None:
    ids = {one["id"] for one in client.get("/encodings").json()["encodings"]}
    query = "encoding=rope@long&compare=t5@a,all&causal=true&heads=2&return=weights&rope@long.theta=7"
    results = post(client, query).json()["results"]
    assert [one["name"] for one in results[:2]] == ["rope@long", "t5@a"]
    assert {one["name"] for one in results[2:]} == ids
    assert next(one for one in results if one["name"] == "rope")["parameters"]["theta"] == 10_000


@pytest.mark.parametrize(
    ("query", "pointer", "words"),
    [
        ("encoding=rope&compare=rope", "query:compare", "compare=rope@other&rope@other.theta=..."),
        ("compare=t5,relative-2", "query:compare", "t5 is asked for twice"),
        ("compare=t5&compare=t5", "query:compare", "t5 is asked for twice"),
        ("compare=rope@a,rope@a", "query:compare", "rope@a is asked for twice"),
        (
            "encoding=rope@a.b",
            "query:encoding",
            "'a.b' in 'rope@a.b' is no label: it has 1 to 32 letters (A to Z, a to z)",
        ),
        ("compare=rope@", "query:compare", "is no label"),
        ("compare=rope@" + "x" * 33, "query:compare", "1 to 32"),
        ("compare=@a", "query:compare", "a label without an encoding"),
        ("compare=all@a", "query:compare", "all takes no label"),
        ("compare=rop@a", "query:compare", "unknown encoding 'rop'; did you mean rope"),
        ("compare=rope@long&rope@lnog.theta=5", "query:rope@lnog.theta", "Did you mean rope@long.theta or rope.theta?"),
        ("encoding=rope@a&compare=rope@b&rope.theta=5", "query:rope.theta", "it asks for rope@a, rope@b"),
        ("compare=rope-yarn@x8&rope@x8.factor=8", "query:rope@x8.factor", "did you mean rope-yarn@x8.factor?"),
        (
            "compare=rope-yarn@x8&rope@x8.theta=8",
            "query:rope@x8.theta",
            "Did you mean rope-yarn@x8.theta or rope.theta?",
        ),
        ("encoding=rope@long&theta=8", "query:theta", "did you mean rope@long.theta?"),
        ("compare=t5&t5@a.max_distance=5", "query:t5@a.max_distance", "add compare=t5@a or leave the parameter out"),
        ("compare=rope@long&rope@long.thta=5", "query:rope@long.thta", "did you mean rope@long.theta or"),
        ("compare=rope@long&rope@long.theta=-1", "query:rope@long.theta", "rope@long.theta is -1"),
        ("compare=rope@long&rope@l.g.theta=5", "query:rope@l.g.theta", "'l.g' in 'rope@l.g' is no label"),
        ("compare=t5@a&t5@a.max_distance=9&relative-2@a.max_distance=9", "query:relative-2@a.max_distance", "twice"),
        ("compare=t5@a&t5@a.bias=9", "query:t5@a.bias", '"parameters": {"t5@a.bias": ...}'),
        ("compare=" + ",".join(f"rope@{i}" for i in range(64)), "query:compare", "a request may ask for 64"),
    ],
)
def test_what_is_wrong_with_a_label_is_told(client: TestClient, query: str, pointer: str, words: str) -> None:
    answer = post(client, query)
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert problem["pointer"] == pointer
    assert words in problem["detail"]


def test_the_nearest_names_are_a_member_of_the_problem(client: TestClient) -> None:
    assert post(client, "compare=rope@long&rope@lnog.theta=5").json()["nearest"] == ["rope@long.theta", "rope.theta"]


def test_an_array_of_an_instance_that_was_not_asked_for_is_refused(client: TestClient) -> None:
    problem = post(client, "encoding=t5@mine&heads=4", parameters={"t5@yours.bias": BIAS}).json()
    assert problem["pointer"] == "/parameters/t5@yours.bias"
    assert problem["nearest"] == ["t5@mine.bias"]
    problem = post(client, "encoding=t5@mine&heads=4", parameters={"t5@mine.bias": BIAS[:, :3].copy()}).json()
    assert problem["detail"].startswith("t5@mine.bias must be [")


def test_metrics_know_encodings_without_labels(client: TestClient) -> None:
    before = counts.read(client)
    post(client, "encoding=transformer-xl@nobodys&compare=t5@another")
    post(client, "encoding=relative-1@no.label")
    moved = counts.changes(before, counts.read(client), "attention_requests_total")
    assert {key: count for key, count in moved.items() if "/attention" in key} == {
        ("transformer-xl", "/attention", "200"): 1,
        ("unknown", "/attention", "422"): 1,
    }
    assert "nobodys" not in client.get("/metrics").text


def test_labels_count_towards_the_size_of_an_answer(client: TestClient) -> None:
    """20,000 numbers are the limit of JSON here: 96 x 96 are 9,216."""
    content = samples.npy(np.ones((96, 4), np.float32))
    headers = {"content-type": media.NPY, "accept": media.JSON}
    query = "return=weights&compare=rope@a"
    assert client.post(f"/attention?{query}", content=content, headers=headers).status_code == 200
    answer = client.post(f"/attention?{query},rope@b", content=content, headers=headers)
    assert answer.status_code == 406
    assert "27,648" in answer.json()["detail"]


def test_the_readmes_example_is_true(client: TestClient) -> None:
    home = Path(__file__).parents[3]
    content = (home / "tests/data/sentence.npy").read_bytes()
    readme = (home / "README.md").read_text()
    query = "heads=8&encoding=rope&compare=rope@long&rope@long.theta=500000&return=weights"
    assert query in readme
    answer = client.post(
        f"/attention?{query}", content=content, headers={"content-type": media.NPY, "accept": media.NPZ}
    )
    found = np.load(io.BytesIO(answer.content))
    difference = np.abs(found["rope/weights"] - found["rope@long/weights"]).max()
    told = readme.partition(query)[2].split("```")[2]
    assert difference == pytest.approx(float(told), rel=1e-3)
