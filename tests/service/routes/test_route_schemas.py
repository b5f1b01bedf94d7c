"""What is answered about every model and encoding is what the OpenAPI document says, no member more or less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from starlette.testclient import TestClient

from service.summaries import metrics as of_rows

EXPORTED = Path(__file__).parents[3] / "exported"
NAMES = sorted(
    f"{path.parent.name}.{path.stem}"
    for model in ("identity", "tiny")
    for path in (EXPORTED / model).glob("*.onnx")
    if not path.stem.endswith(".positions")
)


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    found = client.get("/openapi.json").json()
    assert isinstance(found, dict)
    return found


def check(document: dict[str, Any], client: TestClient, template: str, path: str = "", *, method: str = "get") -> None:
    answer = client.request(method, path or template)
    assert answer.status_code == 200, answer.text
    told = document["paths"][template][method]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator({**told, "components": document["components"]}).validate(answer.json())


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_is_described_as_the_document_says(
    client: TestClient, document: dict[str, Any], name: str
) -> None:
    model, encoding = name.split(".")
    check(document, client, "/encodings/{id}", f"/encodings/{encoding}?model={model}")
    sizes = "&width=8&heads=2" if model == "identity" else ""
    asked = f"/encodings/{encoding}/positions?model={model}{sizes}&queries=3&keys=3&view=bias,similarity,tables"
    check(document, client, "/encodings/{id}/positions", asked)
    for template in ("", "/config", "/ready", "/stats"):
        check(document, client, f"/v2/models/{{model}}{template}", f"/v2/models/{name}{template}")


@pytest.mark.parametrize(
    "path",
    [
        "/encodings",
        "/models",
        "/presets",
        "/health/live",
        "/health/ready",
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
    ],
)
def test_every_listing_is_as_the_document_says(client: TestClient, document: dict[str, Any], path: str) -> None:
    check(document, client, path)


def test_the_index_of_models_is_as_the_document_says(client: TestClient, document: dict[str, Any]) -> None:
    check(document, client, "/v2/repository/index", method="post")


def test_a_member_that_nobody_told_of_is_seen(client: TestClient, document: dict[str, Any]) -> None:
    told = document["paths"]["/encodings/{id}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    answer = client.get("/encodings/rope").json()
    for wrong in ({**answer, "surprise": 1}, {name: value for name, value in answer.items() if name != "terms"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(told).validate(wrong)


def test_every_json_answer_has_members_of_its_own(document: dict[str, Any]) -> None:
    """No answer is told as any object at all."""
    for template, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation["responses"]["200"].get("content", {})
            if "application/json" in content:
                told = content["application/json"]["schema"]
                told = document["components"]["schemas"].get(told.get("$ref", "").rpartition("/")[2], told)
                assert "properties" in told or told.get("items", {}).get("properties"), f"{method} {template}"


def test_every_metric_says_over_which_rows_it_is(document: dict[str, Any]) -> None:
    described = document["components"]["schemas"]["Summary"]["properties"]
    for name in (*of_rows.DEFINITIONS, of_rows.RATIO, of_rows.KEYLESS.name):
        assert "over " in described[name]["description"]
    assert "from place 1 on" in described["self_token"]["description"]
    assert "row 0 is forced" in described["alpha_0"]["description"]
    assert "no mean over rows" in described["mean_distance_ratio"]["description"]
