"""`POST /encodings/rope/resolve` as its clients see it."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from service.routes.resolve import LARGEST, PATH
from service.wire import media
from tests.service.checkpoints import CHECKPOINTS, GEMMA_3_4B, GEMMA_4, LLAMA_3_1_8B


def resolve(client: TestClient, document: Any, **query: Any) -> Any:
    return client.post(PATH, json=document, params=query)


def run(client: TestClient, command: str) -> Any:
    """A curl command, without curl."""
    _, _, address, _, header, _, body = shlex.split(command)
    name, _, value = header.partition(": ")
    return client.post(address, content=body, headers={name: value})


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_command_of_an_answer_gives_the_scores_of_its_frequencies(client: TestClient, name: str) -> None:
    """Of two tokens of ones: S(m, n) = c (2 a^2 sum cos((m - n) theta_i) + the components that do not turn)."""
    for result in resolve(client, CHECKPOINTS[name]).json()["results"]:
        answer = run(client, result["curl"]).json()
        (scored,) = answer["results"]
        assert scored["encoding"] == result["encoding"]
        assert scored["parameters"] == result["parameters"]
        theta, head_dim = np.array(result["inverse_frequencies"]), result["head_dim"]
        scale = result["parameters"].get("scale", head_dim**-0.5)
        turning = theta[theta > 0]
        apart = (result["length"] or 2) - 1
        cosines = 2 * result["attention_factor"] ** 2 * np.cos(apart * turning).sum()
        expected = scale * (cosines + head_dim - 2 * len(turning))
        assert scored["scores"][0][1][0] == pytest.approx(expected, rel=2e-5, abs=1e-4)


def test_a_layer_type_each_has_a_result(client: TestClient) -> None:
    answer = resolve(client, GEMMA_3_4B).json()
    assert answer["model_type"] == "gemma3_text"
    assert [(one["layer_type"], one["encoding"]) for one in answer["results"]] == [
        ("full_attention", "rope-linear"),
        ("sliding_attention", "rope"),
    ]
    assert resolve(client, GEMMA_4).json()["results"][0]["wavelengths"][-1] is None


def test_the_query_string_says_what_the_configuration_does_not(client: TestClient) -> None:
    scaling = LLAMA_3_1_8B["rope_scaling"]
    assert resolve(client, scaling).status_code == 422
    answer = resolve(client, {**scaling, "rope_theta": 5e5}, head_dim=128)
    assert answer.json()["results"][0]["pairs"] == resolve(client, LLAMA_3_1_8B).json()["results"][0]["pairs"]
    dynamic = {"model_type": "llama", "head_dim": 8, "max_position_embeddings": 64, "type": "dynamic", "factor": 2}
    del dynamic["model_type"]
    short, long = (resolve(client, dynamic, length=n).json()["results"][0] for n in (64, 640))
    assert short["inverse_frequencies"][-1] > long["inverse_frequencies"][-1]


@pytest.mark.parametrize(
    ("content", "content_type", "query", "status", "words"),
    [
        (b"{", media.JSON, "", 400, "not JSON"),
        (b"", media.JSON, "", 400, "empty"),
        (b"[1]", media.JSON, "", 422, "must be a config.json"),
        (b"{}", media.NPY, "", 415, "application/json"),
        (b"{}", "application/x-www-form-urlencoded", "", 415, "curl"),
        (b"{}", media.JSON, "headdim=4", 422, "head_dim"),
        (b"{}", media.JSON, "head_dim=7", 422, "head_dim=7 is not a multiple of 2"),
        (b"{}", media.JSON, "head_dim=0", 422, "head_dim=0 is too small: at least 2"),
        (b"{}", media.JSON, "length=0", 422, "length=0 is too small: at least 1"),
        (b"{}", media.JSON, "length=1e5", 422, "length=1e5 is not a whole number"),
        (b"{}", media.JSON, "head_dim=8194", 422, "head_dim=8194 is too large: at most 8,192"),
        (b'{"model_type": "bert"}', media.JSON, "head_dim=8", 422, "bert does not rotate"),
        (b'{"model_type": "t5", "d_kv": 64}', media.JSON, "head_dim=8", 422, "encoding=t5"),
        (b"{}", media.JSON, "length=5&length=6", 422, "length came more than once"),
        (b"{}", media.JSON, "head_dim=4&head_dim=4", 422, "head_dim came more than once"),
        (b"{}", media.JSON, "", 422, "head_dim is not known"),
        (b'{"rope_type": "yarm"}', media.JSON, "", 422, "did you mean yarn or"),
        (b'"' + b"x" * LARGEST, media.JSON, "", 413, "the limit is"),
    ],
)
def test_bad_requests_are_told_what_is_wrong(
    client: TestClient, content: bytes, content_type: str, query: str, status: int, words: str
) -> None:
    answer = client.post(f"{PATH}?{query}", content=content, headers={"content-type": content_type})
    assert answer.status_code == status
    assert answer.headers["content-type"] == media.PROBLEM
    assert words in answer.json()["detail"]


def test_keys_that_say_nothing_of_positions_are_listed_and_not_warned_of(client: TestClient) -> None:
    others = {"bos_token_id": 1, "vocab_size": 32000, "torch_dtype": "bfloat16", "pad_token_id": None}
    likely = {"rotary_frobs": 1, "my_scaling": 2, "pos_freqs": 3}
    scaling = {**LLAMA_3_1_8B["rope_scaling"], "color": "blue"}
    answer = resolve(client, {**LLAMA_3_1_8B, **others, **likely, "rope_scaling": scaling}).json()
    assert set(others) <= set(answer["ignored"])
    warned = {warning["key"] for warning in answer["warnings"]}
    assert {*likely, "rope_scaling.color"} <= warned
    assert not warned & set(answer["ignored"])


def test_published_llama_3_contradicts_nothing(client: TestClient) -> None:
    kinds = {warning["kind"] for warning in resolve(client, LLAMA_3_1_8B).json()["warnings"]}
    assert "contradiction" not in kinds
    assert "note" in kinds


def test_it_is_asked_by_post(client: TestClient) -> None:
    answer = client.get(PATH)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def documented(client: TestClient) -> Any:
    return client.get("/openapi.json").json()["paths"][PATH]["post"]


def test_every_documented_example_works(client: TestClient) -> None:
    examples = documented(client)["requestBody"]["content"][media.JSON]["examples"]
    for example in examples.values():
        assert resolve(client, example["value"]).status_code == 200


def test_the_documented_answer_is_the_answer(client: TestClient) -> None:
    operation = documented(client)
    example = operation["requestBody"]["content"][media.JSON]["examples"]["small"]["value"]
    answer = resolve(client, example).json()
    expected = operation["responses"]["200"]["content"][media.JSON]["example"]
    assert rounded(answer) == rounded(expected)
    schema = operation["responses"]["200"]["content"][media.JSON]["schema"]["properties"]
    assert set(schema) == set(answer)
    assert set(schema["results"]["items"]["properties"]) == set(answer["results"][0])


def rounded(value: Any) -> Any:
    """To four digits, without nulls, which FastAPI leaves out of its examples."""
    match value:
        case float():
            return float(f"{value:.4g}")
        case list():
            return [rounded(part) for part in value]
        case dict():
            return {name: rounded(part) for name, part in value.items() if part is not None}
        case str():
            return value.replace("http://testserver/", "http://127.0.0.1:8000/")
        case _:
            return value
