"""Requests that are answered straight from the socket have the answers of those that are not."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest

from service.engine.policy import CpuPolicy
from service.engine.session import Sessions
from service.engine.share import Share
from service.errors import Overloaded
from service.exchange import Exchange
from service.express.heads import AGAIN, PATIENCE, REMEMBERED, ROUTINES
from service.express.spent import Spent
from service.records import Timings
from service.wire import media
from service.wire.answer import timings_text
from tests.service import counts, samples
from tests.service.doors import QUERY, Connection, Door, arrays, embeddings, metadata, names, opened, parts, request
from tests.service.process import Process, serving


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with opened() as door:
        yield door


@pytest.mark.parametrize(
    "query",
    [
        "return=weights,scores",
        QUERY,
        "heads=4&causal=true&return=weights,scores",
        "encoding=t5&return=weights,scores,terms,output",
        "encoding=alibi&causal=true&heads=2&return=output",
        "encoding=cope&heads=2&causal=true&return=weights,scores",
        "heads=2&rows=-1&return=weights",
        "heads=2&head=1&return=weights,output",
        "heads=2&top_k=3&return=weights,scores",
        "heads=2&causal=true&top_k=8&return=weights,terms",
        "rope.theta=500&return=scores",
        "none.softcap=2&encoding=none&return=weights",
        "",
        "return=summary&heads=2",
        "encoding=alibi&heads=4&causal=true",
        "encoding=t5&rows=2:4&return=summary&metrics=entropy,sink_mass_1,local_mass_4,nonfinite_cells",
        "heads=2&top_k=3",
    ],
)
@pytest.mark.parametrize("shape", [(9, 8), (3, 9, 8), (1, 1, 8)])
@pytest.mark.parametrize("accept", [media.SAFETENSORS, media.NPZ])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_answer_is_the_same(door: Door, query: str, shape: tuple[int, ...], accept: str, dtype: str) -> None:
    if dtype == "float16" and "return=summary" in query:
        pytest.skip("no matrices")
    query = f"{query}&dtype={dtype}".lstrip("&")
    if "top_k=8" in query and shape[-2] < 8:
        pytest.skip("fewer keys")
    bodies = [samples.npy(embeddings(*shape, seed=seed)) for seed in range(3)]
    if ("top_k" in query or "rows=2" in query) and shape[-2] < 3:
        pytest.skip("fewer keys")
    expected = [door.long(request(body, query, accept=accept)) for body in bodies]
    for _ in range(3):  # as it comes, then by what was learnt of the one before
        for body, (status, headers, content) in zip(bodies, expected, strict=True):
            (answer,) = door.short(request(body, query, accept=accept)) or [(0, {}, b"")]
            assert answer[0] == status == 200
            assert set(answer[1]) == {*headers, "date"}
            assert answer[1]["content-type"] == headers["content-type"] == accept
            assert metadata(accept, answer[2]) == metadata(accept, content)
            found, wanted = arrays(accept, answer[2]), arrays(accept, content)
            assert names(accept, answer[2]) == names(accept, content)
            for name, array in wanted.items():
                assert found[name].dtype == array.dtype
                np.testing.assert_array_equal(found[name], array)


def test_those_of_one_turn_share_a_run_and_each_gets_its_own(door: Door) -> None:
    bodies = [samples.npy(embeddings(12, 8, seed=seed)) for seed in range(20)]
    expected = [door.long(request(body)) for body in bodies]
    for _ in range(2):
        answers = door.short(*map(request, bodies))
        assert answers is not None
        for (_, _, content), (_, _, wanted) in zip(answers, expected, strict=True):
            weights, other = (arrays(media.SAFETENSORS, one)["rope/weights"] for one in (content, wanted))
            np.testing.assert_allclose(weights, other, rtol=0, atol=1e-6)
        assert len({headers["x-request-id"] for _, headers, _ in answers}) == 20
        content = answers[0][2]
        batch = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["metadata"]
        assert json.loads(batch)["timings"]["batch_jobs"] > 1


def test_those_of_one_turn_are_as_many_runs_as_their_cells_need(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """BentoML#3710: batches were over their limit."""
    monkeypatch.setattr(CpuPolicy, "share", lambda self, job: Share(64, 5 * job.cells + 1))
    bodies = [samples.npy(embeddings(12, 8, seed=seed)) for seed in range(12)]
    door.long(request(bodies[0]))
    assert door.short(request(bodies[0])) is not None
    before = counts.parse(generate_latest(door.service.telemetry.registry).decode())
    assert door.short(*map(request, bodies)) is not None
    after = counts.parse(generate_latest(door.service.telemetry.registry).decode())
    assert counts.changes(before, after, "attention_batches_total") == {("rope", "full"): 2, ("rope", "idle"): 1}
    assert counts.changes(before, after, "attention_batch_requests_sum") == {("rope",): 12}


