"""What a request says and what would change nothing of its answer is refused, with when it is allowed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.wire import media

INPUT = {"embeddings": [[0.9, 0.1, -0.3, 0.4], [0.2, 0.8, 0.5, -0.1], [-0.4, 0.6, 0.7, 0.2]]}
ONE = {"matrices": {"mine": [[1, 0], [0.4, 0.6]]}}
TWO = {"matrices": {**ONE["matrices"], "theirs": [[1, 0], [0.5, 0.5]]}}
MANY = {"embeddings": [[[0.5]]] * 1025}


def post(client: TestClient, path: str, document: Any, accept: str = media.JSON) -> Any:
    headers = {"content-type": media.JSON, "accept": accept}
    return client.post(path, content=json.dumps(document), headers=headers)


def check(response: Any, name: str, *words: str) -> None:
    problem = response.json()
    assert response.status_code == 422, problem
    assert problem["pointer"] == f"query:{name}"
    for word in words:
        assert word in problem["detail"]


@pytest.mark.parametrize(
    ("query", "name", "words"),
    [
        ("metrics=jsd", "metrics", ["jsd is of the comparison", "compare", "leave it out"]),
        ("metrics=entropy,tv,kl", "metrics", ["tv, kl are of the comparison", "leave them out"]),
        ("compare=alibi&return=weights,summary&metrics=jsd", "metrics", ["jsd is of the comparison", "return"]),
        ("compare=alibi&return=comparison&metrics=jsd,entropy", "metrics", ["entropy is of the summary"]),
        ("return=weights&metrics=entropy", "metrics", ["metrics=entropy", "neither", "name summary in return"]),
        ("return=weights&metrics=all", "metrics", ["metrics=all", "neither"]),
        ("return=summary&dtype=float16&arrays=base64", "dtype", ["dtype=float16", "return=summary asks for none"]),
        ("return=summary&arrays=base64", "arrays", ["arrays=base64", "weights, scores, terms or output"]),
        ("zoom=2", "zoom", ["zoom=2 is for pictures", media.PNG]),
    ],
)
def test_what_changes_nothing_of_attention_is_refused(
    client: TestClient, query: str, name: str, words: list[str]
) -> None:
    check(post(client, f"/attention?{query}", INPUT), name, *words)


@pytest.mark.parametrize("query", ["metrics=entropy", "metrics=default", "return=weights,summary&metrics=entropy"])
def test_metrics_are_not_for_pictures(client: TestClient, query: str) -> None:
    check(post(client, f"/attention?{query}", INPUT, media.PNG), "metrics", "Accept asks for image/png", "leave")


def test_metrics_of_so_many_heads_that_none_are_summarised_unless_named_need_return(client: TestClient) -> None:
    check(post(client, "/attention?encoding=none&metrics=entropy", MANY), "metrics", "summary in return")
    answer = post(client, "/attention?encoding=none&metrics=entropy&return=summary", MANY)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["results"][0]["summary"]["entropy"]["mean"]) == 1025


@pytest.mark.parametrize(
    "query",
    [
        "metrics=all",
        "metrics=default,induction",
        "compare=alibi&metrics=jsd",
        "compare=alibi&metrics=jsd,entropy",
        "compare=alibi&return=comparison&metrics=jsd",
        "return=summary&metrics=entropy&dtype=float32&arrays=lists&zoom=1",
        "return=summary&top_k=1&arrays=base64&dtype=float16",
    ],
)
def test_what_changes_something_of_attention_is_taken(client: TestClient, query: str) -> None:
    answer = post(client, f"/attention?{query}", INPUT)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("document", "query", "name", "words"),
    [
        (ONE, "metrics=jsd,entropy", "metrics", ["jsd is of the comparison", "second matrix"]),
        (ONE, "top_k=2", "top_k", ["topk_overlap", "second matrix"]),
        (TWO, "top_k=2", "top_k", ["top_k=2", "topk_overlap", "name it in metrics"]),
        (TWO, "top_k=2&metrics=jsd", "top_k", ["topk_overlap"]),
        (ONE, "reference=mine", "reference", ["reference=mine", "no other matrix"]),
    ],
)
def test_what_changes_nothing_of_given_matrices_is_refused(
    client: TestClient, document: Any, query: str, name: str, words: list[str]
) -> None:
    check(post(client, f"/compare/matrices?{query}", document), name, *words)


@pytest.mark.parametrize(
    ("document", "query"),
    [(ONE, "metrics=all"), (TWO, "metrics=jsd"), (TWO, "metrics=topk_overlap&top_k=2"), (TWO, "reference=theirs")],
)
def test_what_changes_something_of_given_matrices_is_taken(client: TestClient, document: Any, query: str) -> None:
    answer = post(client, f"/compare/matrices?{query}", document)
    assert answer.status_code == 200, answer.text


def test_what_is_found_of_given_matrices_is_json_only(client: TestClient) -> None:
    answer = post(client, "/compare/matrices", TWO, media.NPZ)
    assert answer.status_code == 406
    assert answer.json()["allowed"] == [media.JSON]


@pytest.mark.parametrize(
    ("query", "name", "owner"),
    [
        ("probe=order_gap&offsets=1", "offsets", "shift_gap"),
        ("probe=order_gap,shift_gap&lengths=1,2", "lengths", "length_sweep"),
        ("probe=position_only&extend=random", "extend", "length_sweep"),
        ("probe=shift_gap&seed=1", "seed", "order_gap"),
        ("probe=length_sweep&seed=1", "seed", "extend=random"),
        ("probe=length_sweep&seed=1&extend=tiled", "seed", "extend=random"),
    ],
)
def test_an_argument_of_a_probe_that_is_not_asked_for_is_refused(
    client: TestClient, query: str, name: str, owner: str
) -> None:
    check(post(client, f"/attention/probe?{query}", INPUT), name, f"{name} is an argument of", owner, "leave")


@pytest.mark.parametrize(
    "query",
    [
        "probe=length_sweep&seed=1&extend=random&lengths=1,2",
        "probe=order_gap&seed=1",
        "offsets=1&lengths=1&extend=tiled&seed=3",
    ],
)
def test_arguments_of_the_probes_asked_for_are_taken(client: TestClient, query: str) -> None:
    answer = post(client, f"/attention/probe?{query}", INPUT)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("accept", [media.JSON, media.NPZ, media.SAFETENSORS])
def test_zoom_is_for_pictures_of_positions_too(client: TestClient, accept: str) -> None:
    answer = client.get("/encodings/rope/positions?zoom=2&queries=4&width=8", headers={"accept": accept})
    check(answer, "zoom", "zoom=2 is for pictures", accept)
