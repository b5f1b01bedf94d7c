"""Clients that send too much, too slowly, or in pieces that fit nothing, against the service as it runs."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import socket
import struct
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from service.protocol import EXTRA, HEAD_BYTES, HEADERS
from service.routes.upload import LEAST, TOGETHER
from service.wire import media
from tests.service import counts, samples
from tests.service.process import Process, serving
from tests.service.test_process import get, metrics, post, until

SMALL = samples.npy(np.ones((8, 16), np.float32))
LIMIT = 1 << 20
INFER = "/v2/models/identity.rope/infer"


@pytest.fixture(scope="module")
def service() -> Iterator[Process]:
    with serving(
        workers="1", max_body_bytes="1MiB", body_seconds="1", header_seconds="1", stall_seconds="1", queue_jobs="1024"
    ) as service:
        for query in ("", "return=weights"):  # the tables and the answers of the others
            post(service, SMALL, query)
        yield service
        assert service.child.poll() is None
        assert get(service, "/health/ready")[0] == 200


def open_(service: Process) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), timeout=30)


def head(path: str, *more: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: x", *more, "", ""]).encode()


def told(connection: socket.socket) -> bytes:
    """Until the connection is closed."""
    found = b""
    try:
        while piece := connection.recv(1 << 16):
            found += piece
    except ConnectionResetError:  # what was still on its way is not read
        pass
    return found


def answers(data: bytes) -> list[tuple[int, bytes]]:
    """Status and content of answers that follow each other."""
    found = []
    while data:
        first, _, rest = data.partition(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 "), first[:100]
        length = next(int(line.split(b":")[1]) for line in first.split(b"\r\n") if line.startswith(b"content-length"))
        found.append((int(first.split()[1]), rest[:length]))
        data = rest[length:]
    return found


def ask(service: Process, path: str, body: bytes, *more: str) -> tuple[int, bytes]:
    with open_(service) as connection:
        connection.sendall(head(path, f"content-length: {len(body)}", "connection: close", *more) + body)
        ((status, content),) = answers(told(connection))
        return status, content


def alive(connection: socket.socket) -> bool:
    """Whether a request over it is answered."""
    connection.sendall(head("/health/live", method="GET"))
    found = b""
    while not found.endswith(b'{"status":"live"}'):
        piece = connection.recv(1 << 16)
        if not piece:
            return False
        found += piece
    return found.startswith(b"HTTP/1.1 200")


# What is larger inside


def zipped(**entries: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def lying(body: bytes, size: int) -> bytes:
    """A zip that says its only entry unpacks to less than it does, in its directory and in its own header."""
    place = body.index(b"PK\x01\x02")
    body = body[: place + 24] + struct.pack("<I", size) + body[place + 28 :]
    return body[:22] + struct.pack("<I", size) + body[26:]


ZEROS = samples.npy(np.zeros((2000, 8192), np.float32))
"""64 MB."""
BOMBS = {
    "npz": ("/attention", zipped(embeddings=ZEROS), [f"content-type: {media.NPZ}"], 413),
    "npz that lies": ("/attention", lying(zipped(embeddings=ZEROS), 1000), [f"content-type: {media.NPZ}"], 400),
    "npz of a thousand": (
        "/attention",
        zipped(**{f"x{i}": b"" for i in range(1000)}),
        [f"content-type: {media.NPZ}"],
        413,
    ),
    "gzip": ("/attention", gzip.compress(bytes(100 << 20)), ["content-encoding: gzip"], 415),
    "gzip of the protocol": (INFER, gzip.compress(bytes(100 << 20)), ["content-encoding: gzip"], 413),
    "deflate of the protocol": (INFER, zlib.compress(bytes(100 << 20)), ["content-encoding: deflate"], 413),
    "brotli": (INFER, b"\x0b\x02\x80hello\x03", ["content-encoding: br"], 415),
    "gzip twice": (INFER, gzip.compress(gzip.compress(bytes(1 << 20))), ["content-encoding: gzip, gzip"], 415),
    "deep lists": ("/attention", b'{"embeddings":' + b"[" * 400_000 + b"]" * 400_000 + b"}", [], 400),
    "deep objects": ("/attention", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, [], 400),
    "deep lists in the protocol": (INFER, b'{"inputs":' + b"[" * 400_000 + b"]" * 400_000 + b"}", [], 400),
    "deep configuration": ("/encodings/rope/resolve", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, [], 400),
    "deep request to a repository": ("/v2/repository/index", b"[" * 400_000, [], 400),
    "a large shape": (
        "/attention",
        samples.npy(np.ones((1, 1), np.float32)).replace(b"(1, 1)", b"(99999, 99999)"),
        [f"content-type: {media.NPY}"],
        400,
    ),
    "a large header of safetensors": (
        "/attention",
        struct.pack("<Q", 1 << 62) + b"{}",
        [f"content-type: {media.SAFETENSORS}"],
        400,
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_is_larger_inside_is_refused_before_it_takes_memory(service: Process, name: str) -> None:
    path, body, headers, expected = BOMBS[name]
    assert len(body) <= LIMIT
    if not any(header.startswith("content-type") for header in headers):
        headers = [*headers, f"content-type: {media.JSON}"]
    ask(service, path, body, *headers)
    before = service.resident
    for _ in range(3):
        status, content = ask(service, path, body, *headers)
        assert status == expected, content[:500]
        assert len(content) < 2000
    assert service.resident - before < 24 << 20


# Heads


def test_headers_have_a_limit_in_bytes_and_in_number(service: Process) -> None:
    before = metrics(service)
    wrong = [
        head("/models", "x-long: " + "a" * HEAD_BYTES, method="GET"),
        head("/models", *(f"x-{i}: 1" for i in range(HEADERS)), method="GET"),
        head("/models?" + "a" * HEAD_BYTES, method="GET"),
        head("/models", *(f"x-{i}: {'a' * 1000}" for i in range(100)), method="GET"),
    ]
    for request in wrong:
        with open_(service) as connection:
            connection.sendall(request)
            ((status, content),) = answers(told(connection))
            assert status == 431, content
            assert json.loads(content)["limit_bytes"] == HEAD_BYTES
    after = metrics(service)
    assert counts.changes(before, after, "attention_rejected_total") == {("head_too_large",): len(wrong)}
    for request in (
        head("/models", "x-long: " + "a" * (HEAD_BYTES - 200), "connection: close", method="GET"),
        head("/models", *(f"x-{i}: 1" for i in range(HEADERS - 2)), "connection: close", method="GET"),
    ):
        with open_(service) as connection:
            for start in range(0, len(request), 9000):  # in pieces
                connection.sendall(request[start : start + 9000])
            assert answers(told(connection))[0][0] == 200


@pytest.mark.parametrize("piece", [b"a" * 8192, b"x-y: 1\r\n" * 512], ids=["one header", "many"])
def test_a_head_without_an_end_is_not_kept(service: Process, piece: bytes) -> None:
    before, sent = service.resident, 0
    with open_(service) as connection:
        connection.sendall(b"GET /models HTTP/1.1\r\nhost: x\r\nx-first: ")
        try:
            for _ in range(20_000):
                sent += connection.send(piece)
        except OSError:  # closed
            pass
        assert sent < 40 << 20, "more than what the system's buffers hold was taken"
    assert service.resident - before < 8 << 20


def test_trailers_have_the_same_limits(service: Process) -> None:
    chunks = b"%x\r\n%b\r\n0\r\n" % (len(SMALL), SMALL)
    trailers = b"".join(b"x-%d: 1\r\n" % i for i in range(10_000)) + b"\r\n"
    with open_(service) as connection:
        connection.sendall(head("/attention", f"content-type: {media.NPY}", "transfer-encoding: chunked"))
        connection.sendall(chunks + trailers)
        ((status, _),) = answers(told(connection))
        assert status == 431


@pytest.mark.parametrize("path", ["/attention?", "/encodings/rope/positions?", "/models?", "/v2?"])
def test_a_query_string_has_a_limit(service: Process, path: str) -> None:
    method = "POST" if path.startswith("/attention") else "GET"
    for query in ("a" * 40_000, "&".join(["heads=1"] * 5000), "%" * 30_000):
        with open_(service) as connection:
            connection.sendall(head(path + query, "content-length: 0", "connection: close", method=method))
            ((status, content),) = answers(told(connection))
            assert status in (400, 422)
            assert len(content) < 4000


# Slow ones


def drip(connection: socket.socket, data: bytes, seconds: float) -> float:
    """Sends a byte now and then until somebody closes; returns how long that took."""
    began = time.monotonic()
    for byte in itertools.cycle(data):
        if time.monotonic() - began > seconds:
            break
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            break
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.mark.parametrize("name", ["head", "body", "chunks", "body that nobody needs"])
def test_a_byte_now_and_then_gains_no_time(service: Process, name: str) -> None:
    begun = {
        "head": b"GET /models HTTP/1.1\r\nhost: x\r\nx-slow: ",
        "body": head("/attention", f"content-type: {media.NPY}", "content-length: 1000"),
        "chunks": head("/attention", f"content-type: {media.NPY}", "transfer-encoding: chunked"),
        "body that nobody needs": head("/models", "content-length: 1000", method="GET"),
    }
    with open_(service) as connection:
        connection.sendall(begun[name])
        took = drip(connection, b"1\r\na\r\n" if name == "chunks" else b"a", 40)
    assert took < 30


def test_a_client_that_does_not_read_is_let_go(service: Process) -> None:
    """What it asked for is 40 MB, which no buffer of the system takes."""
    body = samples.npy(np.ones((1600, 4), np.float32))
    assert metrics(service)["attention_inflight_requests", (("endpoint", "/attention"),)] == 0
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            connection.connect(("127.0.0.1", service.port))
            headers = (f"content-type: {media.NPY}", f"accept: {media.SAFETENSORS}", f"content-length: {len(body)}")
            connection.sendall(head("/attention?encoding=alibi&heads=4&return=weights", *headers) + body)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        until(lambda: connections(service) <= 2, 20)
        until(lambda: metrics(service)["attention_inflight_requests", (("endpoint", "/attention"),)] == 0, 20)


def test_a_client_that_reads_next_to_nothing_is_let_go(service: Process) -> None:
    """It takes something whenever somebody looks, and 40 MB would be kept for it for hours."""
    body = samples.npy(np.ones((1600, 4), np.float32))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.connect(("127.0.0.1", service.port))
        headers = (f"content-type: {media.NPY}", f"accept: {media.SAFETENSORS}", f"content-length: {len(body)}")
        connection.sendall(head("/attention?encoding=alibi&heads=4&return=weights", *headers) + body)
        taken, began = 0, time.monotonic()
        try:
            while (piece := connection.recv(20_000)) and time.monotonic() - began < 20:
                taken += len(piece)
                time.sleep(0.05)
        except ConnectionResetError:
            pass
        assert time.monotonic() - began < 15
        assert 0 < taken < 20_000_000


def test_a_slow_reader_that_goes_on_gets_all_of_it(service: Process) -> None:
    body = samples.npy(np.ones((1000, 4), np.float32))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.connect(("127.0.0.1", service.port))
        headers = (f"content-type: {media.NPY}", f"accept: {media.SAFETENSORS}", f"content-length: {len(body)}")
        connection.sendall(head("/attention?return=weights", *headers, "connection: close") + body)
        found, began = bytearray(), time.monotonic()
        while piece := connection.recv(100_000):
            found += piece
            time.sleep(0.08)
        assert time.monotonic() - began > 2, "longer than what would have been waited for a reader that stops"
        assert len(answers(bytes(found))[0][1]) > 4_000_000


def connections(service: Process) -> int:
    """Open ones of the service, the one that listens left out."""
    port = f":{service.port:04X}"
    fields = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return sum(1 for line in fields if line[1].endswith(port) and line[3] == "01")


# What others may read in another way


CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMALL), SMALL)
NEXT = head("/models", method="GET")
"""Must not be answered where it is not certain that it is a request."""
CHUNKED = "transfer-encoding: chunked"
AMBIGUOUS = {
    "a length and chunks": head("/attention", f"content-length: {len(CHUNKS)}", CHUNKED) + CHUNKS,
    "chunks and a length": head("/attention", CHUNKED, "content-length: 4") + CHUNKS,
    "two lengths": head("/attention", "content-length: 1", f"content-length: {len(SMALL)}") + SMALL,
    "a length twice": head("/attention", *[f"content-length: {len(SMALL)}"] * 2) + SMALL,
    "a list of lengths": head("/attention", f"content-length: {len(SMALL)}, {len(SMALL)}") + SMALL,
    "a length with a sign": head("/attention", f"content-length: +{len(SMALL)}") + SMALL,
    "a length without end": head("/attention", "content-length: " + "9" * 30) + SMALL,
    "another coding": head("/attention", "transfer-encoding: xchunked") + CHUNKS,
    "another coding before chunks": head("/attention", "transfer-encoding: gzip, chunked") + CHUNKS,
    "chunks before another coding": head("/attention", "transfer-encoding: chunked, identity") + CHUNKS,
    "chunks twice": head("/attention", CHUNKED, CHUNKED) + CHUNKS,
    "a space before the colon": head("/attention", "transfer-encoding : chunked") + CHUNKS,
    "a control before the coding": head("/attention", "transfer-encoding: \x0bchunked") + CHUNKS,
    "a folded coding": head("/attention", "transfer-encoding:\r\n chunked") + CHUNKS,
    "a folded line": head("/attention", "x-a: b\r\n c", "content-length: 0"),
    "a chunk without an end": head("/attention", CHUNKED) + CHUNKS.replace(b"\r\n0\r\n", b"XX0\r\n"),
    "a chunk that ends in a line feed": head("/attention", CHUNKED) + CHUNKS.replace(b"\r\n", b"\n", 1),
    "a chunk too large for a number": head("/attention", CHUNKED) + b"f" * 17 + b"\r\n",
    "a chunk of less than nothing": head("/attention", CHUNKED) + b"-1\r\n",
    "line feeds alone": b"GET /models HTTP/1.1\nhost: x\n\n",
    "a zero byte in a header": head("/models", "x-a: \x00", method="GET"),
    "a header without a colon": head("/models", "abc", method="GET"),
    "no host": b"GET /models HTTP/1.1\r\n\r\n",
    "two hosts": head("/models", "host: y", method="GET"),
    "another version": b"GET /models HTTP/9.9\r\nhost: x\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("160301020001000200fc0303") + bytes(64),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_may_be_read_in_two_ways_is_refused_and_nothing_after_it_is_read(service: Process, name: str) -> None:
    before = metrics(service)
    with open_(service) as connection:
        connection.sendall(NEXT + AMBIGUOUS[name] + NEXT)  # the first one is answered first
        (status, _), (refused, content) = answers(told(connection))
    assert (status, refused) == (200, 400), content
    assert json.loads(content)["type"] == "urn:attention:problem:malformed"
    moved = counts.changes(before, metrics(service), "attention_requests_total")
    assert moved["", "/models", "200"] == 1


@pytest.mark.parametrize(
    "request_",
    [
        head("http://elsewhere/attention", f"content-length: {len(SMALL)}", f"content-type: {media.NPY}") + SMALL,
        head("/attention", "transfer-encoding:\tChunked", f"content-type: {media.NPY}") + CHUNKS,
        head("/attention", CHUNKED, f"content-type: {media.NPY}")
        + b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in SMALL)
        + b"0\r\nx-trailer: 1\r\n\r\n",
    ],
    ids=["a whole address", "a tab", "chunks of a byte"],
)
def test_what_is_odd_and_clear_is_answered(service: Process, request_: bytes) -> None:
    with open_(service) as connection:
        connection.sendall(request_ + NEXT + head("/models", "connection: close", method="GET"))
        assert [status for status, _ in answers(told(connection))] == [200, 200, 200]


def test_http_1_0_needs_no_host_and_ends_with_its_answer(service: Process) -> None:
    with open_(service) as connection:
        connection.sendall(b"GET /models HTTP/1.0\r\n\r\n")
        assert [status for status, _ in answers(told(connection))] == [200]


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_another_protocol_is_not_taken_up(service: Process, protocol: str) -> None:
    """The parser reads nothing after such a head, so the connection ends with the answer."""
    asks = ("connection: upgrade", f"upgrade: {protocol}")
    before = len(service.output)
    with open_(service) as connection:
        connection.sendall(head("/models", *asks, method="GET") + NEXT)
        found = told(connection)
        assert b"\r\nconnection: close\r\n" in found
        assert [status for status, _ in answers(found)] == [200]
    with open_(service) as connection:
        connection.sendall(head("/attention", *asks, f"content-length: {len(SMALL)}") + SMALL + NEXT)
        ((status, content),) = answers(told(connection))
        assert status == 400
        assert json.loads(content)["pointer"] == "header:Upgrade"
    assert get(service, "/health/live")[0] == 200
    assert service.output[before:] == [], "nobody can fill the log so"


def test_a_client_that_closes_the_side_on_which_it_sends_has_left(service: Process) -> None:
    before = metrics(service)
    with open_(service) as connection:
        body = samples.npy(np.random.default_rng(0).standard_normal((1200, 16)).astype(np.float32))
        headers = (f"content-type: {media.NPY}", f"content-length: {len(body)}")
        connection.sendall(head("/attention?heads=4&return=output", *headers) + body)
        connection.shutdown(socket.SHUT_WR)
        assert told(connection) == b""
    until(
        lambda: counts.changes(before, metrics(service), "attention_requests_total")["rope", "/attention", "499"] == 1
    )


# Many


def test_requests_that_come_all_at_once_are_answered_in_order(service: Process) -> None:
    one = head("/attention", f"content-type: {media.NPY}", f"content-length: {len(SMALL)}") + SMALL
    other = head("/models", method="GET")
    wrong = head("/attention?heads=3", f"content-type: {media.NPY}", f"content-length: {len(SMALL)}") + SMALL
    last = head("/health/live", "connection: close", method="GET")
    before = metrics(service)
    with open_(service) as connection:
        connection.sendall((one + other + wrong) * 100 + last)
        statuses = [status for status, _ in answers(told(connection))]
    assert statuses == [200, 200, 422] * 100 + [200]
    moved = counts.changes(before, metrics(service), "attention_requests_total")
    assert moved["rope", "/attention", "200"] == moved["rope", "/attention", "422"] == 100


def test_what_is_no_request_is_refused_after_the_answers_to_what_came_before(service: Process) -> None:
    body = samples.npy(np.random.default_rng(0).standard_normal((700, 16)).astype(np.float32))
    slow = head("/attention?heads=4&return=output", f"content-type: {media.NPY}", f"content-length: {len(body)}") + body
    for garbage, status in ((b"FROB / HTTP/1.1\r\n\r\n", 400), (b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\n", 431)):
        with open_(service) as connection:
            connection.sendall(slow + head("/models", method="GET") + garbage)
            assert [status for status, _ in answers(told(connection))] == [200, 200, status]


def test_a_body_that_breaks_off_into_nonsense_is_refused_at_once(service: Process) -> None:
    with open_(service) as connection:
        connection.sendall(head("/attention", f"content-type: {media.NPY}", "transfer-encoding: chunked") + b"zzz\r\n")
        ((status, _),) = answers(told(connection))
        assert status == 400


def test_many_requests_in_one_piece_take_no_memory(service: Process) -> None:
    request = head("/models", method="GET")
    flood = request * ((1 << 18) // len(request))
    before = service.resident
    with ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(open_(service))
            connection.settimeout(1)
            try:
                for _ in range(40):
                    connection.sendall(flood)
            except TimeoutError:
                pass
        assert get(service, "/health/live")[0] == 200
        assert service.resident - before < 100 << 20


HELD = """
import os, time
from service.engine.compute import Compute
run = Compute.__call__
def held(self, jobs, trigger):
    while jobs[0].queries.shape[-1] == 8192 and not os.path.exists({gate!r}):
        time.sleep(0.01)
    return run(self, jobs, trigger)
