"""What `POST /attention` says of its matrices, beside loops over the matrices that it returns; also in blocks."""

from __future__ import annotations

import asyncio
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from service.engine.engine import Engine
from service.engine.session import Sessions
from service.large import Bounds
from service.records import MATRICES, AttentionInput, AttentionOptions, ScoringResult, Timings
from service.scoring import Scoring
from service.selection import Selection
from service.summaries.lists import plain
from service.tables import TableCache
from service.wire import media
from tests.service.analysis import loops

ENCODINGS = ("rope", "alibi", "t5", "none", "sinusoidal", "kerple", "sandwich", "tupe", "shaw")


@dataclass
class Case:
    """A random request, and what it is: one batch, several heads, self-attention."""

    query: dict[str, Any]
    body: dict[str, Any]
    visible: np.ndarray
    padding: np.ndarray
    positions: np.ndarray
    tokens: list[list[object]]
    top: int


def random_case(seed: int) -> Case:
    random = np.random.default_rng(seed)
    batch, heads = (int(n) for n in random.integers(1, 4, 2))
    tokens = int(random.choice([1, 2, 3, 5, 8, 17, 33, 66]))
    x = random.normal(size=(batch, tokens, 4 * heads)) * random.choice([0.1, 1.0, 3.0])
    again = random.random((batch, tokens)) < 0.3
    for b, i in zip(*np.nonzero(again), strict=True):
        x[b, i] = x[b, random.integers(0, tokens)]
    x = x.astype(np.float32)
    causal = bool(random.random() < 0.5)
    first, second = (str(name) for name in random.choice(ENCODINGS, 2, replace=False))
    query = {"encoding": first, "compare": second, "heads": heads, "causal": str(causal).lower()}
    visible = np.ones((batch, heads, tokens, tokens), bool)
    if causal:
        visible &= np.tril(np.ones((tokens, tokens), bool))
    body: dict[str, Any] = {"embeddings": x.tolist()}
    padding = np.zeros((batch, tokens), bool)
    kind = random.integers(0, 6)
    if kind == 0:
        padding = random.random((batch, tokens)) < 0.3
        body["mask"] = (~padding).astype(int).tolist()
        visible &= ~padding[:, None, None, :]
    elif kind == 1:
        mask = random.random((1, tokens, tokens)) < 0.6
        body["mask"] = mask.astype(int).tolist()
        visible &= mask[:, None]
    elif kind == 2:
        mask = random.random((batch, heads, tokens, tokens)) < 0.6
        body["mask"] = mask.astype(int).tolist()
        visible &= mask
    names: list[list[object]] = [[row.tobytes() for row in one] for one in x]
    if random.random() < 0.3:
        body["tokens"] = [str(name) for name in random.choice(list("abc"), tokens)]
        names = [list(body["tokens"])] * batch
    top = int(random.integers(1, tokens + 1)) if random.random() < 0.2 else 0
    return Case(query, body, visible, padding, np.arange(float(tokens)), names, top)


