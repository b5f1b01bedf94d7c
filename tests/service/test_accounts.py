"""Every request moves exactly one counter, whichever way it went: counted by its clients and by the metrics."""

from __future__ import annotations

import http.client
import json
import socket
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from service.wire import media
from tests.service import counts, samples
from tests.service.process import Process, serving
from tests.service.test_process import LARGE, SMALL, connect, metrics, raw, until

HEADERS = {"content-type": media.NPY, "accept": media.SAFETENSORS}


@pytest.fixture(scope="module")
def service() -> Iterator[Process]:
    with serving(workers="1", max_body_bytes="1MiB", body_seconds="0.5", header_seconds="0.5") as service:
        yield service


def moved(before: dict[counts.Key, float], after: dict[counts.Key, float]) -> Counter[tuple[str, ...]]:
    """By encoding, endpoint and status; without the looks at the metrics."""
    found = counts.changes(before, after, "attention_requests_total")
    for key in list(found):
        if key[1] == "/metrics":
            del found[key]
    return found


def ask(service: Process, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    connection = connect(service)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def told(service: Process, data: bytes) -> bytes:
    """What is answered until the connection is closed."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


NPY = {"content_type": media.NPY, "accept": media.SAFETENSORS}
INFER = json.dumps(
    {"inputs": [{"name": "embeddings", "datatype": "FP32", "shape": [2, 4], "data": [1, 2, 3, 4, 5, 6, 7, 8]}]}
).encode()

OUTCOMES = [
    ("POST", "/attention", SMALL, NPY, 200, ("rope", "/attention"), None),
    ("POST", "/attention?encoding=t5&compare=rope", SMALL, NPY, 200, ("t5", "/attention"), None),
    ("POST", "/attention", SMALL[:-1], NPY, 400, ("rope", "/attention"), "malformed"),
    ("POST", "/attention?heads=3", SMALL, NPY, 422, ("rope", "/attention"), "invalid"),
    ("POST", "/attention?encoding=nothing", SMALL, NPY, 422, ("unknown", "/attention"), "unknown_name"),
    ("POST", "/attention?theta=1", SMALL, NPY, 422, ("unknown", "/attention"), "unknown_name"),
    ("POST", "/attention?rope.theta=-1", SMALL, NPY, 422, ("rope", "/attention"), "parameter"),
    ("POST", "/attention", bytes(2 << 20), NPY, 413, ("rope", "/attention"), "too_large"),
    ("POST", "/attention", SMALL, {**NPY, "accept": "text/html"}, 406, ("rope", "/attention"), "not_acceptable"),
    ("POST", "/attention", SMALL, {**NPY, "content_type": "text/csv"}, 415, ("rope", "/attention"), "media_type"),
    ("GET", "/attention", b"", {}, 405, ("", "/attention"), "method"),
    ("GET", "/nowhere", b"", {}, 404, ("", "other"), "not_found"),
    ("GET", "/encodings/rope", b"", {}, 200, ("", "/encodings/{id}"), None),
    ("GET", "/encodings/nothing", b"", {}, 404, ("", "/encodings/{id}"), "not_found"),
    ("GET", "/health/ready", b"", {}, 200, ("", "/health/ready"), None),
    ("POST", "/v2/models/identity.rope/infer", b"{}", {}, 400, ("rope", "/v2/models/{model}/infer"), None),
    ("POST", "/v2/models/nothing/infer", INFER, {}, 404, ("unknown", "/v2/models/{model}/infer"), "not_found"),
]


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "series", "reason"), OUTCOMES)
def test_each_outcome_moves_one_counter_and_its_reason(
    service: Process,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
    status: int,
    series: tuple[str, str],
    reason: str | None,
) -> None:
    before = metrics(service)
    assert ask(service, method, path, body, **headers) == status
    after = metrics(service)
    assert moved(before, after) == {(*series, str(status)): 1}
    rejected = counts.changes(before, after, "attention_rejected_total")
    assert rejected.total() == (status >= 400)
    assert reason is None or rejected == {(reason,): 1}
    sequences = counts.changes(before, after, "attention_sequences_total")
    assert sequences.total() == (0 if status >= 400 or series[0] == "" else 2 if "compare" in path else 1)
    assert counts.total(after, "attention_inflight_requests") == 1, "this look itself"


@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (b"FROB /attention HTTP/1.1\r\nhost: x\r\n\r\n", "400", "malformed"),
        (b"\x16\x03\x01 hello\r\n\r\n", "400", "malformed"),
        (b"GET /models HTTP/1.1\r\nhost: x\r\nno colon\r\n\r\n", "400", "malformed"),
        (b"POST /attention HTTP/1.1\r\nhost:", "408", "slow_body"),
    ],
)
def test_what_is_refused_before_it_is_a_request_is_counted_too(
    service: Process, data: bytes, status: str, reason: str
) -> None:
    before = metrics(service)
    answer = told(service, data)
    assert answer.startswith(b"HTTP/1.1 " + status.encode())
    after = metrics(service)
    assert moved(before, after) == {("", "other", status): 1}
    assert counts.changes(before, after, "attention_rejected_total") == {(reason,): 1}
    assert counts.total(after, "attention_inflight_requests") == 1


def test_a_connection_that_asks_nothing_is_closed_and_is_no_request(service: Process) -> None:
    before = metrics(service)
    assert told(service, b"") == b""
    after = metrics(service)
    assert moved(before, after) == {}
    assert counts.changes(before, after, "attention_rejected_total") == {}
    assert counts.total(after, "attention_inflight_requests") == 1


def test_a_body_that_does_not_arrive_is_one_408(service: Process) -> None:
    before = metrics(service)
    assert told(service, raw(SMALL)[:-10]).startswith(b"HTTP/1.1 408")
    after = metrics(service)
    assert moved(before, after) == {("rope", "/attention", "408"): 1}
    assert counts.changes(before, after, "attention_rejected_total") == {("slow_body",): 1}


def test_clients_that_leave_are_each_counted_once(service: Process) -> None:
    """While they send, and while they wait."""
    before = metrics(service)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
            connection.sendall(raw(SMALL)[:-10])
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
            connection.sendall(raw(LARGE))
    until(lambda: moved(before, metrics(service)).total() == 8)
    after = metrics(service)
    found = moved(before, after)
    assert set(found) <= {("rope", "/attention", "499"), ("rope", "/attention", "200")}
    assert found["rope", "/attention", "499"] >= 3
    assert counts.changes(before, after, "attention_rejected_total") == {
        ("cancelled",): found["rope", "/attention", "499"]
    }
    assert counts.total(after, "attention_inflight_requests") == 1
    assert counts.total(after, "attention_queue_requests") == 0


@pytest.mark.parametrize("times", [1, 3])
def test_clients_that_leave_amid_their_answers_are_each_a_499_of_what_was_written(service: Process, times: int) -> None:
    """One that reads a little and closes, and then one that also ends its own side first."""
    before, whole = metrics(service), 2 * 4 * 4 * 1024 * 1024
    for i in range(times):
        with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            connection.sendall(raw(LARGE))  # two matrices for each of four heads
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            if i == 1:
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1000)
    until(lambda: moved(before, metrics(service)).total() == times)
    after = metrics(service)
    assert moved(before, after) == {("rope", "/attention", "499"): times}
    assert counts.changes(before, after, "attention_rejected_total") == {("cancelled",): times}
    assert not counts.changes(before, after, "attention_sequences_total")
    written = counts.changes(before, after, "attention_response_bytes_sum")["/attention", "safetensors"]
    assert 1000 * times <= written < whole * times / 2
    assert counts.total(after, "attention_inflight_requests") == 1


@pytest.mark.parametrize("returns", ["weights", "weights,scores,terms"])
def test_a_client_that_ends_its_own_side_and_reads_on_has_its_answer(service: Process, returns: str) -> None:
    """One piece, which is written at once, and several, of which most wait for the client."""
    before = metrics(service)
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        connection.sendall(raw(LARGE).replace(b"?heads=4", b"?heads=4&return=" + returns.encode()))
        first = connection.recv(1000)
        connection.shutdown(socket.SHUT_WR)
        answer = first + b"".join(iter(lambda: connection.recv(1 << 20), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
    after = metrics(service)
    assert moved(before, after) == {("rope", "/attention", "200"): 1}
    sent = counts.changes(before, after, "attention_response_bytes_sum")
    assert sent["/attention", "safetensors"] == len(body)


def test_wrong_bodies_among_right_ones_fail_alone_and_all_are_counted(service: Process) -> None:
    """Hundreds over one connection, most of them answered straight from the socket."""
    generator = np.random.default_rng(0)
    right = [samples.npy(generator.standard_normal((8, 16)).astype(np.float32)) for _ in range(4)]
    wrong = [
        (right[0][:-4] + b"\x00\x00\xc0\x7f", 422),  # NaN
        (b"\x93NUMPX" + right[1][6:], 400),
        (samples.npy(generator.standard_normal((16, 8)).astype(np.float32))[: len(right[0])], 200),
        (samples.npy(generator.standard_normal((8, 15)).astype(np.float32)), 422),
    ]
    before, statuses = metrics(service), Counter[int]()
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
    for i in range(600):
        body, expected = wrong[i // 7 % 4] if i % 7 == 3 else (right[i % 4], 200)
        connection.request("POST", "/attention?heads=2", body, HEADERS)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == expected, content[:300]
        statuses[answer.status] += 1
    connection.close()
    after = metrics(service)
    assert moved(before, after) == {("rope", "/attention", str(status)): count for status, count in statuses.items()}
    assert counts.changes(before, after, "attention_sequences_total") == {("rope",): statuses[200]}
    assert counts.changes(before, after, "attention_batch_requests_sum")["rope",] == statuses[200]
    durations = counts.changes(before, after, "attention_request_duration_seconds_count")
    del durations["", "/metrics", ""]
    assert durations.total() == 600
    assert counts.changes(before, after, "attention_response_bytes_count") == {
        ("/attention", "safetensors"): statuses[200],
        ("/attention", "problem"): 600 - statuses[200],
    }
    assert counts.changes(before, after, "attention_request_bytes_count") == {("/attention", "npy"): 600}


def test_the_stages_make_up_the_requests(service: Process) -> None:
    """What `attention_request_duration_seconds` sums up is what the stages do, to a twentieth."""
    before = metrics(service)
    for _ in range(20):
        assert ask(service, "POST", "/attention?heads=4", LARGE, **NPY) == 200
    after = metrics(service)

    def spent(name: str) -> float:
        return counts.total(after, name) - counts.total(before, name)

    def of_attention(found: dict[counts.Key, float]) -> float:
        name = "attention_request_duration_seconds_sum"
        return sum(
            value for (series, labels), value in found.items() if series == name and ("encoding", "rope") in labels
        )

    whole = of_attention(after) - of_attention(before)
    assert 0.9 * whole < spent("attention_stage_duration_seconds_sum") <= 1.001 * whole
