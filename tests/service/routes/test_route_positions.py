"""`GET /encodings/{id}/positions` and pictures of `POST /attention`, over HTTP."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from httpx2 import Response
from PIL import Image
from safetensors.numpy import load
from starlette.testclient import TestClient

from service.pictures.colours import HATCH, MASKED, NAN, SIGNED, VIRIDIS
from service.views.records import PICTURED
from service.wire import media
from tests.service import counts

SMALL = {"queries": "6", "keys": "6", "width": "16", "heads": "2"}


def get(client: TestClient, id: str, accept: str = media.JSON, **query: str) -> Response:
    return client.get(f"/encodings/{id}/positions", params=query, headers={"accept": accept})


def image(answer: Response) -> Image.Image:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == media.PNG
    return Image.open(io.BytesIO(answer.content))


def has(picture: Image.Image, colour: tuple[int, ...]) -> bool:
    """Whether a cell has it: letters have greys too, but fewer pixels of each."""
    return int((np.asarray(picture) == colour).all(-1).sum()) > (1000 if colour in (MASKED, HATCH) else 0)


def test_every_encoding_answers_in_json_with_what_is_what(client: TestClient) -> None:
    for line in client.get("/encodings").json()["encodings"]:
        answer = get(client, line["id"], **SMALL)
        if answer.status_code == 406:  # tables of learned vectors, over this service's small limit
            answer = get(client, line["id"], view="bias,similarity", **SMALL)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert document["encoding"] == line["id"]
        assert document["shape"] == {"heads": 2, "queries": 6, "keys": 6, "head_dim": 8, "width": 16}
        for array in (*document["views"].values(), *document["tables"].values()):
            assert array["description"]
            assert np.array(array["values"]).shape == tuple(array["shape"])
            assert len(array["axes"]) == len(array["shape"])


@pytest.mark.parametrize("id", ["rope", "sinusoidal", "t5", "rope-proportional", "shaw"])
def test_the_formats_agree(client: TestClient, id: str) -> None:
    query = {**SMALL, "view": "bias,similarity,weights,tables", "causal": "true"}
    document = get(client, id, **query).json()
    named = {**document["views"], **{f"tables/{name}": table for name, table in document["tables"].items()}}
    packed = get(client, id, media.NPZ, **query)
    assert packed.headers["content-type"] == media.NPZ
    arrays = dict(np.load(io.BytesIO(packed.content)))
    metadata = json.loads(bytes(arrays.pop("metadata")))
    tensors = load(get(client, id, media.SAFETENSORS, **query).content)
    assert set(arrays) == set(tensors) == set(named)
    for name, array in arrays.items():
        assert np.array_equal(array, tensors[name], equal_nan=True)
        assert array.dtype == tensors[name].dtype
        sent = np.array(named[name]["values"], dtype=array.dtype)
        assert np.array_equal(sent, np.where(np.isfinite(array), array, sent))
        assert metadata["arrays"][name] == {key: named[name][key] for key in ("axes", "shape", "description")}
    assert {key: metadata[key] for key in ("encoding", "shape", "causal", "parameters", "terms")} == {
        key: document[key] for key in ("encoding", "shape", "causal", "parameters", "terms")
    }


def test_a_pair_that_does_not_turn_has_no_wavelength(client: TestClient) -> None:
    views = get(client, "rope-proportional", view="frequencies", proportion="0.5", heads="1").json()["views"]
    assert views["wavelengths"]["values"][-1] is None
    assert views["frequencies"]["values"][-1] == 0


def test_parameters_are_taken_with_or_without_the_encodings_name(client: TestClient) -> None:
    for query in ({"theta": "100"}, {"rope.theta": "100"}, {"relative.theta": "100"}):
        answer = get(client, "rope", view="frequencies", **query)
        if "relative.theta" in query:
            assert answer.status_code == 422
        else:
            assert answer.json()["parameters"]["theta"] == 100


def test_an_alias_and_one_size_for_both_sides(client: TestClient) -> None:
    document = get(client, "relative-2", queries="9", heads="1").json()
    assert (document["encoding"], document["shape"]["keys"]) == ("t5", 9)
    assert get(client, "t5", keys="9", heads="1").json()["shape"]["queries"] == 9


@pytest.mark.parametrize(
    ("path", "status", "pointer", "words"),
    [
        ("rop/positions", 404, None, "did you mean rope"),
        ("rope/positions?thetta=5", 422, "query:thetta", "did you mean theta"),
        ("rope/positions?quries=5", 422, "query:quries", "did you mean queries"),
        ("rope/positions?rope.thetta=5", 422, "query:rope.thetta", "did you mean rope.theta"),
        ("rope/positions?theta=x", 422, "query:theta", "finite number"),
        ("rope/positions?theta=0", 422, "query:theta", "allowed"),
        ("rope/positions?theta=1&rope.theta=2", 422, "query:rope.theta", "more than once"),
        ("rope/positions?alibi.scale=1", 422, "query:alibi.scale", "a parameter of alibi"),
        ("rope/positions?aliby.scale=1", 422, "query:aliby.scale", "alibi"),
        ("t5/positions?bias=1", 422, "query:bias", "POST /attention"),
        ("rope/positions?queries=0", 422, "query:queries", "whole number"),
        ("rope/positions?queries=5&queries=6", 422, "query:queries", "more than once"),
        ("rope/positions?queries=999999", 413, "query:queries", "131,072"),
        ("rope/positions?width=7", 422, "query:width", "even"),
        ("rope/positions?heads=7&width=64", 422, "query:heads", "1, 2, 4"),
        ("rope/positions?causal=maybe", 422, "query:causal", "true nor false"),
        ("rope/positions?offset=nan", 422, "query:offset", "finite"),
        ("rope/positions?offset=1e300", 422, "query:offset", "1,000,000,000"),
        ("rope/positions?view=bias,vectors", 422, "query:view", "no vectors"),
        ("rope/positions?view=biass", 422, "query:view", "did you mean bias"),
        ("rope/positions?model=identty", 422, "query:model", "identity"),
        ("rope/positions?zoom=0", 422, "query:zoom", "1, 2, 3, 4"),
        ("rope/positions?queries=9000&keys=9000", 413, None, "fewer tokens"),
        ("rope/positions?queries=200&keys=200", 406, "header:Accept", media.PNG),
        ("learned/positions?queries=1&offset=1e6", 422, "query:offset", "no row"),
    ],
)
def test_bad_requests_are_told_what_was_wrong(
    client: TestClient, path: str, status: int, pointer: str | None, words: str
) -> None:
    answer = client.get(f"/encodings/{path}")
    problem = answer.json()
    assert (answer.status_code, problem.get("pointer")) == (status, pointer), problem
    assert words in problem["detail"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("view=bias,similarity", "one view"),
        ("view=tables", "no picture"),
        ("view=frequencies&rotary_fraction=0", "no pair"),
    ],
)
def test_what_no_picture_shows_is_refused(client: TestClient, query: str, words: str) -> None:
    answer = client.get(f"/encodings/rope/positions?{query}", headers={"accept": media.PNG})
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_a_picture_is_titled_and_sized_by_its_zoom(client: TestClient) -> None:
    small = image(get(client, "alibi", media.PNG, heads="8"))
    large = image(get(client, "alibi", media.PNG, heads="8", zoom="2"))
    assert large.size == (2 * small.size[0], 2 * small.size[1])
    assert small.info["Title"] == "alibi: what is added whatever the content"
    assert "8 heads of 8" in small.info["Description"]


def test_pictures_use_the_colours_of_their_numbers(client: TestClient) -> None:
    negative = image(get(client, "alibi", media.PNG))
    assert has(negative, tuple(VIRIDIS[0]))
    assert has(negative, tuple(VIRIDIS[255]))
    assert not has(negative, MASKED)
    both = image(get(client, "sinusoidal", media.PNG, view="vectors"))
    assert has(both, tuple(SIGNED[1]))
    assert has(both, tuple(SIGNED[255]))
    causal = image(get(client, "alibi", media.PNG, causal="true"))
    assert has(causal, MASKED)
    assert has(causal, HATCH)
    assert not has(causal, NAN)


def test_every_picture_of_every_encoding_is_drawn(client: TestClient) -> None:
    for line in client.get("/encodings").json()["encodings"]:
        for view in PICTURED:
            answer = get(client, line["id"], media.PNG, view=view, **SMALL)
            assert answer.status_code == 200 or view in ("vectors", "frequencies"), answer.text
            if answer.status_code == 200:
                image(answer)


def test_an_image_element_gets_a_picture_and_a_browser_json(client: TestClient) -> None:
    element = "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8"
    assert get(client, "rope", element, **SMALL).headers["content-type"] == media.PNG
    address = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
    assert get(client, "rope", address, **SMALL).headers["content-type"] == media.JSON


def test_requests_are_timed_and_counted_under_their_template(client: TestClient) -> None:
    before = counts.read(client)
    answer = get(client, "rope", **SMALL)
    assert "compute;dur=" in answer.headers["server-timing"]
    assert answer.headers["vary"] == "Accept"
    get(client, "rop")
    client.post("/encodings/rope/positions")
    client.get("/encodings/rope/positionss")
    moved = counts.changes(before, counts.read(client), "attention_requests_total")
    del moved["", "/metrics", "200"]
    assert moved == {
        ("", "/encodings/{id}/positions", "200"): 1,
        ("", "/encodings/{id}/positions", "404"): 1,
        ("", "/encodings/{id}/positions", "405"): 1,
        ("", "other", "404"): 1,
    }


def test_the_parameters_are_documented(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    operation = paths["/encodings/{id}/positions"]["get"]
    assert [one["name"] for one in operation["parameters"]] == [
        "id", "queries", "keys", "width", "heads", "causal", "model", "offset", "view", "zoom", "parameters"
    ]  # fmt: skip
    assert set(operation["responses"]["200"]["content"]) == set(media.WRITTEN)


def attend(client: TestClient, body: dict[str, Any], **query: str) -> Response:
    return client.post("/attention", params=query, json=body, headers={"accept": media.PNG})


BODY = {"embeddings": np.random.default_rng(0).standard_normal((5, 8)).tolist(), "tokens": list("abcde")}


def test_attention_is_drawn_with_its_tokens(client: TestClient) -> None:
    picture = image(attend(client, BODY, encoding="rope", compare="alibi,t5", heads="2", causal="true"))
    assert picture.info["Title"] == "Attention weights: rope, alibi, t5"
    assert has(picture, MASKED)
    assert has(picture, tuple(VIRIDIS[0]))
    named, numbered = (image(attend(client, body)) for body in (BODY, {"embeddings": BODY["embeddings"]}))
    assert (np.asarray(named)[:100] == np.asarray(numbered)[:100]).all(-1).mean() > 0.5
    assert not np.array_equal(np.asarray(named), np.asarray(numbered))


def test_scores_are_drawn_where_only_they_are_asked_for(client: TestClient) -> None:
    picture = image(attend(client, BODY, **{"return": "scores", "zoom": "2"}))
    assert picture.info["Title"] == "Attention scores: rope"
    assert has(picture, tuple(SIGNED[128]))


@pytest.mark.parametrize(
    ("query", "pointer", "words"),
    [
        ({"return": "output"}, "query:return", "weights, scores or terms"),
        ({"compare": "all", "heads": "4", "causal": "true"}, "header:Accept", "64 panels"),
        ({"zoom": "5"}, "query:zoom", "1, 2, 3, 4"),
        ({"dtype": "float16"}, "query:dtype", "binary"),
    ],
)
def test_what_cannot_be_drawn_is_refused(client: TestClient, query: dict[str, str], pointer: str, words: str) -> None:
    answer = attend(client, BODY, **query)
    assert answer.status_code == 422
    assert answer.json()["pointer"] == pointer
    assert words in answer.json()["detail"]


def test_a_batch_is_not_drawn(client: TestClient) -> None:
    answer = attend(client, {"embeddings": [BODY["embeddings"]] * 2})
    assert answer.status_code == 422
    assert "batch of 2" in answer.json()["detail"]