Compute.__call__ = held
"""


def test_wide_bodies_whose_requests_wait_take_the_memory_of_some_and_not_of_all(tmp_path: Path) -> None:
    """8,192 wide and few tokens: bytes that the cells of what waits do not tell of."""
    gate, count = tmp_path / "gate", LEAST // (4 * LIMIT) + 8
    body = samples.npy(np.ones((120, 8192), np.float32))
    assert 3 * LIMIT < len(body) < 4 * LIMIT
    with serving(
        workers="1", max_body_bytes="4MiB", deadline_seconds="600", before=HELD.format(gate=str(gate))
    ) as service:
        post(service, SMALL)
        before = service.resident
        refused: list[bytes] = []

        def client(_: int) -> int:
            status, content = post(service, body)
            if status == 429:
                refused.append(content)
                if len(refused) == 7:
                    gate.touch()
            return status

        with ThreadPoolExecutor(count) as threads:
            statuses = Counter(threads.map(client, range(count)))
        assert set(statuses) == {200, 429}
        assert statuses[429] >= 7
        assert b"bytes of bodies" in refused[0]
        assert service.resident - before < 3 * LEAST
        assert post(service, body)[0] == 200


def test_bodies_that_do_not_end_take_the_memory_of_some_and_not_of_all() -> None:
    with serving(workers="1", max_body_bytes="1MiB", body_seconds="60") as service:
        post(service, SMALL)
        before = service.resident
        with ExitStack() as stack:
            statuses = Counter[bytes]()
            kept = []
            for _ in range(TOGETHER + 24):
                connection = stack.enter_context(open_(service))
                connection.settimeout(0.3)
                connection.sendall(head("/attention", f"content-type: {media.NPY}", f"content-length: {LIMIT}"))
                try:
                    connection.sendall(bytes(LIMIT - 1000))
                    statuses[connection.recv(12)] += 1
                except TimeoutError:  # the rest of it is waited for
                    kept.append(connection)
            assert statuses[b"HTTP/1.1 429"] >= 20
            assert TOGETHER // 2 <= len(kept) <= TOGETHER
            assert service.resident - before < 3 * TOGETHER * LIMIT
            assert post(service, SMALL)[0] == 200
            kept[0].settimeout(30)
            kept[0].sendall(bytes(1000))
            assert kept[0].recv(12) == b"HTTP/1.1 400", "it came in full, and is no array"
        until(lambda: connections(service) == 0)
        assert post(service, samples.npy(np.ones((1000, 200), np.float32)), "rows=-1")[0] == 200


@pytest.fixture(scope="module")
def narrow() -> Iterator[Process]:
    with serving(workers="1", connections="10", keep_alive_seconds="600", header_seconds="600") as service:
        yield service


def test_connections_have_a_limit_and_health_is_told_all_the_same(narrow: Process) -> None:
    with ExitStack() as stack:
        kept = [stack.enter_context(open_(narrow)) for _ in range(10)]
        for connection in kept:
            assert alive(connection)
        for _ in range(30):  # one after the other: each is closed after its answer
            status, content = post(narrow, SMALL)
            assert status == 503
            assert "ATTENTION_CONNECTIONS" in json.loads(content)["detail"]
            assert get(narrow, "/health/ready")[0] == 200
        with open_(narrow) as connection:
            connection.sendall(head("/v2", method="GET"))
            answer = told(connection)
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in answer
            assert b"connection: close" in answer
        for connection in kept:  # those that are there are served
            assert alive(connection)
        found = metrics(narrow)
        rejected = counts.changes({}, found, "attention_rejected_total")
        assert rejected["connections",] >= 31
    until(lambda: post(narrow, SMALL)[0] == 200)


def test_idle_connections_above_the_limit_are_closed_soon(narrow: Process) -> None:
    with ExitStack() as stack:
        many = [stack.enter_context(open_(narrow)) for _ in range(10 + EXTRA + 40)]
        outcomes = Counter[bytes]()
        for connection in many[10:]:
            outcomes[told(connection)[9:12]] += 1
        assert set(outcomes) == {b"503", b""}
        assert outcomes[b"503"] >= 30, "refused unread"
        assert outcomes[b""] >= 30, "waited for, but not for long, and closed without a word"
    until(lambda: post(narrow, SMALL)[0] == 200)


def test_a_thousand_idle_connections_are_no_burden(service: Process) -> None:
    """A client that is served beside them notices nothing, and they are closed as soon as no request comes."""
    before = service.resident
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(open_(service))
        assert service.resident - before < 40 << 20
        assert post(service, SMALL)[0] == 200
        until(lambda: connections(service) <= 1, 20)
