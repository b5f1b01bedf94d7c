"""The service as it runs: over sockets, under load, to its end."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from service import leftover
from service.wire import media
from tests.service import counts, samples
from tests.service.process import Process, serving

SMALL = samples.npy(np.ones((8, 16), np.float32))
LARGE = samples.npy(np.random.default_rng(0).standard_normal((1024, 16)).astype(np.float32))
"""Four heads of it are 4 million weights: some 50 ms on one core."""
HEADERS = {"content-type": media.NPY, "accept": media.SAFETENSORS}


def connect(process: Process) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", process.port, timeout=20)


def get(process: Process, path: str) -> tuple[int, bytes]:
    connection = connect(process)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def post(process: Process, body: bytes, query: str = "") -> tuple[int, bytes]:
    connection = connect(process)
    try:
        connection.request("POST", f"/attention?{query}", body, HEADERS)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def raw(body: bytes, length: int | None = None, *more: str) -> bytes:
    lines = [
        "POST /attention?heads=4 HTTP/1.1",
        "host: x",
        *(f"{name}: {value}" for name, value in HEADERS.items()),
        f"content-length: {len(body) if length is None else length}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def metrics(process: Process) -> dict[counts.Key, float]:
    return counts.parse(get(process, "/metrics")[1].decode())


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def slow_sender(process: Process) -> Iterator[socket.socket]:
    """A client whose last ten bytes have not come: its request is under way."""
    with socket.create_connection(("127.0.0.1", process.port), timeout=20) as connection:
        connection.sendall(raw(SMALL)[:-10])
        until(lambda: counts.total(metrics(process), "attention_inflight_requests") == 2)  # it, and this question
        yield connection


@dataclass
class Load:
    """Clients that keep their connections and ask again and again, until they are turned away."""

    process: Process
    outcomes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def client(self) -> None:
        """A request sent on a connection that has served before must be answered; a new connection may be refused."""
        while not self.over.is_set():
            connection, served = connect(self.process), False
            try:
                while not self.over.is_set():
                    connection.request("POST", "/attention?heads=4", SMALL, HEADERS)
                    answer = connection.getresponse()
                    answer.read()
                    self.outcomes[str(answer.status)] += 1
                    served = True
                    if answer.getheader("connection") == "close":
                        break
            except OSError as error:
                self.outcomes["refused"] += 1
                if served:
                    self.lost.append(repr(error))
                self.over.wait(0.01)
            except http.client.HTTPException as error:
                self.outcomes["cut off"] += 1
                self.lost.append(repr(error))
            finally:
                connection.close()


def test_sigterm_under_load_loses_no_request_and_exits_0() -> None:
    with serving() as process, ThreadPoolExecutor(8) as threads:
        load = Load(process)
        clients = [threads.submit(load.client) for _ in range(8)]
        try:
            time.sleep(0.7)
            process.child.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0, "".join(process.output)
        finally:
            load.over.set()
        for client in clients:
            client.result()
        assert load.outcomes["200"] > 50
        assert load.outcomes["503"] > 0, "new work is refused in words"
        assert set(load.outcomes) <= {"200", "503", "refused"}
        assert load.lost == []


def test_sigterm_finishes_what_is_queued_and_says_at_once_that_it_is_not_ready() -> None:
    with serving(workers="1") as process, slow_sender(process) as slow, ThreadPoolExecutor(16) as threads:
        taken = [threads.submit(post, process, LARGE, "heads=4&return=weights") for _ in range(16)]
        until(lambda: counts.total(metrics(process), "attention_queue_requests") >= 3)
        process.child.send_signal(signal.SIGTERM)
        time.sleep(0.02)
        status, body = get(process, "/health/ready")
        assert status == 503
        assert json.loads(body)["title"] == "Shutting down"
        assert post(process, SMALL)[0] == 503
        slow.sendall(SMALL[-10:])
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        outcomes = Counter(one.result()[0] for one in taken)
        assert set(outcomes) <= {200, 503}, "503 for those that had not arrived at the signal"
        assert outcomes[200] >= 4
        assert process.wait(15) == 0


def test_what_does_not_end_in_time_is_cut_off_and_the_exit_code_says_so() -> None:
    with serving(drain_seconds="0.3") as process, slow_sender(process):
        process.child.send_signal(signal.SIGTERM)
        assert process.wait(15) == 1
        assert "ATTENTION_DRAIN_SECONDS" in "".join(process.output)


def test_a_second_signal_ends_it_without_waiting() -> None:
    with serving() as process, slow_sender(process):
        process.child.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.child.send_signal(signal.SIGINT)
        began = time.monotonic()
        process.wait(15)
        assert time.monotonic() - began < 5


@pytest.fixture(scope="module")
def process() -> object:
    with serving(workers="1", max_body_bytes="1MiB", body_seconds="1", header_seconds="1") as process:
        yield process
        process.child.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0


def test_a_client_that_hangs_up_while_queued_is_counted_and_not_computed(process: Process) -> None:
    before = metrics(process)
    with ThreadPoolExecutor(16) as threads:
        busy = [threads.submit(post, process, LARGE, "heads=4&return=weights") for _ in range(16)]
        until(lambda: counts.total(metrics(process), "attention_queue_requests") >= 3)
        leavers = [socket.create_connection(("127.0.0.1", process.port)) for _ in range(3)]
        for leaver in leavers:
            leaver.sendall(raw(LARGE))
        for leaver in leavers:
            leaver.close()
        assert [one.result()[0] for one in busy] == [200] * 16

    def moved() -> Counter[tuple[str, ...]]:
        return counts.changes(before, metrics(process), "attention_requests_total")

    until(lambda: moved()["rope", "/attention", "499"] + moved()["rope", "/attention", "200"] == 19)
    assert moved()["rope", "/attention", "499"] >= 1
    assert counts.total(metrics(process), "attention_queue_requests") == 0


def test_a_large_upload_is_refused_and_the_client_gets_to_read_it(process: Process) -> None:
    status, body = post(process, bytes(8 << 20))
    assert status == 413
    assert json.loads(body)["limit"] == 1 << 20


@pytest.mark.parametrize("megabytes", [2, 100])
@pytest.mark.parametrize(("query", "status"), [("", 413), ("theta=5", 422)])
def test_a_client_that_closes_and_only_reads_once_it_has_written_gets_its_refusal(
    process: Process, megabytes: int, query: str, status: int
) -> None:
    url = f"http://127.0.0.1:{process.port}/attention?{query}"
    request = urllib.request.Request(url, bytes(megabytes << 20), HEADERS)  # urllib sends Connection: close
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=20)
    with caught.value as answer:
        assert answer.code == status
        assert json.loads(answer.read())["status"] == status


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_a_connection_that_asks_nothing_is_closed_without_a_word(process: Process, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        connection.sendall(sent)
        assert connection.recv(10_000) == b""


@pytest.mark.parametrize("begun", [b"POST /attention HTTP/1.1\r\nhost:", b"GET /models HTT"])
def test_a_connection_whose_request_never_comes_in_full_is_closed(process: Process, begun: bytes) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        connection.sendall(begun)
        answer = b"".join(iter(lambda: connection.recv(10_000), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in head
    assert "ATTENTION_HEADER_SECONDS" in json.loads(body)["detail"]


def test_a_head_that_begins_after_an_answer_has_its_time_too(process: Process) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        connection.sendall(raw(SMALL))
        assert connection.recv(100_000).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /models HT")
        assert b"HTTP/1.1 408" in b"".join(iter(lambda: connection.recv(100_000), b""))


def test_a_head_in_pieces_is_served(process: Process) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        for piece in (b"GET /hea", b"lth/live HTTP/1.1\r\nho", b"st: x\r\n\r\n"):
            connection.sendall(piece)
            time.sleep(0.05)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        time.sleep(1.2)  # nothing is wrong with a connection that waits between two requests
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"HTTP/1.1 200" in connection.recv(1 << 20)


@pytest.mark.parametrize("bytes_", [b"FROB /models HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01 hello\r\n\r\n"])
def test_what_is_no_request_is_answered_with_a_problem_document(process: Process, bytes_: bytes) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        connection.sendall(bytes_)
        head, _, body = b"".join(iter(lambda: connection.recv(10_000), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert media.PROBLEM.encode() in head
    assert "method is unknown" in json.loads(body)["detail"]


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        (b"content-length: abc", "Invalid character in Content-Length"),
        (b"content-length: -3", "Invalid character in Content-Length"),
        (b"content-length: 3\r\ncontent-length: 4", "Duplicate Content-Length"),
        (b"content-length: 3\r\ntransfer-encoding: chunked", "Transfer-Encoding can't be present with Content-Length"),
        (b"transfer-encoding: chunked\r\ncontent-length: 3", "Content-Length can't be present with Transfer-Encoding"),
        (b"transfer-encoding: chunked\r\n\r\nzz", "Invalid character in chunk size"),
        (b"no colon", "Invalid header token"),
        (b"x: \x01", "Invalid header value char"),
    ],
)
def test_what_is_wrong_with_a_request_is_told(process: Process, headers: bytes, words: str) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        connection.sendall(b"POST /attention HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n\r\n")
        head, _, body = b"".join(iter(lambda: connection.recv(10_000), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert words in json.loads(body)["detail"]


def test_a_client_that_asks_first_is_refused_before_it_sends(process: Process) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        connection.sendall(raw(b"", 10 << 20, "expect: 100-continue"))
        answer = connection.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in answer


@pytest.mark.parametrize("more", [(), ("connection: close",)])
def test_a_client_that_falls_silent_amid_too_long_a_body_is_refused_at_once(
    process: Process, more: tuple[str, ...]
) -> None:
    """Half the time that the rest of a body is waited for would be far too late."""
    with socket.create_connection(("127.0.0.1", process.port), timeout=leftover.SECONDS / 2) as connection:
        connection.sendall(raw(b"x", 10 << 20, *more))
        assert connection.recv(10_000).startswith(b"HTTP/1.1 413")
        assert counts.total(metrics(process), "attention_inflight_requests") == 1


def test_a_client_that_goes_on_sending_too_long_a_body_still_reads_its_refusal(process: Process) -> None:
    """Without a length, so that the limit is passed amid the body."""
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        connection.sendall(raw(b"", 0, "transfer-encoding: chunked").replace(b"content-length: 0\r\n", b""))
        chunk = b"%x\r\n%b\r\n" % (1 << 20, bytes(1 << 20))
        for _ in range(20):
            connection.sendall(chunk)
        connection.sendall(b"0\r\n\r\nGET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answers = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    assert answers.startswith(b"HTTP/1.1 413")
    assert b"HTTP/1.1 200" in answers, "the next request is read where it begins"


def test_a_client_that_may_go_on_is_told_to(process: Process) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        connection.sendall(raw(b"", len(SMALL), "expect: 100-continue"))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        connection.sendall(SMALL)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_body_that_never_ends_times_out(process: Process) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        connection.sendall(raw(SMALL)[:-10])
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def test_a_connection_serves_on_after_each_kind_of_refusal(process: Process) -> None:
    connection = connect(process)
    port = None
    for path, body, expected in [
        ("/attention", SMALL, 200),
        ("/attention", SMALL[:-1], 400),
        ("/attention?heads=0", LARGE, 422),
        ("/attention", bytes(2 << 20), 413),
        ("/nowhere", LARGE, 404),
        ("/models", b"", 405),
        ("/attention", SMALL, 200),
    ]:
        connection.request("POST", path, body, HEADERS)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == expected
        port = port or connection.sock.getsockname()
        assert connection.sock.getsockname() == port, "the same connection"
    connection.close()


def test_an_idle_service_does_nothing(process: Process) -> None:
    name = ("process_cpu_seconds_total", ())
    before = metrics(process)[name]
    time.sleep(2)
    assert metrics(process)[name] - before < 0.1


def test_the_start_says_where_it_listens_on_what_and_what_it_serves(process: Process) -> None:
    text = "".join(process.output)
    assert f"http://127.0.0.1:{process.port}" in text
    assert "cpu" in text
    assert "identity" in text
    assert "rope" in text
