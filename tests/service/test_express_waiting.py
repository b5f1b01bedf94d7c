"""Requests that wait for a worker without going the long way."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest

from service.engine.policy import CpuPolicy
from service.errors import DeadlineExceeded, Overloaded
from service.express.heads import LARGEST
from service.routes import upload
from service.wire import media
from tests.service import counts, samples
from tests.service.doors import Connection, Door, arrays, embeddings, head, metadata, names, opened, parts, request
from tests.service.process import serving

TOKENS, WIDTH = 300, 16
QUERY = "heads=4&return=weights,scores"
BODY = samples.npy(embeddings(TOKENS, WIDTH))


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with opened() as door:
        yield door


@pytest.fixture(autouse=True)
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """On no machine are they run on the event loop."""
    monkeypatch.setattr(CpuPolicy, "inline", lambda self, jobs: False)


def read(door: Door) -> dict[counts.Key, float]:
    return counts.parse(generate_latest(door.service.telemetry.registry).decode())


@pytest.mark.parametrize(
    ("query", "shape"),
    [
        (QUERY, (TOKENS, WIDTH)),
        (QUERY, (2, 90, WIDTH)),
        ("encoding=t5&causal=true&heads=4&return=weights,scores,terms,output", (TOKENS, WIDTH)),
        ("encoding=deberta&heads=2&return=scores", (120, WIDTH)),
        ("heads=4&rows=-3:&return=weights", (TOKENS, WIDTH)),
        ("heads=4&head=1&return=weights", (TOKENS, WIDTH)),
    ],
)
def test_the_answer_is_that_of_the_long_way(door: Door, query: str, shape: tuple[int, ...]) -> None:
    sent = [request(samples.npy(embeddings(*shape, seed=seed)), query) for seed in range(4)]
    expected = [door.long(one) for one in sent]
    for _ in range(2):  # from the second on there may be a template
        before = read(door)
        found = door.short(*sent)
        assert found is not None
        for (status, headers, content), (wanted, lines, other) in zip(found, expected, strict=True):
            assert status == wanted == 200
            assert set(lines) <= set(headers)
            assert headers["content-type"] == lines["content-type"] == media.SAFETENSORS
            assert metadata(media.SAFETENSORS, content) == metadata(media.SAFETENSORS, other)
            assert names(media.SAFETENSORS, content) == names(media.SAFETENSORS, other)
            mine, theirs = (arrays(media.SAFETENSORS, one) for one in (content, other))
            for name, array in theirs.items():
                np.testing.assert_allclose(mine[name], array, rtol=0, atol=1e-6)
        moved = counts.changes(before, read(door), "attention_requests_total")
        assert [count for labels, count in moved.items() if "200" in labels] == [4]
        assert sum(moved.values()) == 4
    assert door.service.lifecycle.inflight == 0


def test_it_is_counted_like_every_other(door: Door) -> None:
    sent = request(BODY, f"encoding=sandwich&{QUERY}")
    door.long(sent)
    before, inferences = read(door), door.service.statistics.report("identity.sandwich", "1")["inference_count"]
    assert door.short(sent, sent) is not None
    after = read(door)
    assert counts.changes(before, after, "attention_requests_total") == {("sandwich", "/attention", "200"): 2}
    assert counts.changes(before, after, "attention_stage_duration_seconds_count")["sandwich", "queue"] == 2
    assert counts.changes(before, after, "attention_sequences_total") == {("sandwich",): 2}
    assert counts.changes(before, after, "attention_request_bytes_sum") == {("/attention", "npy"): 2 * len(BODY)}
    assert door.service.statistics.report("identity.sandwich", "1")["inference_count"] == inferences + 2
    assert counts.total(after, "attention_inflight_requests") == 0


@pytest.mark.parametrize(
    ("query", "accept"),
    [
        (QUERY, media.NPZ),
        (QUERY, media.JSON),
        (f"{QUERY}&dtype=float16", media.SAFETENSORS),
        ("heads=4&return=summary", media.SAFETENSORS),
        ("heads=4&top_k=5&return=weights", media.SAFETENSORS),
        ("heads=4&compare=alibi&return=weights", media.SAFETENSORS),
    ],
)
def test_what_takes_long_to_write_goes_the_long_way(door: Door, query: str, accept: str) -> None:
    body = samples.npy(embeddings(50, WIDTH))
    sent = request(body, query, accept=accept)
    assert door.long(sent)[0] == 200
    assert door.short(sent) is None


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e30], ids=["NaN", "infinite", "too large a score"])
def test_what_is_wrong_goes_the_long_way(door: Door, number: float) -> None:
    door.long(request(BODY, QUERY))
    wrong = embeddings(TOKENS, WIDTH)
    wrong[7, 3] = number
    assert door.short(request(BODY, QUERY)) is not None
    assert door.short(request(samples.npy(wrong), QUERY)) is None
    assert door.service.lifecycle.inflight == 0


@pytest.mark.parametrize(
    ("error", "status", "label"),
    [
        (Overloaded("it is full", retry_after=2.5), 429, "429"),
        (DeadlineExceeded("not computed within its deadline"), 504, "504"),
    ],
)
def test_what_the_engine_refuses_is_told_at_once(
    door: Door, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, label: str
) -> None:
    """The long way would have it wait once more."""
    sent = request(BODY, QUERY)
    door.long(sent)

    async def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(door.service.engine, "run", refuse)
    before = read(door)
    ((found, headers, content),) = door.short(sent) or [(0, {}, b"")]
    assert found == status
    problem = json.loads(content)
    assert problem["detail"] == str(error)
    assert problem["request_id"] == headers["x-request-id"]
    assert headers["content-type"] == media.PROBLEM
    assert ("retry-after" in headers) is (status == 429)
    assert counts.changes(before, read(door), "attention_requests_total") == {("rope", "/attention", label): 1}
    assert door.service.lifecycle.inflight == 0


def test_where_the_queue_is_full_the_numbers_are_not_looked_at(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = request(samples.npy(np.full((TOKENS, WIDTH), np.nan, np.float32)), QUERY)
    door.long(request(BODY, QUERY))
    asked: list[tuple[int, int]] = []

    def full(jobs: int, cells: int) -> Overloaded:
        asked.append((jobs, cells))
        return Overloaded("it is full", retry_after=1.0)

    monkeypatch.setattr(door.service.engine, "refusal", full)
    assert (door.short(sent) or [(0, {}, b"")])[0][0] == 429
    assert asked == [(1, 2 * 4 * TOKENS * TOKENS)]


def test_bodies_that_wait_count_like_those_of_every_other(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = request(BODY, QUERY)
    door.long(sent)
    assert door.short(sent) is not None
    assert door.express.arriving.whole == 0
    limit = upload.TOGETHER * door.express.settings.max_body_bytes
    monkeypatch.setattr(door.express.arriving, "whole", limit - len(BODY))
    assert (door.short(sent) or [(0, {}, b"")])[0][0] == 200
    assert door.express.arriving.whole == limit - len(BODY)
    monkeypatch.setattr(door.express.arriving, "whole", limit - len(BODY) + 1)
    ((status, headers, content),) = door.short(sent) or [(0, {}, b"")]
    assert status == 429
    assert "retry-after" in headers
    assert "bodies" in json.loads(content)["detail"]
    assert door.service.lifecycle.inflight == 0


def test_a_client_that_leaves_while_it_waits_is_counted_and_not_answered(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = request(BODY, f"encoding=kerple&{QUERY}")
    door.long(sent)
    cancelled: list[bool] = []

    async def never(*_: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    monkeypatch.setattr(door.service.engine, "run", never)
    before, connection = read(door), Connection()

    async def main() -> None:
        assert door.express.take(connection, sent)
        await asyncio.sleep(0)
        connection.gone = True
        while door.service.lifecycle.inflight:
            await asyncio.sleep(0.005)

    door.runner.run(main())
    assert cancelled == [True]
    assert connection.written == b""
    assert connection.declined is None
    assert counts.changes(before, read(door), "attention_requests_total") == {("kerple", "/attention", "499"): 1}


def test_a_fault_of_our_own_leaves_nobody_without_an_answer(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = request(BODY, QUERY)
    door.long(sent)

    async def fail(*_: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(door.service.engine, "run", fail)
    assert door.short(sent) is None, "it goes the long way"
    assert door.service.lifecycle.inflight == 0


def test_arrays_are_taken_up_to_a_size_and_lists_up_to_a_smaller_one(door: Door) -> None:
    scope = {"path": "/attention", "method": "POST", "http_version": "1.1", "query_string": b"heads=4&head=0"}

    def learnt(kind: str, length: int) -> bool:
        first = head(length, "heads=4&head=0", kind=kind)
        lines = [line.split(b": ", 1) for line in first.split(b"\r\n")[1:-2]]
        for _ in range(2):
            door.express.learn(first, {**scope, "headers": [tuple(line) for line in lines]})
        return door.express.heads.get(first) is not None

    assert learnt(media.NPY, LARGEST)
    assert not learnt(media.NPY, LARGEST + 1)
    assert learnt(media.JSON, 1 << 18)
    assert not learnt(media.JSON, (1 << 18) + 1)


def test_no_more_than_so_many_bytes_are_waited_for(door: Door) -> None:
    sent = request(BODY, QUERY)
    door.long(sent)
    assert door.short(sent) is not None
    try:
        door.express.arriving.held = upload.TOGETHER * door.express.settings.max_body_bytes - len(sent)
        assert door.express.expects(sent[:1000]) == len(sent)
        door.express.arriving.held += 1
        assert door.express.expects(sent[:1000]) is None
    finally:
        door.express.arriving.held = 0


def test_over_sockets_large_requests_come_in_many_pieces() -> None:
    """Also one of which the rest never comes, and one after it."""
    vectors = embeddings(600, 512)
    sent = request(samples.npy(vectors), "heads=8&return=weights")
    with serving(workers="1") as service, socket.create_connection(("127.0.0.1", service.port), timeout=60) as one:
        found = []
        for _ in range(6):
            one.sendall(sent)
            found.append(answer(one))
        for status, _, content in found:
            assert status == 200
            np.testing.assert_array_equal(
                arrays(media.SAFETENSORS, content)["rope/weights"],
                arrays(media.SAFETENSORS, found[0][2])["rope/weights"],
            )
        # Each way has its own order of headers: the head was learnt, though its body came in pieces.
        assert list(found[-1][1]) != list(found[0][1])
        with socket.create_connection(("127.0.0.1", service.port), timeout=60) as other:
            other.sendall(sent[:-1000])
        one.sendall(sent)
        assert answer(one)[0] == 200


def test_what_comes_behind_one_that_waits_is_not_read_without_end() -> None:
    """Nor is it lost."""
    sent = request(samples.npy(embeddings(300, 64)), "heads=8&return=weights")
    long = request(samples.npy(embeddings(1000, 64)), "heads=8&return=output")
    with ExitStack() as stack:
        service = stack.enter_context(serving(workers="1"))

        def connected() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=60))

        one, others = connected(), [connected() for _ in range(40)]
        for _ in range(4):  # until its head is known
            one.sendall(sent)
            assert answer(one)[0] == 200
        before = service.resident
        for other in others:
            other.sendall(long)
        time.sleep(0.2)  # the worker is busy now
        one.settimeout(0.1)
        behind, left = bytes(200 << 20), 0
        with suppress(TimeoutError):
            while left < len(behind):
                left += one.send(behind[left : left + (1 << 20)] if left else sent)
        assert left < len(behind)
        assert service.resident - before < 150 << 20
        one.settimeout(60)
        first = one.recv(15)
        assert first == b"HTTP/1.1 200 OK"


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    data = bytearray()
    while True:
        part = connection.recv(1 << 20)
        assert part, data[:300]
        data += part
        first, separator, _ = bytes(data[:2000]).partition(b"\r\n\r\n")
        length = next(int(line[16:]) for line in first.split(b"\r\n") if line.startswith(b"content-length: "))
        if separator and len(data) >= len(first) + 4 + length:
            return parts(bytes(data))
