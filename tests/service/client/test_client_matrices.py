"""Matrices that somebody has already."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from service.client import RECORD, Client, Refused


def some(seed: int) -> np.ndarray:
    """[heads, queries, keys], rows that sum to 1."""
    scores = np.random.default_rng(seed).standard_normal((2, 6, 6))
    weights: np.ndarray = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return weights


@pytest.mark.parametrize("tokens", [None, list("abcdef")])
def test_the_first_is_the_reference_and_the_numbers_are_the_services(
    client: Client, url: str, tokens: list[str] | None
) -> None:
    matrices = {"zeta": some(0), "alpha": some(1), "mid": some(0)}
    found = client.compare_matrices(matrices, metrics="jsd,tv,entropy", tokens=tokens)
    body = {"matrices": {name: values.astype(np.float32).tolist() for name, values in matrices.items()}}
    expected = httpx.post(f"{url}/compare/matrices?metrics=jsd,tv,entropy", json=body).json()
    assert found.comparison == expected["comparison"]
    assert found.comparison is not None
    assert found.comparison["reference"] == "zeta"
    assert list(found.summaries) == ["zeta", "alpha", "mid"]
    assert "zeta, alpha, mid" in repr(found)
    jsd = jensenshannon(matrices["zeta"], matrices["alpha"], base=2, axis=-1) ** 2
    frame = found.to_frame()
    assert tuple(frame.columns) == RECORD
    rows = frame[(frame["metric"] == "jsd") & (frame["encoding"] == "alpha")].sort_values("head")
    assert rows["value"].tolist() == pytest.approx(jsd.mean(-1).tolist(), abs=1e-6)
    assert set(frame[(frame["metric"] == "identical") & (frame["encoding"] == "mid")]["value"]) == {1.0}


def test_matrices_that_do_not_fit_are_refused(client: Client) -> None:
    with pytest.raises(Refused, match="422"):
        client.compare_matrices({"a": np.eye(3), "b": np.eye(4)})
