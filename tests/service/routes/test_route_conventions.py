"""What an answer's conventions say of what the request changed."""

from __future__ import annotations

import numpy as np
from starlette.testclient import TestClient

ROWS = np.random.default_rng(7).standard_normal((6, 32)).tolist()


def test_modifiers_of_one_instance_are_told_in_its_conventions_alone(client: TestClient) -> None:
    query = "heads=4&compare=rope@gemma&rope@gemma.scale=0.0625&rope@gemma.softcap=50&return=weights,scores,terms"
    plain, gemma = client.post(
        f"/attention?{query}", json={"embeddings": ROWS, "parameters": {"rope@gemma.sinks": [0.0, 1.0, 2.0, 3.0]}}
    ).json()["results"]
    card = client.get("/encodings/rope").json()["conventions"]
    assert plain["conventions"] == card
    assert {name: line for name, line in gemma["conventions"].items() if name in card and name != "scale"} == {
        name: line for name, line in card.items() if name != "scale"
    }
    assert gemma["conventions"]["scale"].startswith("0.0625, which the request gave")
    assert "50 tanh(s / 50)" in gemma["conventions"]["softcap"]
    assert "less than 1" in gemma["conventions"]["sinks"]
    before = sum(np.array(term) for term in gemma["terms"].values())
    np.testing.assert_allclose(gemma["scores"], 50 * np.tanh(before / 50), rtol=1e-5, atol=1e-6)
    assert (np.sum(gemma["weights"], axis=-1) < 0.999).all()
    np.testing.assert_allclose(np.sum(plain["weights"], axis=-1), 1, atol=1e-6)


def test_views_of_positions_tell_a_given_scale_as_well(client: TestClient) -> None:
    answer = client.get("/encodings/t5/positions?scale=0.5&queries=4").json()
    assert answer["conventions"]["scale"].startswith(
        "0.5, which the request gave in place of the encoding's own (1: T5"
    )