def check(case: Case, matrices: list[dict[str, np.ndarray]], answer: dict[str, Any], allowed: float = 1e-5) -> int:
    """`matrices` have all rows and heads. Returns how many numbers were compared."""
    compared = 0
    for result, arrays in zip(answer["results"], matrices, strict=True):
        for b, h in np.ndindex(*arrays["weights"].shape[:2]):
            weights, seen = arrays["weights"][b, h].astype(np.float64), case.visible[b, h]
            expected = loops.summary(weights, seen, list(case.padding[b]), case.positions, case.tokens[b])
            found = result["summary"]
            rows = loops.counted(weights, seen, list(case.padding[b]))
            assert found["rows_counted"][b][h] == len(rows)
            assert found["rows_padding"][b][h] == case.padding[b].sum()
            assert found["rows_invalid"][b][h] == len(weights) - len(rows) - case.padding[b].sum()
            assert found["rows_forced"][b][h] == sum(seen[i].sum() == 1 for i in rows)
            assert found["mask_leak"][b][h] == found["nonfinite_cells"][b][h] == 0
            for name, metric in found.items():
                if not isinstance(metric, dict) or "mean" not in metric or name == "mean_distance_ratio":
                    continue
                numbers = expected.get(name, [])
                assert metric["rows"][b][h] == len(numbers), name
                if not numbers:
                    assert metric["mean"][b][h] is None
                    assert metric["reason"], name
                    continue
                size = max(1.0, abs(float(np.mean(numbers))))
                assert abs(metric["mean"][b][h] - np.mean(numbers)) <= allowed * size, name
                assert abs(metric["p90"][b][h] - np.percentile(numbers, 90)) <= 2 * allowed * size, name
                if "uniform" in metric:
                    even = float(np.mean(expected[f"uniform.{name}"]))
                    assert abs(metric["uniform"][b][h] - even) <= allowed * max(1.0, even), name
                compared += 1
            shown = found["distance_profile"]
            wanted = loops.profile(weights, seen, list(case.padding[b]))
            if wanted:
                total = dict(zip(shown["distances"], shown["weights"][b][h], strict=True))
                assert all(abs(total.get(d, 0.0) - value) <= allowed for d, value in wanted.items())
                assert abs(sum(total.values()) - 1) <= allowed
    reference, other = matrices
    (against,) = answer["comparison"]["against"].values()
    for b, h in np.ndindex(*reference["weights"].shape[:2]):
        a, c = (one["weights"][b, h].astype(np.float64) for one in (reference, other))
        scores = reference["scores"][b, h].astype(np.float64), other["scores"][b, h].astype(np.float64)
        seen, padding = case.visible[b, h], list(case.padding[b])
        expected = loops.comparison(a, c, scores, seen, padding, case.top or 8)
        for name in ("jsd", "tv", "w1", "argmax_agree", "topk_overlap", "logit_rmse", "logit_r"):
            metric, numbers = against[name], expected.get(name, [])
            if name == "logit_r" and metric["rows"][b][h] != len(numbers):
                continue  # scores that hardly vary
            assert metric["rows"][b][h] == len(numbers), name
            if not numbers:
                assert metric["mean"][b][h] is None
                assert metric["reason"], name
                continue
            size = max(1.0, abs(float(np.mean(numbers))))
            assert abs(metric["mean"][b][h] - np.mean(numbers)) <= allowed * size, (name, np.mean(numbers))
            compared += 1
        if expected:
            wanted_norm = loops.frobenius(a, c, seen, padding)
            assert abs(against["frobenius_rel"]["mean"][b][h] - wanted_norm) <= allowed * max(1.0, wanted_norm)
    return compared


@pytest.mark.parametrize("group", range(10))
def test_every_metric_over_http_is_what_loops_and_scipy_give(client: TestClient, group: int) -> None:
    compared = 0
    for seed in range(20 * group, 20 * group + 20):
        case = random_case(seed)
        query = {**case.query, "return": "weights,scores,summary,comparison", "metrics": "all"}
        matrices = npz(client, {**case.query, "return": "weights,scores"}, case.body)
        if case.top:
            query["top_k"] = case.top
        response = client.post("/attention", params=query, json=case.body, headers={"accept": media.NPZ})
        assert response.status_code == 200, response.text
        with np.load(io.BytesIO(response.content)) as file:
            answer = json.loads(file["metadata"].tobytes())
            for result in answer["results"]:
                of = f"{result['name']}/summary/distance_profile/"
                arrays = {name.removeprefix(of): file[name].tolist() for name in file.files if name.startswith(of)}
                result["summary"]["distance_profile"] = arrays
        compared += check(case, matrices, answer)
    assert compared > 500


def npz(client: TestClient, query: dict[str, Any], body: dict[str, Any]) -> list[dict[str, np.ndarray]]:
    response = client.post("/attention", params=query, json=body, headers={"accept": media.NPZ})
    assert response.status_code == 200, response.text
    with np.load(io.BytesIO(response.content)) as file:
        names = [query["encoding"], query["compare"]]
        return [{kind: file[f"{name}/{kind}"] for kind in ("weights", "scores")} for name in names]


@pytest.mark.parametrize(("sink", "share"), [(14, 2 * math.exp(-14)), (60, 2 * math.exp(-60)), (200, 0)])
def test_what_sinks_leave_of_a_row_is_told_however_little(client: TestClient, sink: float, share: float) -> None:
    """Two equal keys beside a sink of this score."""
    body = {"embeddings": [[0, 0], [0, 0]], "parameters": {"none.sinks": [sink]}}
    query = {"encoding": "none", "compare": "alibi", "return": "summary,comparison", "metrics": "all"}
    answer = client.post("/attention", params=query, json=body).json()
    summary, pair = answer["results"][0]["summary"], answer["comparison"]["against"]["alibi"]
    counted = int(share > 0)
    assert summary["rows_counted"] == [2 * counted]
    assert summary["rows_invalid"] == [2 - 2 * counted]
    assert summary["keyless_mass"]["mean"] == pytest.approx([1 - share / (1 + share)], abs=1e-7)
    assert summary["keyless_mass"]["rows"] == [2]
    if counted:
        assert summary["entropy_norm"]["mean"] == pytest.approx([1], abs=1e-6)
        assert summary["distance_profile"]["weights"] == [pytest.approx([0.25, 0.5, 0.25], abs=1e-6)]
        assert pair["rows_counted"] == [2]
    else:
        assert "goes to learned sinks" in summary["entropy"]["reason"]
        assert "sinks" in pair["tv"]["reason"]


