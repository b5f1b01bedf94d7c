"""Text over HTTP, as the model `tiny` takes it: every byte is a token."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from starlette.testclient import TestClient

from service.admission import Limits
from service.catalogue import Catalogue
from service.engine.job import Job, JobResult
from service.engine.session import Sessions
from service.errors import PayloadTooLarge
from service.records import AttentionInput, AttentionOptions, Timings
from service.scoring import Scoring
from service.tables import TableCache

TEXT = Path(__file__).parents[2] / "exported" / "tiny" / "text"


def ask(client: TestClient, query: str = "", status: int = 200, **body: object) -> dict[str, Any]:
    response = client.post(f"/attention?{query}", json=body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_text_goes_to_tiny_and_its_answer_names_the_tokens(client: TestClient) -> None:
    answer = ask(client, text="né b\n")
    assert answer["model"] == "tiny"
    assert answer["causal"] is True
    assert answer["tokens"] == ["n", r"\xc3", r"\xa9", "␣", "b", r"\n"]
    assert answer["shape"] == {"heads": 4, "queries": 6, "keys": 6, "head_dim": 16}
    (result,) = answer["results"]
    weights = np.array(result["weights"])
    assert weights.shape == (4, 6, 6)
    assert (weights[:, ~np.tri(6, dtype=bool)] == 0).all()
    assert weights.sum(-1) == pytest.approx(1, abs=1e-5)


def test_a_text_scores_as_the_embeddings_of_its_bytes(client: TestClient) -> None:
    rows = load_file(TEXT / "embeddings.safetensors")["embeddings"]
    embeddings = rows[list("Grüße".encode())]
    query = "model=tiny&encoding=t5&compare=alibi,fox&return=weights,scores,terms,output"
    of_text, of_rows = ask(client, query, text="Grüße"), ask(client, query, embeddings=embeddings.tolist())
    assert of_text["results"] == of_rows["results"]


def test_text_takes_positions_rows_and_every_format_of_answer(client: TestClient) -> None:
    whole = ask(client, "compare=shaw", text="abcdef", positions=[3, 4, 5, 6, 7, 8])
    response = client.post(
        "/attention?compare=shaw&rows=-1",
        json={"text": "abcdef", "positions": [3, 4, 5, 6, 7, 8]},
        headers={"Accept": "application/x-npz"},
    )
    arrays = np.load(io.BytesIO(response.content))
    for result in whole["results"]:
        last = arrays[f"{result['name']}/weights"]
        assert last == pytest.approx(np.array(result["weights"])[:, -1:], abs=1e-6)
    assert json.loads(bytes(arrays["metadata"]))["tokens"] == list("abcdef")
    picture = client.post("/attention", json={"text": "naïve"}, headers={"Accept": "image/png"})
    assert picture.headers["content-type"] == "image/png"


def test_every_encoding_serves_a_text_that_is_no_longer_than_its_tables(client: TestClient) -> None:
    short = ask(client, "compare=all&return=weights&rows=-1", text="x" * 128)
    assert len(short["results"]) == 24
    assert "skipped" not in short
    long = ask(client, "compare=all&return=weights&rows=-1", text="x" * 129)
    assert sorted(long["skipped"]) == ["learned", "tupe"]
    refused = ask(client, "encoding=learned&rows=-1", 422, text="x" * 129)
    assert "learned takes positions up to 127" in str(refused["detail"])


def test_a_trained_array_is_reported_and_cannot_be_brought(client: TestClient) -> None:
    (result,) = ask(client, "encoding=t5", text="ab")["results"]
    assert result["parameters"]["bias"] == {"shape": [32, 4], "source": "model"}
    assert result["parameters"]["scale"] == 0.25
    refused = ask(client, "encoding=t5", 422, text="ab", parameters={"t5.bias": [[0.0] * 4] * 32})
    assert "part of the model 'tiny'" in str(refused["detail"])
    assert refused["pointer"] == "/parameters/t5.bias"


@pytest.mark.parametrize(
    ("query", "body", "detail", "pointer"),
    [
        ("model=identity", {"text": "hi"}, "model=tiny takes text; or send embeddings", "/text"),
        ("model=tinny", {"text": "hi"}, "did you mean tiny", "query:model"),
        ("", {"text": ""}, "no tokens", "/text"),
        ("", {"text": 5}, "a string is expected", "/text"),
        ("", {"text": "hi", "tokens": ["h", "i"]}, "leave tokens out", "/tokens"),
        ("", {"text": "hi", "embeddings": [[1.0]]}, "came together", "/text"),
        ("", {"text": "hi", "positions": [1, 2, 3]}, "3 positions came for 2 tokens", "/positions"),
        ("heads=2", {"text": "hi"}, "has 4 heads", "query:heads"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(
    client: TestClient, query: str, body: dict[str, object], detail: str, pointer: str
) -> None:
    response = client.post(f"/attention?{query}", json=body)
    assert response.status_code == 422
    problem = response.json()
    assert detail in problem["detail"]
    assert problem.get("pointer", "") == pointer


@pytest.mark.parametrize(
    ("limits", "detail"),
    [
        (Limits(text=5), "the text has 6 bytes; the limit is 5, and 131,072 tokens"),
        (Limits(tokens=5), "the text has 6 tokens; the limit is 5"),
    ],
)
def test_a_text_over_a_limit_is_refused_before_anything_is_computed(limits: Limits, detail: str) -> None:
    scoring = Scoring(Catalogue.read([TEXT.parents[1]]), Idle(), TableCache(Sessions("cpu")), limits)
    with pytest.raises(PayloadTooLarge, match=detail) as caught:
        asyncio.run(scoring.score(AttentionInput(text="naïve"), AttentionOptions(), Timings()))
    assert caught.value.pointer == "/text"
    assert caught.value.extra == {"limit": 5}


class Idle:
    """An engine that nothing may reach."""

    async def run(self, jobs: Sequence[Job], deadline: float | None = None) -> list[JobResult]:
        raise AssertionError(f"{len(jobs)} jobs came")


def test_a_text_in_another_format_is_refused(client: TestClient) -> None:
    body = io.BytesIO()
    np.savez(body, text=np.array("hello"))
    response = client.post("/attention", content=body.getvalue(), headers={"Content-Type": "application/x-npz"})
    assert response.status_code == 422
    assert "text" in response.json()["detail"]


def test_models_say_which_take_text_and_which_heads_can_be_compared(client: TestClient) -> None:
    models = {model["name"]: model for model in client.get("/models").json()["models"]}
    assert models["identity"]["takes_text"] is False
    assert models["identity"]["text"] is models["identity"]["weights"] is None
    tiny = models["tiny"]
    assert tiny["takes_text"] is True
    assert tiny["text"] == {"vocabulary": 256, "default_encoding": "rope"}
    assert tiny["default_causal"] is True
    assert tiny["weights"].startswith("sha256:")
    cards = [client.get(f"/encodings/{encoding}?model=tiny").json() for encoding in ("t5", "learned", "rope")]
    assert {card["weights"] for card in cards} == {tiny["weights"]}


def test_embeddings_go_to_identity_unless_tiny_is_named(client: TestClient) -> None:
    rows = np.ones((2, 64)).tolist()
    assert ask(client, embeddings=rows)["model"] == "identity"
    assert ask(client, "model=tiny", embeddings=rows)["model"] == "tiny"
    assert "width 64" in str(ask(client, "model=tiny", 422, embeddings=[[1.0, 2.0]])["detail"])
