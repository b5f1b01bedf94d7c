"""One process of clients that have their tensors in shared memory, run as `python -m load_tests.bench.shared_client`.

Arguments: port, tokens, sequences of a request, connections, seconds. It says that it is ready, waits for a line, and
prints one of JSON. Every connection has one request under way.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from http.client import HTTPConnection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from load_tests.bench import graph, job
from load_tests.bench.throughput import HEADS, OUTPUTS, WIDTH

MODEL = f"identity.{graph.ENCODING}"
WARM_UP = 0.25
"""Seconds at the beginning that are not counted."""


class WrongAnswer(Exception):
    """Something other than what was asked for came back."""


class Client:
    """A connection, and a region for what it sends and gets."""

    def __init__(self, port: int, tokens: int, sequences: int, stack: ExitStack) -> None:
        vectors = np.repeat(job.vectors(tokens, WIDTH)[None], sequences, axis=0)
        size = sequences * HEADS * tokens * tokens * 4
        self.tokens = tokens
        self.sequences = sequences
        memory = SharedMemory(create=True, size=vectors.nbytes + len(OUTPUTS) * size)
        stack.callback(memory.unlink)
        stack.callback(memory.close)
        assert memory.buf is not None
        self.memory: memoryview = memory.buf
        self.start = vectors.nbytes
        self.memory[: vectors.nbytes] = vectors.tobytes()
        _post(port, f"/v2/systemsharedmemory/region/{memory.name}/register", key=memory.name, byte_size=memory.size)
        stack.callback(_post, port, f"/v2/systemsharedmemory/region/{memory.name}/unregister")
        self.request = _request(memory.name, list(vectors.shape), vectors.nbytes, size)
        self.socket = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def check(self) -> None:
        """Raises WrongAnswer where the weights in the region are not those of the formula."""
        count = HEADS * self.tokens * self.tokens
        came: np.ndarray[Any, Any] = np.frombuffer(self.memory, np.float32, self.sequences * count, self.start).copy()
        wanted = job.weights(job.vectors(self.tokens, WIDTH), HEADS).reshape(-1)
        error = np.abs(came.reshape(self.sequences, count) - wanted).max()
        if not error <= job.TOLERANCE:
            raise WrongAnswer(f"a weight is off by {error:.2e}")


def _request(region: str, shape: Sequence[int], size: int, each: int) -> bytes:
    """All bytes of one request."""
    inside: dict[str, Any] = {"shared_memory_region": region, "shared_memory_byte_size": each}
    outputs = [
        {"name": name, "parameters": inside | {"shared_memory_offset": size + i * each}}
        for i, name in enumerate(OUTPUTS)
    ]
    embeddings = {"name": "embeddings", "shape": shape, "datatype": "FP32"}
    document = {
        "parameters": {"heads": HEADS},
        "inputs": [embeddings | {"parameters": inside | {"shared_memory_byte_size": size}}],
        "outputs": outputs,
    }
    body = json.dumps(document).encode()
    return b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
        MODEL.encode(),
        len(body),
        body,
    )


def _post(port: int, path: str, **members: Any) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, json.dumps(members) if members else b"")
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status != 200:
        raise WrongAnswer(f"{path}: {answer.status} {content[:300]!r}")


def run(clients: Sequence[Client], seconds: float) -> tuple[int, float]:
    """Requests answered, and seconds in which they were."""
    poll = select.epoll()
    by_number = {client.socket.fileno(): (client.socket, client.request) for client in clients}
    pieces = dict.fromkeys(by_number, b"")
    for number, (connection, request) in by_number.items():
        poll.register(number, select.EPOLLIN)
        connection.sendall(request)
    answered, began, end = 0, 0.0, time.perf_counter() + WARM_UP
    while True:
        for number, _ in poll.poll():
            connection, request = by_number[number]
            data = connection.recv(65536)
            if not data.endswith(b"]}"):  # the end of every answer to this
                pieces[number] += data
                if not data or not pieces[number].endswith(b"]}"):
                    _check_begun(data, pieces[number])
                    continue
                data, pieces[number] = pieces[number], b""
            connection.send(request)
            answered += 1
        if time.perf_counter() >= end:
            if began:
                poll.close()
                return answered, time.perf_counter() - began
            answered, began = 0, time.perf_counter()
            end = began + seconds


def _check_begun(data: bytes, whole: bytes) -> None:
    if not data or not whole.startswith(b"HTTP/1.1 200"):
        raise WrongAnswer(f"the service answered {whole[:300]!r}")


def main(port: int, tokens: int, sequences: int, connections: int, seconds: float) -> None:
    with ExitStack() as stack:
        clients = [Client(port, tokens, sequences, stack) for _ in range(connections)]
        print("ready", flush=True)
        sys.stdin.readline()
        answered, took = run(clients, seconds)
        for client in clients:
            client.socket.recv(65536)
            client.check()
        print(json.dumps({"requests": answered, "seconds": took}))


if __name__ == "__main__":
    port, tokens, sequences, connections = map(int, sys.argv[1:5])
    main(port, tokens, sequences, connections, float(sys.argv[5]))
