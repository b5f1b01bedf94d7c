"""`/encodings`, `/models`, `/health`, `/metrics`, `/docs`, and paths that do not exist."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from service.errors import failures
from service.records import Timings
from service.routes import samples
from service.wire import media
from tests.service import counts


def test_every_encoding_is_listed_and_described(client: TestClient) -> None:
    lines = client.get("/encodings").json()["encodings"]
    assert {"rope", "alibi", "t5", "none"} <= {line["id"] for line in lines}
    for line in lines:
        card = client.get(f"/encodings/{line['id']}").json()
        assert card["id"] == line["id"]
        assert card["formula"]["plain"]
        assert {"parameters", "terms", "conventions", "paper", "models"} <= set(card)


def test_an_alias_leads_to_its_encoding(client: TestClient) -> None:
    assert client.get("/encodings/relative-2").json()["id"] == "t5"


def test_models_say_what_they_are_served_under(client: TestClient) -> None:
    (identity,) = (one for one in client.get("/models").json()["models"] if one["name"] == "identity")
    assert identity["default_encoding"] == "rope"


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/encodings/rop", 404, "rope"),
        ("/encodings?model=identty", 422, "identity"),
        ("/encodings/rope?model=identty", 422, "identity"),
        ("/encodings?modle=identity", 422, "model"),
        ("/models?model=identity", 422, "no query parameters"),
        ("/atention", 404, "/attention"),
        ("/attention/", 404, "/attention"),
        ("/encodings/", 404, "/encodings"),
        ("/nowhere/at/all", 404, "/models"),
        ("/docs/nothing", 404, "example.npz"),
    ],
)
def test_what_does_not_exist_is_answered_with_what_does(client: TestClient, path: str, status: int, words: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == media.PROBLEM
    assert words in answer.json()["detail"]


def test_a_ready_service_says_so(client: TestClient) -> None:
    assert client.get("/health/live").json() == {"status": "live"}
    processes = {"ready": 1, "all": 1}
    assert client.get("/health/ready").json() == {"status": "ready", "device": "cpu", "processes": processes}


def test_every_answer_carries_an_id_and_its_time(client: TestClient) -> None:
    for path in ("/encodings", "/health/live", "/metrics", "/docs", "/openapi.json", "/nowhere"):
        headers = client.get(path).headers
        assert headers["x-request-id"]
        assert re.fullmatch(r"total;dur=\d+\.\d{3}", headers["server-timing"])


def test_every_series_exists_before_its_first_event(client: TestClient) -> None:
    text = client.get("/metrics").text
    for name in (
        "requests_total",
        "request_duration_seconds",
        "stage_duration_seconds",
        "batch_requests",
        "batches_total",
        "queue_requests",
        "inflight_requests",
        "rejected_total",
        "nonfinite_outputs_total",
        "session_info",
        "build_info",
        "ready",
    ):
        assert f"\n# TYPE attention_{name.removesuffix('_total') if 'total' not in name else name}" in text
    for failure in failures():
        assert f'attention_rejected_total{{reason="{failure.reason}"}}' in text
    for encoding in (*(one["id"] for one in client.get("/encodings").json()["encodings"]), "unknown"):
        for status in (200, 400, 413, 422, 429, 499, 500, 503, 504):
            labels = f'{{encoding="{encoding}",endpoint="/attention",status="{status}"}}'
            assert f"attention_requests_total{labels}" in text
    assert "process_resident_memory_bytes" in text
    assert "_created" not in text


def test_metrics_speak_open_metrics_to_whoever_asks(client: TestClient) -> None:
    answer = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_what_clients_send_makes_no_new_series(client: TestClient) -> None:
    before = counts.read(client)
    for path in ("/a", "/b/c", "/encodings/zzz", "/docs/zzz"):
        client.get(path)
    client.post("/attention?encoding=evil", content=b"{}", headers={"content-type": media.JSON})
    client.post("/attention?model=evil", content=b"{}", headers={"content-type": media.JSON})
    assert set(counts.read(client)) == set(before)


def test_requests_are_counted_once_each_by_template_and_outcome(client: TestClient) -> None:
    before = counts.read(client)
    client.get("/encodings/rope")
    client.get("/encodings/rop")
    client.get("/a")
    client.get("/b")
    client.get("/attention")
    moved = counts.changes(before, counts.read(client), "attention_requests_total")
    assert moved == {
        ("", "/encodings/{id}", "200"): 1,
        ("", "/encodings/{id}", "404"): 1,
        ("", "other", "404"): 2,
        ("", "/attention", "405"): 1,
        ("", "/metrics", "200"): 1,
    }


def test_scoring_requests_move_their_stages_and_batches(client: TestClient) -> None:
    before = counts.read(client)
    for query in ("encoding=rope&compare=t5", "encoding=relative-2", "encoding=alibi&heads=9"):
        client.post(f"/attention?{query}", json={"embeddings": [[1, 2], [3, 4]]})
    after = counts.read(client)
    moved = counts.changes(before, after, "attention_requests_total")
    del moved["", "/metrics", "200"]
    assert moved == {
        ("rope", "/attention", "200"): 1,
        ("t5", "/attention", "200"): 1,
        ("alibi", "/attention", "422"): 1,
    }
    stages = counts.changes(before, after, "attention_stage_duration_seconds_count")
    assert stages == {(encoding, stage): 1 for encoding in ("rope", "t5") for stage in Timings.STAGES}
    computed = counts.changes(before, after, "attention_batch_requests_sum")
    computed.pop(("summary",), None)  # that of uniform attention, where no other request had it computed
    assert computed == {("rope",): 1, ("t5",): 2, ("comparison",): 1}
    assert counts.changes(before, after, "attention_sequences_total") == {("rope",): 1, ("t5",): 2}
    assert counts.changes(before, after, "attention_tokens_total") == {("rope", "real"): 2, ("t5", "real"): 4}
    assert counts.changes(before, after, "attention_rejected_total") == {("invalid",): 1}


def test_the_documentation_loads_nothing_from_elsewhere(client: TestClient) -> None:
    for home in ("/", "/docs"):
        page = client.get(home).text
        addresses = re.findall(r"""(?:src|href)="([^"]*)"|url: '([^']*)'""", page)
        for address in (one or other for one, other in addresses):
            if not address.startswith("data:"):
                assert client.get(address).status_code == 200
        assert "//" not in re.sub(r"<!--.*?-->|//.*", "", page.replace("<!DOCTYPE html>", ""))