def test_a_body_of_another_format_is_taken(door: Door) -> None:
    body = samples.tensors(embeddings=embeddings(7, 8))
    sent = request(body, kind=media.SAFETENSORS)
    _, _, wanted = door.long(sent)
    for _ in range(2):
        (answer,) = door.short(sent) or [(0, {}, b"")]
        np.testing.assert_array_equal(
            arrays(media.SAFETENSORS, answer[2])["rope/weights"], arrays(media.SAFETENSORS, wanted)["rope/weights"]
        )


@pytest.mark.parametrize("accept", [media.JSON, media.SAFETENSORS])
@pytest.mark.parametrize(
    "query",
    [
        QUERY,
        "encoding=t5&return=weights,scores,terms,output",
        "rows=-1&return=scores",
        "",
        "causal=true&return=summary",
        "encoding=fire@own&return=weights,summary",
    ],
)
def test_answers_that_come_again_have_a_template(door: Door, accept: str, query: str) -> None:
    sent = request(samples.npy(embeddings(6, 8)), query, accept=accept)
    door.long(sent)
    for _ in range(3):
        assert door.short(sent) is not None
    (head,) = (one for data, one in door.express.heads._heads.items() if sent.startswith(data))
    (routine,) = head.routines.values()
    assert routine.template is not None


def test_json_is_answered_as_the_long_way_answers_it(door: Door) -> None:
    def read(content: bytes) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(content)
        assert list(document)[-1] == "timings"
        timings = document.pop("timings")
        assert list(timings)[-1] == "batch_jobs"
        return document

    for query in (
        QUERY,
        "encoding=t5&return=weights,scores,terms,output",
        "heads=2&rows=-1&return=weights",
        "top_k=2&return=weights",
        "encoding=kerple&heads=2",
        "causal=true&heads=2&return=summary",
    ):
        for shape in ((9, 8), (2, 9, 8)):
            for kind in (media.JSON, media.NPY):
                sent = []
                for seed in range(4):
                    numbers = embeddings(*shape, seed=seed)
                    text = json.dumps({"embeddings": numbers.astype(float).tolist()})
                    body = text.encode().ljust(6000) if kind == media.JSON else samples.npy(numbers)
                    sent.append(request(body, query, accept=media.JSON, kind=kind))
                expected = [read(door.long(one)[2]) for one in sent]
                for _ in range(2):
                    alone = [door.short(one) for one in sent]
                    assert [read((one or [(0, {}, b"")])[0][2]) for one in alone] == expected
                together = door.short(*sent)
                assert together is not None
                for (_, headers, content), due in zip(together, expected, strict=True):
                    assert headers["content-type"] == media.JSON
                    found = read(content)
                    for one, other in zip(found.pop("results"), due["results"], strict=True):
                        for name in ("weights", "scores", "output"):
                            if name in other:
                                np.testing.assert_allclose(one.pop(name), other.pop(name), rtol=1e-5, atol=1e-5)
                        assert close(one.pop("summary", None), other.pop("summary", None))
                    due.pop("results")
                    assert found == due


