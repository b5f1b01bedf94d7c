"""`POST /compare/matrices`: beside loops and SciPy, for matrices whose numbers are known, and what is refused."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from service.routes.compare import PATH
from service.wire import media
from tests.service.analysis import loops


def body(kind: str, arrays: dict[str, np.ndarray]) -> bytes:
    if kind == media.SAFETENSORS:
        return safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def ask(client: TestClient, arrays: dict[str, np.ndarray], kind: str = media.NPZ, **query: Any) -> dict[str, Any]:
    response = client.post(PATH, params=query, content=body(kind, arrays), headers={"content-type": kind})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def refused(client: TestClient, arrays: dict[str, np.ndarray], **query: Any) -> tuple[int, str, str]:
    headers = {"content-type": media.NPZ}
    response = client.post(PATH, params=query, content=body(media.NPZ, arrays), headers=headers)
    problem = response.json()
    return response.status_code, problem["detail"], problem.get("pointer", "")


def softmax(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    shifted = np.where(seen, scores.astype(np.float64), -np.inf)
    exps = np.exp(shifted - np.maximum(shifted.max(-1, keepdims=True), -1e300))
    return np.asarray(exps / np.maximum(exps.sum(-1, keepdims=True), 1e-300))


@pytest.mark.parametrize("group", range(20))
def test_every_metric_of_given_matrices_is_what_loops_and_scipy_give(client: TestClient, group: int) -> None:
    for seed in range(25 * group, 25 * group + 25):
        random = np.random.default_rng(seed)
        batch, heads = (int(n) for n in random.integers(1, 3, 2))
        tokens = int(random.choice([1, 2, 4, 9, 33]))
        causal, masked, half = random.random(3) < [0.5, 0.4, 0.2]
        seen = np.ones((batch, heads, tokens, tokens), bool)
        seen &= np.tril(np.ones((tokens, tokens), bool)) if causal else True
        arrays: dict[str, np.ndarray] = {}
        if masked:
            mask = random.random((batch, 1, tokens, tokens)) < 0.6
            arrays["mask"], seen = mask, seen & mask
        scores = {name: 2 * random.normal(size=seen.shape).astype(np.float32) for name in ("a", "b")}
        weights = {name: softmax(one, seen).astype(np.float16 if half else np.float32) for name, one in scores.items()}
        weights["b"] = weights["b"].astype(np.float32)
        if random.random() < 0.3:
            weights["b"][tuple(int(random.integers(0, size)) for size in seen.shape)] = np.nan
            weights["a"][0, 0, int(random.integers(0, tokens))] *= np.float16(1.5)
        arrays |= {f"matrices/{name}": one for name, one in weights.items()}
        arrays |= {f"scores/{name}": np.where(seen, one, -np.inf) for name, one in scores.items()}
        answer = ask(client, arrays, metrics="all", causal=str(bool(causal)).lower())
        allowed = 2e-3 if half else 1e-5
        tolerances = [2e-3 if half else 1e-5, 1e-5]
        exact = {name: one.astype(np.float64) for name, one in weights.items()}
        for b, h in np.ndindex(batch, heads):
            padding, visible = [False] * tokens, seen[b, h]
            for (name, matrix), result, tolerance in zip(exact.items(), answer["results"], tolerances, strict=True):
                found = result["summary"]
                rows = loops.counted(matrix[b, h], visible, padding, tolerance)
                assert result["name"] == name
                assert found["rows_counted"][b][h] == len(rows), seed
                assert found["rows_invalid"][b][h] == tokens - len(rows)
                assert found["nonfinite_cells"][b][h] == np.count_nonzero(~np.isfinite(matrix[b, h]))
                expected = loops.summary(matrix[b, h], visible, padding, np.arange(tokens), range(tokens), tolerance)
                for metric in ("effective_keys", "mean_distance", "sink_mass_4", "previous_token", "local_mass_4"):
                    check(found[metric], (b, h), expected.get(metric, []), allowed)
            pair = loops.comparison(
                exact["a"][b, h],
                exact["b"][b, h],
                (scores["a"][b, h].astype(np.float64), scores["b"][b, h].astype(np.float64)),
                visible,
                padding,
                8,
                max(tolerances),
            )
            against = answer["comparison"]["against"]["b"]
            for metric in ("tv", "jsd", "w1", "logit_rmse", *(() if half else ("argmax_agree", "topk_overlap"))):
                # Half a row of float16 more or less is another distribution: `tv` of it is not a softmax's.
                check(against[metric], (b, h), pair.get(metric, []), 2e-2 if half else 1e-5)


def check(metric: dict[str, Any], at: tuple[int, int], numbers: list[float], allowed: float) -> None:
    b, h = at
    assert metric["rows"][b][h] == len(numbers)
    if numbers:
        mean = float(np.mean(numbers))
        assert abs(metric["mean"][b][h] - mean) <= allowed * max(1.0, abs(mean))
    else:
        assert metric["mean"][b][h] is None
        assert metric["reason"]


# Matrices whose numbers are known.


def test_uniform_diagonal_previous_token_and_sink_are_told(client: TestClient) -> None:
    size = 16
    count = np.arange(1, size + 1)[:, None]
    previous = np.eye(size, k=-1)
    previous[0, 0] = 1
    sink = np.zeros((size, size))
    sink[:, 0] = 1
    known = {
        "uniform": np.tril(np.ones((size, size))) / count,
        "self": np.eye(size),
        "previous": previous,
        "sink": sink,
    }
    answer = ask(client, {f"matrices/{name}": one for name, one in known.items()}, causal="true", metrics="all")
    found = {result["name"]: result["summary"] for result in answer["results"]}
    assert found["uniform"]["entropy_norm"]["mean"] == pytest.approx([1], abs=1e-6)
    assert found["uniform"]["mean_distance_ratio"]["mean"] == pytest.approx([1], abs=1e-6)
    assert found["self"]["self_token"]["mean"] == [1]
    assert found["self"]["mean_distance"]["mean"] == [0]
    assert found["self"]["effective_keys"]["mean"] == [1]
    assert found["previous"]["previous_token"]["mean"] == [1]
    assert found["previous"]["mean_distance"]["mean"] == [1]
    assert found["previous"]["distance_profile"]["distances"] == list(range(size))
    assert found["previous"]["distance_profile"]["weights"][0][:3] == [0, 1, 0]
    assert found["sink"]["sink_mass_1"]["mean"] == found["sink"]["alpha_0"]["mean"] == [1]
    assert found["sink"]["is_sink"] == [True]
    assert answer["comparison"]["reference"] == "uniform"
    assert answer["comparison"]["against"].keys() == {"self", "previous", "sink"}


def test_an_induction_head_is_told_by_the_names_of_its_tokens(client: TestClient) -> None:
    tokens = ["a", "b", "c", "d"] * 2
    weights = np.zeros((8, 8))
    for i in range(8):
        weights[i, i - 3 if i >= 4 else 0] = 1
    document = {"matrices": {"head": weights.tolist()}, "tokens": tokens}
    answer = client.post(f"{PATH}?causal=true&metrics=induction,duplicate_token", json=document).json()
    summary = answer["results"][0]["summary"]
    assert summary["induction"] == {
        **summary["induction"],
        "mean": [1.0],
        "rows": [4],
        "uniform": pytest.approx([np.mean([1 / 5, 1 / 6, 1 / 7, 1 / 8])]),
    }
    assert summary["duplicate_token"]["mean"] == [0]
    assert "comparison" not in answer


def test_a_float16_copy_is_identical_and_a_row_that_does_not_sum_to_one_is_left_out(client: TestClient) -> None:
    weights = softmax(np.random.default_rng(0).normal(size=(2, 64, 64)), np.ones((64, 64), bool)).astype(np.float32)
    broken = weights.copy()
    broken[1, 5] *= 0.5
    arrays: dict[str, np.ndarray] = {
        "matrices/here": weights,
        "matrices/half": weights.astype(np.float16),
        "matrices/other": broken,
    }
    answer = ask(client, arrays)
    assert [result["tolerance"] for result in answer["results"]] == [1e-5, 2e-3, 1e-5]
    against = answer["comparison"]["against"]
    assert against["half"]["identical"] == [True, True]
    assert against["half"]["floor"]["tv"] == 2e-3
    assert against["other"]["rows_invalid"] == [0, 1]
    assert against["other"]["rows_counted"] == [64, 63]
    assert answer["results"][2]["summary"]["row_sum_error"] == pytest.approx([0, 0.5], abs=1e-5)
    unsure = ask(client, arrays, tolerance=0.5)
    assert unsure["comparison"]["against"]["other"]["rows_invalid"] == [0, 0]


def test_rows_with_sinks_are_divided_by_what_goes_to_keys(client: TestClient) -> None:
    weights = softmax(np.random.default_rng(1).normal(size=(9, 9)), np.ones((9, 9), bool)).astype(np.float32)
    arrays: dict[str, np.ndarray] = {"matrices/whole": weights, "matrices/rest": weights * np.float32(0.25)}
    plain = ask(client, arrays)
    assert plain["results"][1]["summary"]["rows_invalid"] == [9]
    answer = ask(client, arrays, sinks="true")
    rest = answer["results"][1]["summary"]
    assert rest["keyless_mass"]["mean"] == pytest.approx([0.75], abs=1e-6)
    assert rest["entropy"]["mean"] == pytest.approx(plain["results"][0]["summary"]["entropy"]["mean"], abs=1e-5)
    assert answer["comparison"]["against"]["rest"]["tv"]["mean"] == pytest.approx([0], abs=1e-6)


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(2, 12), heads=st.integers(1, 3))
def test_a_comparison_is_symmetric_and_bounded_and_nothing_where_both_are_equal(
    client: TestClient, seed: int, size: int, heads: int
) -> None:
    random = np.random.default_rng(seed)
    seen = np.ones((size, size), bool)
    a, b = (softmax(3 * random.normal(size=(heads, size, size)), seen).astype(np.float32) for _ in range(2))
    arrays = {"matrices/a": a, "matrices/b": b, "matrices/c": a}
    there = ask(client, arrays, metrics="jsd,tv,w1,argmax_agree")["comparison"]["against"]
    back = ask(client, arrays, metrics="jsd,tv,w1,argmax_agree", reference="b")["comparison"]["against"]
    for h in range(heads):
        for name, most in (("jsd", 1), ("tv", 1), ("w1", size - 1), ("argmax_agree", 1)):
            value = there["b"][name]["mean"][h]
            assert 0 <= value <= most
            assert back["a"][name]["mean"][h] == pytest.approx(value, abs=1e-6)
            assert there["c"][name]["mean"][h] == (1 if name == "argmax_agree" else 0)
        assert there["b"]["tv"]["mean"][h] <= there["b"]["w1"]["mean"][h] + 1e-6


@pytest.mark.parametrize("causal", [False, True])
def test_a_row_with_a_negative_weight_is_invalid(client: TestClient, causal: bool) -> None:
    rows = np.array([[0.5, 0.5, 0], [-1, 2, 0], [0.2, 0.3, 0.5]])
    if causal:
        rows[0] = [1, 0, 0]
        rows[2] = [0.2, 0.3, 0.5]
    other = np.full((3, 3), 1 / 3) if not causal else np.tril(np.ones((3, 3))) / np.arange(1, 4)[:, None]
    answer = ask(client, {"matrices/a": rows, "matrices/b": other}, metrics="all", causal=str(causal).lower())
    a, b = (result["summary"] for result in answer["results"])
    assert (a["rows_counted"], a["rows_invalid"]) == ([2], [1])
    assert b["rows_invalid"] == [0]
    assert 0 <= a["entropy"]["mean"][0] <= math.log(3)
    assert a["max_weight"]["rows"] == [2]
    kept = [i for i in (0, 2) if not causal or i]
    expected = {d: sum(np.diagonal(rows[[i]], i - d)[0] for i in kept if 0 <= i - d < 3) / len(kept)
                for d in a["distance_profile"]["distances"]}  # fmt: skip
    assert a["distance_profile"]["weights"] == [pytest.approx(list(expected.values()), abs=1e-6)]
    pair = answer["comparison"]["against"]["b"]
    assert (pair["rows_counted"], pair["rows_invalid"]) == ([2], [1])
    assert 0 <= pair["tv"]["mean"][0] <= 1


def test_a_matrix_of_negative_weights_only_says_why_nothing_is_told(client: TestClient) -> None:
    answer = ask(client, {"matrices/a": np.array([[-1.0, 2.0], [2.0, -1.0]])}, metrics="all")
    summary = answer["results"][0]["summary"]
    assert summary["rows_invalid"] == [2]
    assert summary["entropy"]["mean"] == [None]
    assert "a negative weight" in summary["entropy"]["reason"]


def test_a_negative_weight_that_is_masked_is_a_leak_only(client: TestClient) -> None:
    answer = ask(client, {"matrices/a": np.array([[1.0, -2.0], [0.5, 0.5]])}, metrics="mask_leak", causal="true")
    summary = answer["results"][0]["summary"]
    assert (summary["rows_invalid"], summary["mask_leak"]) == ([0], [2])


def test_all_formats_are_answered_alike(client: TestClient) -> None:
    random = np.random.default_rng(2)
    a, b = (softmax(random.normal(size=(2, 5, 5)), np.ones((5, 5), bool)).astype(np.float32) for _ in range(2))
    arrays = {"matrices/a": a, "matrices/b": b, "positions": np.arange(5) * 2.0}
    answers = [ask(client, arrays, kind) for kind in media.BINARY]
    document = {"matrices": {"a": a.tolist(), "b": b.tolist()}, "positions": [0, 2, 4, 6, 8]}
    answers.append(client.post(PATH, json=document).json())
    for answer in answers:
        del answer["timings"]
        for result in answer["results"]:
            del result["dtype"]
    assert answers[0] == answers[1] == answers[2]


# What is refused.


def test_shapes_that_differ_are_named_with_their_axis(client: TestClient) -> None:
    a = np.full((2, 4, 4), 0.25)
    status, detail, pointer = refused(client, {"matrices/a": a, "matrices/b": a[:, :, :3]})
    assert status == 422
    assert "[2, 4, 3]" in detail
    assert "[2, 4, 4]" in detail
    assert "keys (3 and 4)" in detail
    assert pointer == "/matrices/b"
    _, detail, _ = refused(client, {"matrices/a": a, "matrices/b": a[0]})
    assert "2 and 3 axes" in detail
    _, detail, pointer = refused(client, {"matrices/a": a, "scores/a": a[:1]})
    assert "heads (1 and 2)" in detail
    assert pointer == "/scores/a"


@pytest.mark.parametrize(
    ("arrays", "query", "words"),
    [
        ({"mask": np.ones(3)}, {}, "no matrix"),
        ({"matrices/a": np.ones(3)}, {}, "[queries, keys]"),
        ({"matrices/a": np.ones((2, 0))}, {}, "[queries, keys]"),
        ({"matrices/a": np.ones((2, 2)), "scores/b": np.ones((2, 2))}, {}, "unknown matrix 'b'"),
        ({"matrices/a": np.ones((2, 2)), "matrix": np.ones((2, 2))}, {}, "did you mean"),
        ({"matrices/a": np.ones((2, 2)), "positions": np.ones(3)}, {}, "3 query positions came for 2"),
        ({"matrices/a": np.ones((2, 2)), "tokens": np.array(["a"])}, {}, "1 names came"),
        ({"matrices/a": np.array([["x", "y"]])}, {}, "text"),
        ({"matrices/a": np.ones((2, 2))}, {"metrics": "jds"}, "did you mean jsd"),
        ({"matrices/a": np.ones((2, 2))}, {"reference": "b"}, "unknown matrix 'b'"),
        ({"matrices/a": np.ones((2, 2))}, {"tolerance": "2"}, "(0, 0.5]"),
        ({"matrices/a": np.ones((2, 2))}, {"metric": "jsd"}, "did you mean metrics"),
        ({f"matrices/{i}": np.ones((2, 2)) for i in range(17)}, {}, "at most 16"),
    ],
)
def test_what_is_wrong_is_said(
    client: TestClient, arrays: dict[str, np.ndarray], query: dict[str, str], words: str
) -> None:
    status, detail, _ = refused(client, arrays, **query)
    assert status == 422
    assert words in detail
