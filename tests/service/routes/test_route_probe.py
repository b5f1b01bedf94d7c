"""`POST /attention/probe`: bodies in every format, its query, its refusals, what stands in its answer."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.errors import InvalidInput, UnknownName
from service.probes.records import DEFINITIONS, EXTENDS, LENGTHS, OFFSETS, PROBES
from service.routes import probe_query
from service.routes.probe import PATH
from service.settings import Settings
from service.wire import media
from tests.service import samples
from tests.service.process import serving

X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
BODIES = {
    media.JSON: json.dumps({"embeddings": X.tolist()}).encode(),
    media.NPY: samples.npy(X),
    media.NPZ: samples.npz(embeddings=X),
    media.SAFETENSORS: samples.tensors(embeddings=X),
}


def ask(client: TestClient, query: str = "", kind: str = media.NPY, **headers: str) -> Any:
    return client.post(f"{PATH}?{query}", content=BODIES[kind], headers={"content-type": kind, **headers})


@pytest.mark.parametrize("kind", BODIES)
def test_every_format_of_a_body_has_the_same_answer(client: TestClient, kind: str) -> None:
    answer = ask(client, "heads=2&encoding=sinusoidal", kind)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == media.JSON
    assert answer.headers["cache-control"] == "no-store"
    other = ask(client, "heads=2&encoding=sinusoidal").json()
    document = answer.json()
    for one in (document, other):
        assert one.pop("timings")["compute_ms"] > 0
    assert document == other


def test_an_answer_says_what_was_asked_and_found(client: TestClient) -> None:
    document = ask(client, "heads=2&encoding=rope&compare=alibi,rope@long&rope@long.theta=1000000").json()
    assert document["model"] == "identity"
    assert document["shape"] == {"heads": 2, "queries": 8, "keys": 8, "head_dim": 8}
    assert document["causal"] is False
    assert list(document["probes"]) == list(PROBES)
    for name, about in document["probes"].items():
        assert about["definition"] == DEFINITIONS[name]["definition"]
        assert about["unit"]
    assert document["probes"]["shift_gap"]["offsets"] == list(OFFSETS)
    assert document["probes"]["length_sweep"]["lengths"] == list(LENGTHS)
    assert document["probes"]["length_sweep"]["extend"] == "tiled"
    assert document["probes"]["order_gap"]["seed"] == 0
    assert "tokens" not in document
    assert [one["name"] for one in document["results"]] == ["rope", "alibi", "rope@long"]
    for one in document["results"]:
        assert {"encoding", "label", "name", "parameters", "conventions", "probes"} == set(one)
        probes = one["probes"]
        assert list(probes) == list(PROBES)
        assert probes["position_only"]["distances"] == list(range(-7, 8))
        assert np.shape(probes["position_only"]["curve"]) == (2, 15)
        assert np.shape(probes["position_share"]["share"]) == (2,)
        assert [entry["offset"] for entry in probes["shift_gap"]["offsets"]] == list(OFFSETS)
        assert np.shape(probes["order_gap"]["jsd"]["mean"]) == (2,)
        assert [entry["tokens"] for entry in probes["length_sweep"]["lengths"]] == [4, 8, 16, 32]
    assert document["results"][2]["parameters"]["theta"] == 1e6


def test_only_the_probes_that_are_named_are_answered(client: TestClient) -> None:
    document = ask(client, "probe=order_gap,position_share&probe=order_gap").json()
    assert list(document["results"][0]["probes"]) == list(document["probes"]) == ["order_gap", "position_share"]


def test_a_reason_stands_where_there_is_no_answer(client: TestClient) -> None:
    document = ask(client, "probe=order_gap,shift_gap&encoding=learned&causal=true&offsets=-1,1").json()
    probes = document["results"][0]["probes"]
    assert "causal" in probes["order_gap"]["reason"]
    assert "positions from 0 on" in probes["shift_gap"]["offsets"][0]["reason"]
    assert "reason" not in probes["shift_gap"]["offsets"][1]


def test_what_is_undefined_is_null(client: TestClient) -> None:
    body = json.dumps({"embeddings": np.ones((4, 8)).tolist()}).encode()
    answer = client.post(f"{PATH}?encoding=none", content=body, headers={"content-type": media.JSON})
    assert "NaN" not in answer.text
    assert answer.json()["results"][0]["probes"]["position_share"]["share"] == [None]


def test_a_batch_and_a_mask_are_taken(client: TestClient) -> None:
    content = samples.npz(embeddings=np.stack([X, X[::-1]]), mask=np.ones((2, 8)), tokens=np.array(list("abcdefgh")))
    answer = client.post(
        f"{PATH}?probe=position_share,length_sweep", content=content, headers={"content-type": media.NPZ}
    )
    document = answer.json()
    assert document["shape"]["batch"] == 2
    assert document["tokens"] == list("abcdefgh")
    probes = document["results"][0]["probes"]
    assert np.shape(probes["position_share"]["share"]) == (2, 1)
    assert "mask" in probes["length_sweep"]["lengths"][0]["reason"]


@pytest.mark.parametrize(
    ("query", "pointer", "words"),
    [
        ("probe=position_onyl", "query:probe", "did you mean position_only"),
        ("probe=", "query:probe", "empty name"),
        ("prob=order_gap", "query:prob", "did you mean probe"),
        ("return=weights", "query:return", "known"),
        ("theta=3", "query:theta", "did you mean rope.theta"),
        ("rope.thet=3", "query:rope.thet", "did you mean rope.theta"),
        ("rope.theta=3&rope.theta=4", "query:rope.theta", "more than once"),
        ("encoding=rop", "query:encoding", "did you mean rope"),
        ("compare=alibi,alibi", "query:compare", "asked for twice"),
        ("heads=3", "query:heads", "may be 1, 2, 4, 8, 16"),
        ("offsets=one", "query:offsets", "no finite number"),
        ("offsets=nan", "query:offsets", "no finite number"),
        ("offsets=2e9", "query:offsets", "out of range"),
        ("offsets=" + ",".join(map(str, range(17))), "query:offsets", "at most 16"),
        ("lengths=0", "query:lengths", "out of range"),
        ("lengths=65", "query:lengths", "out of range"),
        ("seed=-1", "query:seed", "whole number"),
        ("seed=4294967296", "query:seed", "whole number"),
        ("seed=99999999999999999999999", "query:seed", "whole number"),
        ("extend=tile", "query:extend", "did you mean tiled"),
        ("seed=1&seed=2", "query:seed", "more than once"),
        ("a" * 20_000, None, "16384"),
    ],
)
def test_a_query_that_is_wrong_is_told_what_is_right(
    client: TestClient, query: str, pointer: str | None, words: str
) -> None:
    answer = ask(client, query)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == media.PROBLEM
    assert answer.json().get("pointer") == pointer
    assert words in answer.json()["detail"]


@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        ({"content-type": "text/plain"}, b"", 415),
        ({"content-type": media.JSON}, b"{", 400),
        ({"content-type": media.JSON}, b"{}", 422),
        ({"content-type": media.JSON}, b'{"text": ""}', 422),
        ({"content-type": media.JSON, "accept": "image/png"}, BODIES[media.JSON], 406),
        ({"content-type": media.JSON, "accept": media.NPZ}, BODIES[media.JSON], 406),
        ({"content-type": media.NPY}, b"x" * (1 << 20) + b"x", 413),
    ],
)
def test_requests_that_are_not_taken(client: TestClient, headers: dict[str, str], content: bytes, status: int) -> None:
    assert client.post(PATH, content=content, headers=headers).status_code == status


def test_the_other_verbs_are_told_which_is_right(client: TestClient) -> None:
    answer = client.get(PATH)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


def test_an_answer_of_too_many_numbers_is_refused(client: TestClient) -> None:
    """The limit here is 20,000."""
    x = np.ones((2200, 1), np.float32)
    answer = client.post(
        f"{PATH}?probe=position_only&encoding=none", content=samples.npy(x), headers={"content-type": media.NPY}
    )
    assert answer.status_code == 413
    assert "ATTENTION_JSON_CELLS" in answer.json()["detail"]


def test_a_deadline_is_kept() -> None:
    app = create_app(Settings(device="cpu", workers=1, deadline_seconds=0.0005))
    with TestClient(app, raise_server_exceptions=False) as client:
        answer = ask(client)
    assert answer.status_code == 504


def test_the_documentation_says_what_is_read(client: TestClient) -> None:
    operation = client.get("/openapi.json").json()["paths"][PATH]["post"]
    parameters = {parameter["name"]: parameter["schema"] for parameter in operation["parameters"]}
    assert set(parameters) == {*probe_query.NAMES, "parameters"}
    assert parameters["probe"]["items"]["enum"] == list(PROBES)
    assert parameters["extend"]["enum"] == list(EXTENDS)
    assert set(operation["requestBody"]["content"]) == set(media.READ)
    for name in PROBES:
        assert f"`{name}`" in operation["description"]


def test_the_documentation_names_the_encodings_that_there_are_now() -> None:
    app = create_app(Settings(device="cpu", workers=1))

    def pattern() -> str:
        parameters = app.openapi()["paths"][PATH]["post"]["parameters"]
        (encoding,) = (parameter for parameter in parameters if parameter["name"] == "encoding")
        return str(encoding["schema"]["pattern"])

    assert "alibi" in pattern()
    catalogue = app.state.service.catalogue
    catalogue.take(catalogue.without(["identity.alibi", "tiny.alibi"]))
    assert "alibi" not in pattern()


def test_defaults_are_those_of_the_documentation() -> None:
    asked = probe_query.parse(b"")
    assert (asked.probes, asked.offsets, asked.lengths, asked.extend) == (PROBES, OFFSETS, LENGTHS, EXTENDS[0])
    asked = probe_query.parse(b"offsets=-2.5,3,3&lengths=2&seed=7&extend=random&probe=shift_gap,length_sweep")
    assert (asked.probes, asked.offsets, asked.lengths) == (("shift_gap", "length_sweep"), (-2.5, 3.0), (2.0,))
    assert (asked.seed, asked.extend) == (7, "random")


@pytest.mark.parametrize("query", [b"probe=x", b"extend=x", b"x=1"])
def test_unknown_names_carry_the_known_ones(query: bytes) -> None:
    with pytest.raises(UnknownName) as refused:
        probe_query.parse(query)
    assert isinstance(refused.value, InvalidInput)
    assert refused.value.extra["allowed"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_pipes_a_preset_into_a_probe() -> None:
    with serving() as service:
        at = f"http://127.0.0.1:{service.port}"
        answer = subprocess.run(
            f"curl -s '{at}/presets/sentence' | curl -s '{at}{PATH}?heads=8&encoding=alibi&probe=position_only' "
            "-H 'Content-Type: application/json' -d @-",
            shell=True,
            capture_output=True,
            check=True,
            timeout=60,
        )
    curve = json.loads(answer.stdout)["results"][0]["probes"]["position_only"]["curve"]
    assert [row[21] for row in curve] == [-(2.0 ** -(h + 1)) for h in range(8)]