def operation(client: TestClient) -> Any:
    return client.get("/openapi.json").json()["paths"]["/attention"]["post"]


def test_every_documented_example_works(client: TestClient) -> None:
    examples = operation(client)["requestBody"]["content"][media.JSON]["examples"]
    assert len(examples) >= 4
    parameters = operation(client)["parameters"]
    compared = next(one["examples"] for one in parameters if one["name"] == "compare")
    for example in examples.values():
        for name, scalars in parameters[-1]["examples"].items():
            query = {"compare": compared[name]["value"]} if name == "labels" else {}
            answer = client.post("/attention", json=example["value"], params={**query, **scalars["value"]})
            assert answer.status_code == 200, answer.text
    for name, kind in (("npy", media.NPY), ("npz", media.NPZ), ("safetensors", media.SAFETENSORS)):
        file = client.get(f"/docs/example.{name}")
        assert file.headers["content-type"] == kind
        assert client.post("/attention", content=file.content, headers={"content-type": kind}).status_code == 200


@pytest.mark.parametrize("parameter", ["encoding", "compare"])
def test_documented_names_of_encodings_fit_their_pattern_and_work(client: TestClient, parameter: str) -> None:
    documented = next(one for one in operation(client)["parameters"] if one["name"] == parameter)
    pattern = documented["schema"].get("items", documented["schema"])["pattern"]
    for example in documented["examples"].values():
        value = example["value"]
        names = value if isinstance(value, list) else [value]
        assert all(re.fullmatch(pattern, name) for name in names)
        query = {parameter: ",".join(names)} if names else {}
        body = {"embeddings": [[1, 0, 0, 1], [1, 1, 0, 0]]}
        assert client.post("/attention", json=body, params={**query, "causal": True}).status_code == 200
    assert re.fullmatch(pattern, "relative-1@mine_2-x")
    assert not any(
        re.fullmatch(pattern, name) for name in ("rope@", "rope@a.b", "rope@a@b", "nope", "rope@" + "x" * 33)
    )


def test_the_documented_answer_is_the_answer(client: TestClient) -> None:
    documented = operation(client)["responses"]["200"]["content"][media.JSON]["example"]
    example = operation(client)["requestBody"]["content"][media.JSON]["examples"]["sentence"]["value"]
    answer = client.post(f"/attention?{samples.QUERY}", json=example).json()
    assert list(answer) == list(documented)
    summary, shown = (one["results"][0]["summary"] for one in (answer, documented))
    assert list(summary) == list(shown)
    assert list(summary["effective_keys"]) == list(shown["effective_keys"])
    assert summary["effective_keys"]["p10"] == pytest.approx(shown["effective_keys"]["p10"], abs=1e-5)
    assert summary["mean_distance_ratio"]["layer"] == pytest.approx(shown["mean_distance_ratio"]["layer"], abs=1e-6)
    assert answer["shape"] == documented["shape"]
    assert list(answer["results"][0]) == list(documented["results"][0])
    for name in ("encoding", "parameters", "conventions", "nonfinite_cells"):
        assert answer["results"][0][name] == documented["results"][0][name]
    for name in ("weights", "scores"):
        np.testing.assert_allclose(documented["results"][0][name], answer["results"][0][name], atol=1e-6)
    assert list(answer["timings"]) == list(documented["timings"])


def test_the_document_refers_to_nothing_that_is_missing(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    references = set(re.findall(r'"#/components/schemas/(\w+)"', client.get("/openapi.json").text))
    assert references <= set(document["components"]["schemas"])
    assert next(iter(document["paths"])) == "/attention"