# In blocks of rows.


class Both:
    """The same scoring twice: in one piece, and in blocks of a few rows."""

    def __init__(self, runner: asyncio.Runner, application: FastAPI) -> None:
        sessions = Sessions("cpu")
        self.runner = runner
        self.engine = Engine(sessions, workers=2)
        runner.run(self.engine.start())
        catalogue = application.state.service.catalogue
        self.scorings = [
            Scoring(catalogue, self.engine, TableCache(sessions), large=Bounds(1 << 27, 1 << 27, block=block))
            for block in (1 << 27, 400)
        ]

    def __call__(self, input: AttentionInput, **options: Any) -> tuple[ScoringResult, ScoringResult]:
        asked = AttentionOptions(**options)
        one, other = (self.runner.run(scoring.score(input, asked, Timings())) for scoring in self.scorings)
        return one, other


@pytest.fixture(scope="module")
def both(application: FastAPI) -> Iterator[Both]:
    with asyncio.Runner() as runner:
        both = Both(runner, application)
        yield both
        runner.run(both.engine.stop())


@pytest.mark.parametrize("seed", range(40))
def test_blocks_of_rows_say_what_the_whole_says(both: Both, seed: int) -> None:
    case = random_case(1000 + seed)
    random = np.random.default_rng(seed)
    x = np.array(case.body["embeddings"], np.float32)
    mask = np.array(case.body["mask"]) if "mask" in case.body else None
    returns = tuple(n for n in MATRICES if random.random() < 0.3)
    one, other = both(
        AttentionInput(embeddings=x, mask=mask, tokens=case.body.get("tokens")),
        encoding=case.query["encoding"],
        compare=(case.query["compare"],),
        heads=case.query["heads"],
        causal=case.query["causal"] == "true",
        returns=(*returns, "summary", *(["comparison"] if random.random() < 0.7 else [])),
        metrics=("all",) if random.random() < 0.7 else (),
        top_k=case.top or None,
    )
    assert (one.comparison is None) == (other.comparison is None)
    assert close(plain(one.comparison or {}), plain(other.comparison or {}))
    for a, b in zip(one.results, other.results, strict=True):
        assert close(plain(a.summary or {}), plain(b.summary or {}))
        assert close(plain(a.profile or {}), plain(b.profile or {}))
        assert (a.weights is None) == (b.weights is None) == ("weights" not in returns or bool(case.top))


@pytest.mark.parametrize("rows", ["0,3,4,30,7", "::2", "20:"])
@pytest.mark.parametrize("compared", [True, False])
def test_blocks_of_picked_rows_have_the_profile_of_the_whole(both: Both, rows: str, compared: bool) -> None:
    random = np.random.default_rng(5)
    one, other = both(
        AttentionInput(
            embeddings=random.normal(size=(2, 33, 8)).astype(np.float32),
            mask=random.random((2, 33)) < 0.8,
            parameters={"none.sinks": np.array([3.0, 0.0])},
        ),
        encoding="rope",
        compare=("none",),
        heads=2,
        causal=True,
        rows=Selection.of("rows", rows.split(",")),
        returns=("summary", *(["comparison"] if compared else [])),
        metrics=("all",),
    )
    assert close(plain(one.comparison or {}), plain(other.comparison or {}))
    for a, b in zip(one.results, other.results, strict=True):
        assert a.profile is not None
        assert close(plain(a.profile), plain(b.profile or {}))
        assert plain(a.profile)["weights"][0][0]
        assert np.nansum(a.profile["weights"], axis=-1) == pytest.approx(1, abs=1e-5)


def close(a: Any, b: Any) -> bool:
    """Equal but for rounding."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b or (isinstance(a, float) and math.isclose(a, b, rel_tol=2e-5, abs_tol=2e-6)))
