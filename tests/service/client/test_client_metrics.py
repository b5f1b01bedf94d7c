"""Summaries and comparisons as tables: the numbers of the JSON answer, a row for each metric of each head."""

from __future__ import annotations

import math
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from jaxtyping import Float32

from service.client import RECORD, Client

X = Float32[np.ndarray, "12 16"]
QUERY = {"encoding": "rope", "compare": "alibi,none", "heads": "4", "causal": "true", "return": "summary,comparison"}


def asked(url: str, x: Any, **query: str) -> dict[str, Any]:
    response = httpx.post(f"{url}/attention", params={**QUERY, **query}, json={"embeddings": x.tolist()})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def value(frame: pd.DataFrame, **where: Any) -> pd.Series:
    """The only row with these values; None is what is missing."""
    chosen = frame
    for column, wanted in where.items():
        chosen = chosen[chosen[column].isna() if wanted is None else chosen[column] == wanted]
    assert len(chosen) == 1, where
    row: pd.Series = chosen.iloc[0]
    return row


def same(found: Any, expected: Any) -> bool:
    return bool(math.isnan(found) if expected is None else found == expected)


def test_every_metric_of_every_head_is_the_json_answers(client: Client, url: str, x: X) -> None:
    answer = client.attention(
        x, "rope", compare=["alibi", "none"], heads=4, causal=True, returns=["summary", "comparison"]
    )
    expected = asked(url, x)
    frame = answer.to_frame()
    assert tuple(frame.columns) == RECORD
    count = 0
    for result in expected["results"]:
        for name, metric in result["summary"].items():
            for head in range(4) if isinstance(metric, dict) and "mean" in metric else ():
                row = value(frame, encoding=result["name"], reference=None, head=head, metric=name)
                assert same(row["value"], metric["mean"][head])
                assert same(row["rows_counted"], metric["rows"][head])
                for column in ("p10", "p50", "p90", "uniform"):
                    assert same(row[column], metric[column][head] if column in metric else None)
                count += 1
        errors = frame[(frame["encoding"] == result["name"]) & (frame["metric"] == "row_sum_error")]
        assert errors["value"].tolist() == result["summary"]["row_sum_error"]
        assert errors["rows_counted"].tolist() == result["summary"]["rows_counted"]
    assert count >= 3 * 4 * 10
    assert expected["comparison"]["reference"] == "rope"
    for name, metrics in expected["comparison"]["against"].items():
        for metric in [key for key, of_heads in metrics.items() if isinstance(of_heads, dict) and "mean" in of_heads]:
            for head in range(4):
                row = value(frame, encoding=name, reference="rope", head=head, metric=metric)
                assert same(row["value"], metrics[metric]["mean"][head])
        assert {"jsd", "tv"} <= metrics.keys()
        identical = frame[(frame["encoding"] == name) & (frame["metric"] == "identical")]
        assert identical["value"].tolist() == [float(one) for one in metrics["identical"]]


def test_summaries_and_comparisons_are_there_as_they_came(client: Client, url: str, x: X) -> None:
    answer = client.attention(x, "rope", compare="alibi,none", heads=4, causal=True, returns="summary,comparison")
    expected = asked(url, x)
    for result in expected["results"]:
        assert answer[result["name"]].summary == result["summary"]
        assert answer[result["name"]].weights is None
    assert answer.comparison == expected["comparison"]
    assert "effective keys: rope " in repr(answer)


def test_the_metrics_are_chosen_by_name(client: Client, x: X) -> None:
    answer = client.attention(x, "alibi", returns="summary", metrics=["entropy", "local_mass_4"])
    assert set(answer.to_frame()["metric"]) == {"entropy", "local_mass_4"}
    assert len(client.attention(x, "alibi", returns="summary", metrics="all").summary or {}) > 20


def test_a_batch_has_rows_for_each_of_it(client: Client, url: str, x: X) -> None:
    batch = np.stack([x, x[::-1]])
    frame = client.attention(
        batch, "rope", compare="alibi,none", heads=4, causal=True, returns="summary,comparison"
    ).to_frame()
    expected = asked(url, batch)
    entropy = expected["results"][1]["summary"]["entropy"]["mean"]
    jsd = expected["comparison"]["against"]["none"]["jsd"]["mean"]
    for b in range(2):
        for head in range(4):
            of_head = {"batch": b, "head": head}
            assert (
                value(frame, encoding="alibi", reference=None, metric="entropy", **of_head)["value"] == entropy[b][head]
            )
            assert value(frame, encoding="none", reference="rope", metric="jsd", **of_head)["value"] == jsd[b][head]


def test_heads_keep_their_numbers(client: Client, x: X) -> None:
    whole = client.attention(x, "alibi", heads=4, returns="summary").to_frame()
    part = client.attention(x, "alibi", heads=4, head=[3, 1], returns="summary").to_frame()
    assert set(part["head"]) == {1, 3}
    for head in (1, 3):
        expected = value(whole, head=head, metric="entropy")["value"]
        assert value(part, head=head, metric="entropy")["value"] == expected


def test_what_is_undefined_has_a_reason(client: Client) -> None:
    record = next(
        one
        for one in client.attention([[1.0, 2.0]], "none", returns="summary").records()
        if one["metric"] == "entropy_norm"
    )
    assert record["value"] is None
    assert record["reason"]
    assert record["batch"] is None


def test_a_distance_profile_is_arrays(client: Client, url: str, x: X) -> None:
    answer = client.attention(x, "alibi", returns="summary", metrics="distance_profile")
    expected = asked(
        url, x, encoding="alibi", compare="none", heads="1", causal="false", metrics="distance_profile,jsd"
    )
    profile = (answer.summary or {})["distance_profile"]
    for name, lists in expected["results"][0]["summary"]["distance_profile"].items():
        if name != "rows":
            assert np.array_equal(profile[name], np.array(lists, profile[name].dtype)), name
    assert answer.records() == []


def test_without_metrics_there_are_columns_all_the_same(client: Client, x: X) -> None:
    frame = client.attention(x, returns="weights").to_frame()
    assert frame.empty
    assert tuple(frame.columns) == RECORD


@pytest.mark.parametrize("name", ["jsd to rope", "effective_keys"])
def test_a_page_has_the_metrics(client: Client, x: X, name: str) -> None:
    answer = client.attention(x, "rope", compare="alibi", heads=4, returns="weights,summary,comparison")
    page = answer._repr_html_()
    assert f"<td>{name}</td>" in page
    assert len(page) < 300_000