def close(a: Any, b: Any) -> bool:
    """Equal but for rounding."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b or (isinstance(a, float) and abs(a - b) < 1e-5 * max(1.0, abs(a))))


@pytest.mark.parametrize("accept", [media.JSON, media.SAFETENSORS])
def test_what_one_summary_cannot_say_is_said_of_no_other_in_its_run(door: Door, accept: str) -> None:
    """One embedding so large that its own scores are infinite: rows of that request are no distribution."""
    inputs = [embeddings(6, 8, seed=seed) for seed in range(6)]
    inputs[3][1] = 1e30
    sent = [request(samples.npy(one), "causal=true", accept=accept) for one in inputs]
    expected = [door.long(one)[2] for one in sent]
    for _ in range(3):
        answers = door.short(*sent)
        assert answers is not None
        for i, (wanted, (_, _, content)) in enumerate(zip(expected, answers, strict=True)):
            found, due = (
                json.loads(one)["results"][0] if accept == media.JSON else metadata(accept, one)["results"][0]
                for one in (content, wanted)
            )
            assert close(found["summary"], due["summary"])
            assert found["nonfinite_cells"] == due["nonfinite_cells"]
            assert (found["nonfinite_cells"] > 0) == (i == 3)
            assert ("reason" in found["summary"]["first_token"]) == ("reason" in due["summary"]["first_token"])


@pytest.mark.parametrize("query", ["metrics=all", "metrics=induction&return=summary", "compare=alibi"])
def test_summaries_that_take_more_than_their_run_go_the_long_way(door: Door, query: str) -> None:
    sent = request(samples.npy(embeddings(6, 8)), query)
    assert door.long(sent)[0] == 200
    assert all(door.short(sent) is None for _ in range(3))


@pytest.mark.parametrize("name", ["mask", "tokens", "positions"])
def test_json_that_has_more_than_embeddings_goes_the_long_way(door: Door, name: str) -> None:
    def body(more: Any) -> bytes:
        return json.dumps({"embeddings": embeddings(3, 4).tolist(), **more}).encode().ljust(600)

    more = {name: {"mask": [1, 1, 0], "tokens": ["a", "b", "c"], "positions": [0, 1, 5]}[name]}
    sent = request(body({}), QUERY, accept=media.JSON, kind=media.JSON)
    door.long(sent)
    for _ in range(3):
        assert door.short(sent) is not None
        assert door.short(request(body(more), QUERY, accept=media.JSON, kind=media.JSON)) is None


def test_what_has_a_template_says_where_its_time_went_as_everything_else_does() -> None:
    decode, queue, assembly, compute, serialize = 0.001234, 0.00005, 2e-7, 0.0123, 0.000009
    timings = Timings(decode, queue, assembly, compute, 0.0, serialize, 7)
    spent = Spent(assembly, compute, 7)
    assert spent.text(decode, queue) == timings_text(timings)
    exchange = Exchange("id", "/attention", began=time.perf_counter() - 5, timings=timings)
    told, total = exchange.server_timing.rsplit("=", 1)
    assert spent.header(decode, queue, serialize, float(total) / 1e3) == f"{told}={total}"


def test_a_client_that_has_left_is_counted_and_not_computed(door: Door) -> None:
    def read() -> dict[counts.Key, float]:
        return counts.parse(generate_latest(door.service.telemetry.registry).decode())

    sent = request(GOOD, "encoding=kerple&return=weights,scores")
    door.long(sent)
    assert door.short(sent) is not None
    before = read()
    here, gone = Connection(), Connection()
    told: list[tuple[Exchange, float]] = []

    async def main() -> tuple[float, float]:
        began = time.perf_counter()
        assert door.express.take(gone, sent)
        taken = time.perf_counter()
        assert door.express.take(here, sent)
        gone.gone = True
        await asyncio.sleep(0)
        return began, taken

    door.service.telemetry.listeners.append(lambda exchange, seconds: told.append((exchange, seconds)))
    try:
        began, taken = door.runner.run(main())
    finally:
        door.service.telemetry.listeners.pop()
    # Those who write of it, the log and traces, learn which request it was and when it came.
    (left, seconds), (answered, _) = told
    assert (left.status, left.reason, left.encoding, left.tokens) == (499, "cancelled", "kerple", answered.tokens)
    assert left.request_id
    assert left.request_id != answered.request_id == parts(here.written)[1]["x-request-id"]
    assert began <= left.began <= taken
    assert 0 <= seconds <= time.perf_counter() - began
    assert gone.written == b""
    assert parts(here.written)[0] == 200
    after = read()
    changes = counts.changes(before, after, "attention_requests_total")
    assert changes == {("kerple", "/attention", "200"): 1, ("kerple", "/attention", "499"): 1}
    assert counts.changes(before, after, "attention_batch_requests_sum") == {("kerple",): 1}
    assert counts.changes(before, after, "attention_response_bytes_count") == {("/attention", "safetensors"): 1}
    assert door.service.lifecycle.inflight == 0


class Slow(Connection):
    """Its client takes nothing at first."""

    def reply(self, pieces: list[Any], *, close: bool) -> None:
        super().reply(pieces, close=close)
        self.sending.waits(len(self.written))


def test_answers_that_wait_for_their_clients_are_counted_as_what_became_of_them(door: Door) -> None:
    def read() -> dict[counts.Key, float]:
        return counts.parse(generate_latest(door.service.telemetry.registry).decode())

    sent = request(samples.npy(np.ones((96, 16), np.float32)), "encoding=kerple&heads=8&return=weights,scores")
    door.long(sent)
    assert door.short(sent) is not None
    before = read()
    slow, leaving, here = Slow(), Slow(), Connection()

    async def main() -> None:
        for one in (slow, leaving, here):
            assert door.express.take(one, sent)
        await asyncio.sleep(0)
        assert counts.changes(before, read(), "attention_requests_total") == {("kerple", "/attention", "200"): 1}
        assert door.service.lifecycle.inflight == 2
        leaving.sending.waits(1000)
        leaving.sending.lose(broken=True)
        slow.sending.taken()
        await asyncio.sleep(0.01)

    door.runner.run(main())
    changes = counts.changes(before, read(), "attention_requests_total")
    assert changes == {("kerple", "/attention", "200"): 2, ("kerple", "/attention", "499"): 1}
    assert counts.changes(before, read(), "attention_sequences_total") == {("kerple",): 2}
    size = len(parts(here.written)[2])
    written = counts.changes(before, read(), "attention_response_bytes_sum")
    assert written == {("/attention", "safetensors"): 3 * size - 1000}
    assert door.service.lifecycle.inflight == 0


@pytest.mark.parametrize("fault", ["no room", "a run that raises"])
def test_a_client_that_has_left_is_counted_where_its_request_cannot_be_run_here(
    door: Door, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are read again, and it cannot be: nothing of a closed connection is."""

    def read() -> dict[counts.Key, float]:
        return counts.parse(generate_latest(door.service.telemetry.registry).decode())

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError

    sent = request(GOOD, "encoding=kerple&return=weights,scores&dtype=float16")
    door.long(sent)
    assert door.short(sent) is not None
    before = read()
    here, gone = Connection(), Connection()

    async def main() -> None:
        assert door.express.take(here, sent)
        assert door.express.take(gone, sent)
        gone.gone = True
        if fault == "no room":
            monkeypatch.setattr(door.express.engine, "room", lambda job: 0)
        else:
            monkeypatch.setattr(door.express.engine, "run_at_once", fail)
        await asyncio.sleep(0)

    door.runner.run(main())
    assert here.declined == sent
    assert gone.declined is None
    moved = counts.changes(before, read(), "attention_requests_total")
    assert moved == {("kerple", "/attention", "499"): 1}
    assert door.service.lifecycle.inflight == 0


