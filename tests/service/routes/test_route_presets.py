"""`GET /presets` and `/presets/{name}`: every format is a body that `POST /attention` takes."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
import safetensors
from starlette.testclient import TestClient

from service.presets.listing import PRESETS, find
from service.wire import base64, media
from service.wire.presets import WRITTEN
from tests.service.process import serving

NAMES = [preset.name for preset in PRESETS]


def test_presets_are_listed_with_their_arguments(client: TestClient) -> None:
    listed = client.get("/presets").json()["presets"]
    assert [one["name"] for one in listed] == NAMES
    for one in listed:
        assert one["title"]
        assert one["description"]
        sizes = {name: about["default"] for name, about in one["arguments"].items()}
        for about in one["arguments"].values():
            assert about["minimum"] <= about["default"] <= about["maximum"]
        explicit = client.get(f"/presets/{one['name']}", params=sizes)
        assert explicit.content == client.get(f"/presets/{one['name']}").content


def embeddings(kind: str, content: bytes) -> np.ndarray[Any, Any]:
    match kind:
        case media.JSON:
            return np.array(json.loads(content)["embeddings"], np.float32)
        case media.NPY:
            whole: np.ndarray[Any, Any] = np.load(io.BytesIO(content))
            return whole
        case media.NPZ:
            member: np.ndarray[Any, Any] = np.load(io.BytesIO(content))["embeddings"]
            return member
        case _:
            ((_, tensor),) = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
            return np.frombuffer(tensor["data"], "<f4").reshape(tensor["shape"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", WRITTEN)
def test_a_preset_is_a_body_as_it_is(client: TestClient, name: str, kind: str) -> None:
    preset = find(name)
    made = preset.make(**preset.complete({"n": 12, "d": 24}))
    answer = client.get(f"/presets/{name}?n=12&d=24", headers={"accept": kind})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == kind
    assert answer.headers["vary"] == "Accept"
    assert (embeddings(kind, answer.content) == made.embeddings).all()
    scored = client.post(
        "/attention?heads=2&encoding=none&return=weights", content=answer.content, headers={"content-type": kind}
    )
    assert scored.status_code == 200, scored.text
    document = scored.json()
    assert document["shape"]["queries"] == 12
    if kind in (media.JSON, media.NPZ):
        assert document["tokens"] == list(made.names)


def test_names_stand_beside_the_arrays_of_safetensors(client: TestClient) -> None:
    content = client.get("/presets/needle?n=8", headers={"accept": media.SAFETENSORS}).content
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["metadata"])
    assert metadata["tokens"] == ["t0", "t1", "needle", "t3", "t4", "t5", "t6", "needle"]


def test_json_may_hold_its_array_as_base64(client: TestClient) -> None:
    answer = client.get("/presets/walk?n=200&d=200&arrays=base64")  # more numbers than JSON may have as lists
    document = answer.json()
    assert (
        base64.decode(document["embeddings"], "/embeddings").tobytes()
        == embeddings(
            media.NPY, client.get("/presets/walk?n=200&d=200", headers={"accept": media.NPY}).content
        ).tobytes()
    )
    headers = {"content-type": media.JSON, "accept": media.NPZ}
    assert client.post("/attention?return=weights", content=answer.content, headers=headers).status_code == 200


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("query", ["n=10&d=4", "n=160&d=120"])
def test_the_same_question_has_the_same_bytes_and_tag(client: TestClient, kind: str, query: str) -> None:
    arrays = "&arrays=base64" if kind == media.JSON else ""
    first, second = (client.get(f"/presets/blocks?{query}{arrays}", headers={"accept": kind}) for _ in range(2))
    assert first.content == second.content
    assert first.headers["etag"] == second.headers["etag"]
    assert "immutable" in first.headers["cache-control"]
    other = client.get(f"/presets/blocks?{query}{arrays}&seed=1", headers={"accept": kind})
    assert other.headers["etag"] != first.headers["etag"]


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}', "*"])
def test_what_the_client_has_is_not_sent_again(client: TestClient, form: str) -> None:
    tag = client.get("/presets/random").headers["etag"]
    answer = client.get("/presets/random", headers={"if-none-match": form.format(tag)})
    assert answer.status_code == 304
    assert answer.content == b""
    assert answer.headers["etag"] == tag
    assert client.get("/presets/random", headers={"if-none-match": '"other"'}).status_code == 200


def test_a_head_request_is_answered(client: TestClient) -> None:
    answer = client.head("/presets/random")
    assert answer.status_code == 200
    assert answer.content == b""
    assert int(answer.headers["content-length"]) == len(client.get("/presets/random").content)


@pytest.mark.parametrize(
    ("path", "status", "pointer", "words"),
    [
        ("/presets/repaet", 404, None, "did you mean repeat"),
        ("/presets/", 404, None, "/presets"),
        ("/presets?n=3", 422, "query:n", "no query parameters"),
        ("/presets/repeat?sede=3", 422, "query:sede", "did you mean seed"),
        ("/presets/repeat?n=1", 422, "query:n", "2 to 32768"),
        ("/presets/repeat?n=", 422, "query:n", "whole number"),
        ("/presets/repeat?n=1e3", 422, "query:n", "whole number"),
        ("/presets/repeat?seed=-1", 422, "query:seed", "whole number"),
        ("/presets/repeat?n=3&n=4", 422, "query:n", "more than once"),
        ("/presets/constant?seed=3", 422, "query:seed", "takes n and d"),
        ("/presets/sentence?n=22", 422, "query:n", "1 to 21"),
        ("/presets/random?n=32768&d=8192", 413, None, "268,435,456"),
        ("/presets/random?n=200&d=200", 406, "header:Accept", "arrays=base64"),
        ("/presets/random?arrays=hex", 422, "query:arrays", "base64"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(
    client: TestClient, path: str, status: int, pointer: str | None, words: str
) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == media.PROBLEM
    assert answer.headers.get("cache-control") != "public, max-age=31536000, immutable"
    assert answer.json().get("pointer") == pointer
    assert words in answer.json()["detail"]


@pytest.mark.parametrize(
    ("accept", "query", "status"), [("image/png", "", 406), (media.NPY, "?arrays=base64", 422), ("text/csv", "", 406)]
)
def test_formats_that_a_preset_cannot_have_are_refused(
    client: TestClient, accept: str, query: str, status: int
) -> None:
    assert client.get(f"/presets/random{query}", headers={"accept": accept}).status_code == status


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_pipes_a_preset_into_attention() -> None:
    with serving() as service:
        at = f"http://127.0.0.1:{service.port}"
        answer = subprocess.run(
            f"curl -s '{at}/presets/repeat?n=64' | curl -s '{at}/attention?encoding=rope' "
            "-H 'Content-Type: application/json' -d @-",
            shell=True,
            capture_output=True,
            check=True,
            timeout=60,
        )
    document = json.loads(answer.stdout)
    assert document["tokens"] == [f"t{i % 32}" for i in range(64)]
    assert np.array(document["results"][0]["weights"]).shape == (1, 64, 64)
