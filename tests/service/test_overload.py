"""More work than the service can do: everybody gets an answer, and what it is told is true."""

from __future__ import annotations

import http.client
import select
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import pytest

from service.wire import media
from tests.service import counts, samples
from tests.service.process import Process, serving
from tests.service.test_process import get, metrics

HEADERS = {"content-type": media.NPY, "accept": media.SAFETENSORS}
QUERY = "heads=8&return=output"
LARGE = samples.npy(np.random.default_rng(0).standard_normal((700, 16)).astype(np.float32))
"""4 million cells: some 10 ms of a core, and back come 45 kB."""
SMALL = samples.npy(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32))


@pytest.fixture(scope="module")
def service() -> Iterator[Process]:
    with serving(workers="1", queue_jobs="6") as service:
        yield service


@dataclass
class Clients:
    """Each keeps its connection and asks again and again, whatever it is told."""

    service: Process
    requests: int
    statuses: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, body: bytes) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=60)
        port = None
        for _ in range(self.requests):
            connection.request("POST", f"/attention?{QUERY}", body, HEADERS)
            answer = connection.getresponse()
            content = answer.read()
            port = port or connection.sock.getsockname()
            assert connection.sock.getsockname() == port, "a refusal closes no connection"
            with self.lock:
                self.statuses[answer.status] += 1
            if answer.status == 429:
                assert int(answer.getheader("retry-after") or 0) >= 1
                assert b"queued_jobs" in content
        connection.close()


def test_all_are_answered_refusals_say_when_to_come_back_and_counts_agree(service: Process) -> None:
    before = metrics(service)
    clients = Clients(service, 12)
    with ThreadPoolExecutor(30) as threads:
        for done in [threads.submit(clients.ask, LARGE) for _ in range(30)]:
            done.result()
    assert clients.statuses.total() == 30 * 12
    assert set(clients.statuses) == {200, 429}
    assert clients.statuses[200] >= 12
    after = metrics(service)
    moved = counts.changes(before, after, "attention_requests_total")
    assert moved["rope", "/attention", "200"] == clients.statuses[200]
    assert moved["rope", "/attention", "429"] == clients.statuses[429]
    assert counts.changes(before, after, "attention_rejected_total") == {("queue_full",): clients.statuses[429]}
    assert counts.changes(before, after, "attention_sequences_total") == {("rope",): clients.statuses[200]}
    assert counts.total(after, "attention_queue_requests") == 0
    assert counts.total(after, "attention_queue_oldest_seconds") == 0
    assert counts.total(after, "attention_inflight_requests") == 1, "this look itself"
    assert get(service, "/health/ready")[0] == 200


def test_small_requests_are_answered_while_large_ones_are_refused(service: Process) -> None:
    """Most need no worker, so its queue does not concern them; what the machine makes look slow may."""
    large, small = Clients(service, 12), Clients(service, 100)
    with ThreadPoolExecutor(30) as threads:
        clients = [threads.submit(large.ask, LARGE) for _ in range(25)]
        clients += [threads.submit(small.ask, SMALL) for _ in range(3)]
        for done in clients:
            done.result()
    assert large.statuses[429] > 0
    assert set(small.statuses) <= {200, 429}
    assert small.statuses[200] > 150


@pytest.mark.parametrize("width", [16, 128], ids=["small bodies", "bodies that are read on a thread"])
def test_a_head_that_never_came_before_is_refused_before_its_body_and_its_connection_serves_on(
    service: Process, width: int
) -> None:
    """What its query asks for, in a body as long, is known from others."""
    body = samples.npy(np.random.default_rng(0).standard_normal((700, width)).astype(np.float32))

    def head(number: int) -> bytes:
        lines = [f"POST /attention?{QUERY} HTTP/1.1", "host: x", f"x-number: {number}", f"content-length: {len(body)}"]
        return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in HEADERS.items()), "", ""]).encode()

    def answer(stream: BinaryIO) -> int:
        status = int(stream.readline().split()[1])
        length = 0
        while (line := stream.readline()) != b"\r\n":
            name, _, value = line.lower().partition(b":")
            length = int(value) if name == b"content-length" else length
            assert name != b"connection"
        assert len(stream.read(length)) == length
        return status

    over, first = threading.Event(), Clients(service, 1)
    first.ask(body)
    assert first.statuses == {200: 1}, "one like it was answered"

    def keep_busy() -> None:
        while not over.is_set():
            Clients(service, 4).ask(LARGE)

    early = Counter[int]()
    with ThreadPoolExecutor(12) as threads:
        busy = [threads.submit(keep_busy) for _ in range(12)]
        try:
            with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
                stream = connection.makefile("rb")
                for number in range(60):
                    connection.sendall(head(number))
                    if select.select([connection], [], [], 0.1)[0]:
                        early[answer(stream)] += 1
                        connection.sendall(body)  # nobody reads it, and it is no request
                    else:
                        connection.sendall(body)
                        assert answer(stream) in (200, 429)
                    if early[429] >= 5:
                        break
        finally:
            over.set()
        for one in busy:
            one.result()
    assert early[429] >= 5
    assert set(early) == {429}