def test_one_wrong_request_among_many_goes_the_long_way_alone(door: Door) -> None:
    door.long(request(GOOD))
    assert door.short(request(GOOD)) is not None
    connections = [Connection() for _ in range(5)]
    bodies = [samples.npy(NAN) if i == 2 else GOOD for i in range(5)]

    async def main() -> None:
        for one, body in zip(connections, bodies, strict=True):
            assert door.express.take(one, request(body))
        await asyncio.sleep(0)

    door.runner.run(main())
    assert connections[2].declined == request(bodies[2])
    assert [parts(one.written)[0] for i, one in enumerate(connections) if i != 2] == [200] * 4


def test_a_head_of_which_nothing_can_be_taken_is_looked_at_seldom(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = request(GOOD, "return=weights&arrays=base64", accept=media.JSON)
    door.long(sent)
    for _ in range(PATIENCE + 1):
        assert door.short(sent) is None
    (head,) = (one for one in door.express.heads._heads.values() if b"arrays=base64&" in one.said[0] + b"&")
    assert head.hopeless
    looks = 0
    find = door.express._find

    def counting(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return find(*arguments)

    monkeypatch.setattr(door.express, "_find", counting)
    for _ in range(3 * AGAIN):
        assert door.short(sent) is None
    assert looks == 3


def test_what_needs_a_worker_is_refused_unread_where_the_queue_is_full(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only that, and only then."""

    def read() -> dict[counts.Key, float]:
        return counts.parse(generate_latest(door.service.telemetry.registry).decode())

    query, body = "heads=8&encoding=kerple&return=output&dtype=float16", samples.npy(embeddings(600, 16))
    sent, small = request(body, query), request(GOOD)
    assert door.long(sent)[0] == door.long(small)[0] == 200
    assert door.short(small) is not None
    assert door.short(sent) is None
    asked: list[tuple[int, int]] = []

    def full(jobs: int, cells: int) -> Overloaded:
        asked.append((jobs, cells))
        return Overloaded("it is full", retry_after=2.5, queued_jobs=7)

    monkeypatch.setattr(door.service.engine, "refusal", full)
    before = read()
    for _ in range(PATIENCE + 4):  # also once the head is not looked at any more
        ((status, headers, content),) = door.short(sent) or [(0, {}, b"")]
        assert status == 429
        assert headers["retry-after"] == "3"
        problem = json.loads(content)
        assert problem["detail"] == "it is full"
        assert problem["queued_jobs"] == 7
        assert problem["request_id"] == headers["x-request-id"]
        assert headers["content-type"] == media.PROBLEM
    assert set(asked) == {(1, 8 * 600 * 600)}
    assert ((door.short(small) or [(0, {}, b"")])[0])[0] == 200
    after = read()
    assert counts.changes(before, after, "attention_requests_total") == {
        ("kerple", "/attention", "429"): PATIENCE + 4,
        ("rope", "/attention", "200"): 1,
    }
    assert counts.changes(before, after, "attention_rejected_total") == {("queue_full",): PATIENCE + 4}
    assert counts.total(after, "attention_inflight_requests") == 0
    assert door.express.expects(sent[:400]) == len(sent), "the rest is waited for, to be thrown away"
    monkeypatch.undo()
    assert door.express.expects(sent[:400]) is None
    assert door.short(sent) is None


NAN = embeddings(9, 8)
NAN[3, 4] = np.nan
GOOD = samples.npy(embeddings(9, 8))


@pytest.mark.parametrize(
    "body",
    [
        samples.npy(NAN),
        samples.npy(np.full((9, 8), np.inf, np.float32)),
        b"\x93NUMPX" + GOOD[6:],
        GOOD[:8] + b"\xff\xff" + GOOD[10:],
        bytes(len(GOOD)),
        samples.npy(embeddings(8, 9)),
        samples.npy(embeddings(36, 1, 2)),
    ],
)
def test_what_is_wrong_or_new_goes_the_long_way(door: Door, body: bytes) -> None:
    for _ in range(3):
        door.long(request(GOOD))
        assert door.short(request(GOOD)) is not None
    body = body[: len(GOOD)]
    assert len(body) == len(GOOD)
    assert door.short(request(body)) is None
    assert door.short(request(GOOD)) is not None


def test_large_numbers_that_are_finite_are_taken(door: Door) -> None:
    """Though their squares are not."""
    body = samples.npy(np.full((9, 8), 1e30, np.float32))
    _, _, wanted = door.long(request(body, "encoding=none&return=scores"))
    for _ in range(3):
        (answer,) = door.short(request(body, "encoding=none&return=scores")) or [(0, {}, b"")]
        assert metadata(media.SAFETENSORS, answer[2])["results"][0]["nonfinite_cells"] == 81
        assert metadata(media.SAFETENSORS, answer[2]) == metadata(media.SAFETENSORS, wanted)


@pytest.mark.parametrize(
    "more",
    [
        {"x_request_id": "mine"},
        {"expect": "100-continue"},
        {"content_encoding": "identity"},
        {"transfer_encoding": "identity"},
        {"connection": "close"},
        {"upgrade": "h2c"},
    ],
)
def test_heads_that_ask_for_more_are_not_remembered(door: Door, more: dict[str, str]) -> None:
    sent = request(GOOD, **more)
    assert door.long(sent)[0] == 200
    assert door.short(sent) is None
    door.long(request(GOOD, connection="Keep-Alive"))
    assert door.short(request(GOOD, connection="Keep-Alive")) is not None


@pytest.mark.parametrize("cut", [1, 10, len(GOOD), len(GOOD) + 5])
def test_what_has_not_come_in_full_goes_the_long_way(door: Door, cut: int) -> None:
    door.long(request(GOOD))
    assert door.short(request(GOOD)[:-cut]) is None
    assert door.short(request(GOOD) + b"P") is None


def test_other_paths_methods_and_answers_are_not_taken(door: Door) -> None:
    for query, accept in ((QUERY, media.PNG), (f"{QUERY}&arrays=base64", media.JSON)):
        door.long(request(GOOD, query, accept=accept))
        assert door.short(request(GOOD, query, accept=accept)) is None
    scope = {"path": "/models", "method": "POST", "http_version": "1.1", "headers": [], "query_string": b""}
    before = len(door.express.heads)
    for change in ({}, {"path": "/attention", "method": "GET"}, {"path": "/attention", "http_version": "1.0"}):
        door.express.learn(b"x", {**scope, **change})
    assert len(door.express.heads) == before


def test_what_is_remembered_is_bounded(door: Door) -> None:
    door.long(request(GOOD))
    for i in range(3 * REMEMBERED):
        scope = {"path": "/attention", "method": "POST", "http_version": "1.1", "query_string": b""}
        for _ in range(2):
            door.express.learn(f"{i}".encode(), {**scope, "headers": [(b"content-length", b"5")]})
        assert len(door.express.heads) <= REMEMBERED
    for tokens in range(1, ROUTINES + 50):
        sent = request(samples.npy(embeddings(tokens, 2)), "return=weights&encoding=none")
        door.long(sent)
        door.short(sent)
    assert sum(len(one.routines) for one in door.express.heads._heads.values()) <= ROUTINES


def test_heads_that_come_once_drive_nobody_out(door: Door) -> None:
    door.long(request(GOOD))
    known = len(door.express.heads)
    for i in range(3 * REMEMBERED):
        scope = {"path": "/attention", "method": "POST", "http_version": "1.1", "query_string": b""}
        headers = [(b"content-length", b"5"), (b"x-number", b"%d" % i)]
        door.express.learn(f"x-number: {i}".encode(), {**scope, "headers": headers})
    assert len(door.express.heads) == known
    assert door.short(request(GOOD)) is not None


def test_it_is_counted_like_every_other(door: Door) -> None:
    def read() -> dict[counts.Key, float]:
        return counts.parse(generate_latest(door.service.telemetry.registry).decode())

    sent = request(GOOD, "encoding=sandwich&return=weights")
    door.long(sent)
    door.short(sent)
    before, inferences = read(), door.service.statistics.report("identity.sandwich", "1")["inference_count"]
    assert door.short(sent, sent, sent) is not None
    after = read()
    assert counts.changes(before, after, "attention_requests_total") == {("sandwich", "/attention", "200"): 3}
    assert counts.changes(before, after, "attention_request_duration_seconds_count") == {
        ("sandwich", "/attention", "s"): 3
    }
    assert counts.changes(before, after, "attention_stage_duration_seconds_count")["sandwich", "compute"] == 3
    assert counts.changes(before, after, "attention_sequences_total") == {("sandwich",): 3}
    assert counts.changes(before, after, "attention_sequence_length_tokens_sum") == {("sandwich",): 27}
    received = counts.changes(before, after, "attention_request_bytes_sum")
    assert received == {("/attention", "npy"): 3 * len(GOOD)}
    assert counts.changes(before, after, "attention_response_bytes_count") == {("/attention", "safetensors"): 3}
    assert (
        counts.total(after, "attention_batch_requests_sum") == counts.total(before, "attention_batch_requests_sum") + 3
    )
    assert door.service.statistics.report("identity.sandwich", "1")["inference_count"] == inferences + 3
    assert counts.total(after, "attention_inflight_requests") == 0


class Failing(Sessions):
    """Sessions that may be told to fail."""

    failure: Exception | None = None

    def run(self, *arguments: Any, **more: Any) -> dict[str, np.ndarray]:
        if self.failure is not None:
            raise self.failure
        return super().run(*arguments, **more)


@pytest.fixture
def failing() -> Iterator[tuple[Door, Failing]]:
    sessions = Failing("cpu")
    with opened(sessions) as door:
        yield door, sessions


def test_a_model_that_fails_is_told_as_a_problem(failing: tuple[Door, Failing]) -> None:
    door, sessions = failing
    door.long(request(GOOD))
    for _ in range(3):
        sessions.failure = None
        assert (door.short(request(GOOD)) or [(0, {}, b"")])[0][0] == 200
        sessions.failure = RuntimeError("no kernel")
        assert door.short(request(GOOD), request(GOOD)) is None
        status, headers, content = door.long(request(GOOD))
        assert status == 500
        assert headers["content-type"] == media.PROBLEM
        problem = json.loads(content)
        assert "no kernel" in problem["detail"]
        assert problem["request_id"] == headers["x-request-id"]
    assert door.service.lifecycle.inflight == 0


def test_a_service_that_drains_takes_nothing_and_closes_what_it_answers(failing: tuple[Door, Failing]) -> None:
    door, _ = failing
    door.long(request(GOOD))
    connection = Connection()

    async def main() -> None:
        assert door.express.take(connection, request(GOOD))
        door.service.lifecycle.drain()
        assert not door.express.take(Connection(), request(GOOD))
        while connection.held:
            await asyncio.sleep(0)

    door.runner.run(main())
    assert connection.closed
    assert parts(connection.written)[1]["connection"] == "close"


# Over sockets


@pytest.fixture(scope="module")
def service() -> Iterator[Process]:
    with serving(workers="1", keep_alive_seconds="1") as service:
        yield service


def receive(connection: socket.socket, answers: int) -> list[tuple[int, dict[str, str], bytes]]:
    """So many answers, in order."""
    found: list[tuple[int, dict[str, str], bytes]] = []
    data = b""
    while len(found) < answers:
        first, separator, rest = data.partition(b"\r\n\r\n")
        length = next((int(line[16:]) for line in first.split(b"\r\n") if line.startswith(b"content-length: ")), 0)
        if separator and len(rest) >= length:
            found.append(parts(data[: len(first) + 4 + length]))
            data = rest[length:]
            continue
        part = connection.recv(1 << 16)
        assert part, data[:200]
        data += part
    assert data == b""
    return found


def dribble(connection: socket.socket, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        connection.sendall(data[start : start + size])
        time.sleep(0.001)


@pytest.mark.parametrize(
    "send",
    [
        lambda connection, data: connection.sendall(data),
        lambda connection, data: dribble(connection, data, 700),
        lambda connection, data: dribble(connection, data, len(data) // 3),
        lambda connection, data: dribble(connection, data, len(data) // 10 + 1),
    ],
    ids=["all at once", "in pieces", "one by one", "almost one by one"],
)
def test_requests_that_follow_each_other_are_answered_in_order(
    service: Process, send: Callable[[socket.socket, bytes], None]
) -> None:
    """Whatever the pieces in which they come, and whichever way each of them goes."""
    bodies = [samples.npy(embeddings(11, 8, seed=seed)) for seed in range(9)]
    wrong = samples.npy(np.ones(40 + 3 * 16, np.float32))[: len(bodies[0])]
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        alone = []
        for body in bodies:
            connection.sendall(request(body))
            alone += receive(connection, 1)
        bodies[4] = wrong + bytes(len(bodies[0]) - len(wrong))
        send(connection, b"".join(map(request, bodies)))
        together = receive(connection, len(bodies))
    for i, ((status, _, content), (_, _, wanted)) in enumerate(zip(together, alone, strict=True)):
        if i == 4:
            assert status == 422
            continue
        assert status == 200
        weights, other = (arrays(media.SAFETENSORS, one)["rope/weights"] for one in (content, wanted))
        np.testing.assert_allclose(weights, other, rtol=0, atol=1e-6)


def test_an_idle_connection_is_closed_whichever_way_its_last_request_went(service: Process) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        began = time.monotonic()
        while time.monotonic() - began < 1.5:  # busy for longer than it may be idle
            connection.sendall(request(GOOD))
            assert receive(connection, 1)[0][0] == 200
        idle = time.monotonic()
        assert connection.recv(100) == b""
        assert 0.8 < time.monotonic() - idle < 3


def test_a_client_that_leaves_with_its_request_disturbs_nobody(service: Process) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
            connection.sendall(request(GOOD))
            receive(connection, 1)
            connection.sendall(request(GOOD))
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(request(GOOD))
        assert receive(connection, 1)[0][0] == 200


@pytest.mark.parametrize("tokens", [8, 100], ids=["short", "longer than what is parsed at a time"])
def test_the_rest_of_a_known_request_may_come_late_or_never(service: Process, tokens: int) -> None:
    sent = request(samples.npy(np.ones((tokens, 16), np.float32)))
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        for _ in range(3):  # until its head is known
            connection.sendall(sent)
            receive(connection, 1)
        for pause in (0.05, 1.3):  # before and after the server reads what there is
            connection.sendall(sent[:-40])
            time.sleep(pause)
            connection.sendall(sent[-40:])
            assert receive(connection, 1)[0][0] == 200

    def read() -> dict[counts.Key, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/metrics", timeout=20) as answer:
            return counts.parse(answer.read().decode())

    before = read()
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(sent[:-40])
        time.sleep(0.05)
    left: dict[tuple[str, ...], int] = {}
    for _ in range(100):
        left = counts.changes(before, read(), "attention_requests_total")
        if any("499" in labels for labels in left):
            break
        time.sleep(0.05)
    assert {labels: count for labels, count in left.items() if "499" in labels} == {("rope", "/attention", "499"): 1}
