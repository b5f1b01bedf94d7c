"""Summaries and comparisons as a GPU's policy has them computed, padded and in common runs, on the CPU: each equal to
what it is alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.analysis.sharing import pair_job
from service.comparisons.metrics import DEFINITIONS
from service.comparisons.metrics import NAMES as OF_PAIRS
from service.engine.assembly import assemble, cut
from service.engine.gpu_policy import GpuPolicy
from service.engine.session import Sessions
from service.large import Bounds
from service.records import MATRICES, AttentionInput, AttentionOptions, ScoringResult, Timings
from service.scoring import Scoring
from service.selection import Selection
from service.summaries.metrics import NAMES as OF_ROWS
from service.tables import TableCache
from tests.service.engine.padded import (
    CATALOGUE,
    CAUSAL_ONLY,
    ENCODINGS,
    LEFT_ALONE,
    TOLERANCE,
    Request,
    Served,
    array,
    serving,
)

EVERYTHING = ("all",)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as both:
        yield both


def told(answer: ScoringResult) -> dict[str, Any]:
    """All that was found out about the matrices of an answer."""
    found: dict[str, Any] = {"comparison": answer.comparison}
    for one in answer.results:
        found[one.name] = {"summary": one.summary, "profile": one.profile, "nonfinite": one.nonfinite_cells}
    return found


def assert_alike(found: Any, expected: Any, at: str = "") -> None:
    """Equal but for rounding: numbers to `TOLERANCE`, in proportion to their array's largest where that is over 1.

    `w1` adds up over all keys what the weights differ by, which runs of other lengths round otherwise: it is held to so
    much of a tenth of the longest bucket here, and of equal weights to its own value below.
    """
    assert type(found) is type(expected), at
    if isinstance(expected, Mapping):
        assert found.keys() == expected.keys(), at
        for name, value in expected.items():
            assert_alike(found[name], value, f"{at}/{name}")
    elif isinstance(expected, list) and not all(isinstance(one, int | float | None) for one in expected):
        assert len(found) == len(expected), at
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_alike(one, other, f"{at}/{i}")
    elif isinstance(expected, str | bool | None):
        assert found == expected, at
    else:
        one, other = (np.array(value, dtype=float) for value in (found, expected))
        assert one.shape == other.shape, at
        assert (np.isfinite(one) == np.isfinite(other)).all(), at
        if other.size:
            scale = max(7.2 if "/w1/" in at else 1.0, float(np.abs(np.nan_to_num(other, posinf=0, neginf=0)).max()))
            np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE * scale, err_msg=at)


def asked(encoding: str, tokens: int, *, causal: bool = True, seed: int | None = None, **options: Any) -> Request:
    """Repeated tokens, so that there is something to find of them."""
    embeddings = array(tokens, 16, seed=tokens if seed is None else seed)
    embeddings[tokens // 2 :] = embeddings[: tokens - tokens // 2]
    known: dict[str, Any] = {"returns": ("summary",), "metrics": EVERYTHING, **options}
    return AttentionInput(embeddings=embeddings), AttentionOptions(encoding=encoding, heads=2, causal=causal, **known)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_metric_alone_and_padded_among_eight_is_equal(served: Served, encoding: str) -> None:
    causal = encoding in CAUSAL_ONLY or ENCODINGS.index(encoding) % 2 == 0
    other = "none" if encoding != "none" else "rope"
    requests = [
        asked(encoding, tokens, causal=causal, compare=(other,), returns=("summary", "comparison"))
        for tokens in (33, 34, 37, 40, 41, 45, 47, 48)
    ]
    expected = served.one_by_one(requests)
    for answer, alone in zip(served.together(requests), expected, strict=True):
        assert set(OF_ROWS) - {"distance_profile"} <= alone.results[0].summary.keys()  # type: ignore[union-attr]
        assert set(OF_PAIRS) <= alone.comparison["against"][other].keys()  # type: ignore[index]
        assert_alike(told(answer), told(alone))
    (answer,) = served.together(requests[2:3])
    assert_alike(told(answer), told(expected[2]))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_default_request_shares_runs(served: Served, encoding: str) -> None:
    causal = encoding in CAUSAL_ONLY or ENCODINGS.index(encoding) % 2 == 1
    lengths = (33, 34, 37, 40, 41, 45, 46, 47)
    requests = [asked(encoding, tokens, causal=causal, returns=None, metrics=()) for tokens in lengths]
    answers = served.together(requests)
    for answer, alone in zip(answers, served.one_by_one(requests), strict=True):
        assert_alike(told(answer), told(alone))
        for one, other in zip(answer.results, alone.results, strict=True):
            assert one.weights is not None
            assert other.weights is not None
            np.testing.assert_allclose(one.weights, other.weights, atol=TOLERANCE)
    assert {answer.timings.batch_jobs for answer in answers} == ({1} if encoding in LEFT_ALONE else {8})


def test_summaries_of_any_metrics_share_runs(served: Served) -> None:
    requests = [asked("rope", tokens) for tokens in range(33, 49)]
    assert {answer.timings.batch_jobs for answer in served.together(requests)} == {16}


def test_comparisons_of_one_request_and_of_others_share_runs(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, int]] = []
    compute = served.device.run

    def run(graph: Any, outputs: Any, masked: Any, feeds: Mapping[str, np.ndarray], *others: Any) -> Any:
        if graph.name == "analysis.pairs":
            runs.append((graph.name, len(feeds["weights_a"])))
        return compute(graph, outputs, masked, feeds, *others)

    requests = [asked("rope", tokens, compare=("all",), returns=("comparison",)) for tokens in (37, 40)]
    served.together(requests)  # what uniform attention has is known from then on
    monkeypatch.setattr(served.device, "run", run)
    served.together(requests)
    assert sum(jobs for _, jobs in runs) == 2 * (len(ENCODINGS) - 1)
    assert len(runs) < 8


@pytest.mark.parametrize("compare", [(), ("alibi", "rope-dynamic")])
def test_a_request_in_blocks_is_equal_too(served: Served, compare: tuple[str, ...]) -> None:
    """Its blocks are not padded; what compares them is."""
    bounds = Bounds(1 << 20, 1 << 22, block=2 * 40 * 7)
    blocks = Scoring(CATALOGUE, served.engine, TableCache(Sessions("cpu")), padding=GpuPolicy(), large=bounds)
    request = asked("rope", 40, compare=compare, returns=("weights", "summary", *(("comparison",) if compare else ())))
    request = replace(request[0], embeddings=np.stack([array(40, 16, seed=seed) for seed in range(3)])), request[1]
    assert blocks.large.takes(blocks.plan(*request))
    served.device.free.set()
    answer = served.runner.run(blocks.score(*request, Timings()))
    assert_alike(told(answer), told(served.one_by_one([request])[0]))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Any request of up to 70 tokens whose matrices are summarised, compared or both."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    heads, batch = draw(st.sampled_from([1, 2])), draw(st.sampled_from([None, None, None, 1, 3]))
    lead = () if batch is None else (batch,)
    causal = draw(st.booleans())
    names = ENCODINGS if causal else [name for name in ENCODINGS if name not in CAUSAL_ONLY]
    keys = queries = draw(st.integers(1, 70))
    vocabulary = random.standard_normal((12, heads * 4), dtype=np.float32)
    parts: dict[str, Any] = {}
    if draw(st.integers(0, 3)):
        parts["embeddings"] = vocabulary[random.integers(0, 12, (*lead, keys))]
        match draw(st.sampled_from(["none", "none", "later", "apart"])):
            case "later":
                parts["positions"] = 100.0 + np.arange(keys)
            case "apart":
                parts["positions"] = 2.0 * np.arange(keys)
        if batch is None and draw(st.booleans()):
            parts["tokens"] = [str(number) for number in random.integers(0, 9, keys)]
    else:
        queries = draw(st.integers(1, 70))
        parts["queries"] = vocabulary[random.integers(0, 12, (*lead, queries))]
        parts["keys"] = vocabulary[random.integers(0, 12, (*lead, keys))]
        if draw(st.booleans()):
            parts["query_positions"] = np.sort(random.integers(0, 90, queries)).astype(float)
    match draw(st.sampled_from(["none", "none", "padding", "keys", "pairs", "heads"])):
        case "padding":
            parts["mask"] = np.arange(keys) < draw(st.integers(1, keys))
        case "keys":
            parts["mask"] = random.random(keys) < 0.7
        case "pairs":
            parts["mask"] = random.random((1, queries, keys)) < 0.7
        case "heads":
            parts["mask"] = random.random((batch or 1, heads, queries, keys)) < 0.7
    encoding = draw(st.sampled_from(names))
    others = tuple(name for name in draw(st.lists(st.sampled_from(names), max_size=2)) if name != encoding)
    compare = tuple(dict.fromkeys(others))
    metrics = draw(st.sampled_from([(), EVERYTHING, ("induction", "tv"), ("distance_profile", "w1")]))
    if not compare:
        metrics = tuple(name for name in metrics if name not in OF_PAIRS)
    rows = draw(st.sampled_from([None, None, None, ("-1",), ("0:5",), ("::3",)]))
    options = AttentionOptions(
        encoding=encoding,
        compare=compare,
        heads=heads,
        causal=causal,
        returns=draw(st.sampled_from([("summary",), (*MATRICES, "summary"), ("weights", "summary")]))
        + (("comparison",) if compare else ()),
        metrics=metrics,
        rows=None if rows is None else Selection.of("rows", rows),
        head=draw(st.sampled_from([None, None, Selection.of("head", ("0",))])),
        top_k=draw(st.sampled_from([None, None, 1])),
    )
    return AttentionInput(**parts), options


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(requests(), min_size=9, max_size=9))
def test_any_nine_in_flight_are_each_equal_to_alone(served: Served, mix: list[Request]) -> None:
    for answer, alone in zip(served.together(mix), served.one_by_one(mix), strict=True):
        assert_alike(told(answer), told(alone))


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests(), st.lists(st.integers(1, 70), min_size=8, max_size=8))
def test_any_request_among_eight_like_it_of_any_length_is_equal_to_alone(
    served: Served, request: Request, lengths: list[int]
) -> None:
    mix = [
        request,
        *((AttentionInput(embeddings=array(n, 8, seed=n)), replace(request[1], rows=None)) for n in lengths),
    ]
    mix = [(input, replace(options, heads=2)) if i else (input, options) for i, (input, options) in enumerate(mix)]
    for answer, alone in zip(served.together(mix), served.one_by_one(mix), strict=True):
        assert_alike(told(answer), told(alone))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.booleans(), st.integers(0, 99))
def test_padding_changes_nothing_about_equal_matrices(
    served: Served, queries: int, keys: int, masked: bool, seed: int
) -> None:
    """Least of all `w1`, of which rounding leaves something for each key that comes after the last."""
    analyst, sessions = served.alone.analyst, served.device.sessions
    random = np.random.default_rng(seed)
    scores = random.standard_normal((2, 2, 3, queries, keys), dtype=np.float32)
    visible = random.random((2, 1, queries, keys)) < 0.8 if masked else None
    weights = np.exp(scores) if visible is None else np.where(visible, np.exp(scores), 0)
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-9)
    outputs = tuple(sorted({"counted", *(name for one in DEFINITIONS.values() for name in one.outputs)}))

    def found(padded: tuple[int, int] | None) -> dict[str, np.ndarray]:
        given = {
            f"{name}_{side}": of[i]
            for name, of in (("weights", weights), ("scores", scores))
            for i, side in enumerate("ab")
        }
        job = pair_job(
            analyst.pairs, given, outputs, tolerance=1e-5, top=min(3, keys), visible=visible, sinks=(), padded=padded
        )
        (part,) = cut(sessions.run(job.graph, outputs, job.masked, assemble([job]), job.switches), [job])
        return part

    alone, bucket = found(None), found((48, 64))
    for name, numbers in alone.items():
        assert numbers.shape == (2, 3, queries), name
        np.testing.assert_allclose(bucket[name], numbers, atol=1e-6 * max(1, np.abs(numbers).max()), err_msg=name)
