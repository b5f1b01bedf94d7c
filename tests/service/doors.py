"""One application with two doors for the same requests: ASGI, and `Express`, which answers straight from the socket."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import safetensors.numpy
from fastapi import FastAPI

from service.app import Service, create_app
from service.engine.cost import Rates
from service.engine.session import Sessions
from service.express.express import Express
from service.sending import Sending
from service.settings import Settings
from service.wire import media

QUERY = "heads=2&return=weights"


class Connection:
    """A connection that keeps what was written to it."""

    first_lines = b"HTTP/1.1 200 OK\r\ndate: now\r\n"
    peer = "127.0.0.1"

    def __init__(self) -> None:
        self.written = b""
        self.held = self.closed = self.gone = False
        self.declined: bytes | None = None
        self.sending = Sending()

    def hold(self) -> None:
        self.held = True

    def reply(self, pieces: list[Any], *, close: bool) -> None:
        self.held, self.closed = False, close
        self.written += b"".join(map(bytes, pieces))

    def decline(self, data: bytes | bytearray) -> None:
        self.held, self.declined = False, bytes(data)


def head(length: int, query: str = QUERY, accept: str = media.SAFETENSORS, kind: str = media.NPY, **more: str) -> bytes:
    lines = [
        f"POST /attention?{query} HTTP/1.1",
        "host: here",
        f"content-type: {kind}",
        f"accept: {accept}",
        f"content-length: {length}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in more.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def request(body: bytes, query: str = QUERY, **more: str) -> bytes:
    return head(len(body), query, **more) + body


def parts(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and content of one answer."""
    first, _, content = answer.partition(b"\r\n\r\n")
    status, *lines = first.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert len(content) == int(headers["content-length"])
    return int(status.split()[1]), headers, content


def arrays(kind: str, content: bytes) -> dict[str, np.ndarray]:
    if kind == media.NPZ:
        with np.load(io.BytesIO(content)) as file:
            return {name: file[name] for name in file.files if name != "metadata"}
    return safetensors.numpy.load(content)


def metadata(kind: str, content: bytes) -> dict[str, Any]:
    """Without what tells of time."""
    if kind == media.NPZ:
        with np.load(io.BytesIO(content)) as file:
            text = file["metadata"].tobytes()
    else:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        text = header["__metadata__"]["metadata"]
    found: dict[str, Any] = json.loads(text)
    timings = found.pop("timings")
    assert list(timings) == ["decode_ms", "queue_ms", "batch_assembly_ms", "compute_ms", "postprocess_ms", "batch_jobs"]
    return found


def names(kind: str, content: bytes) -> list[str]:
    """In the order of the file."""
    if kind == media.NPZ:
        with np.load(io.BytesIO(content)) as file:
            return list(file.files)
    return list(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]))


def asgi(runner: asyncio.Runner, app: FastAPI, scope: dict[str, Any], body: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and content of what the application answers."""
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    async def main() -> None:
        await app(scope, receive, send)

    runner.run(main())
    named = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
    return messages[0]["status"], named, b"".join(bytes(one["body"]) for one in messages[1:])


class Door:
    """One application, asked the long way and the short one, on one event loop."""

    def __init__(self, runner: asyncio.Runner, sessions: Sessions | None = None) -> None:
        self.runner = runner
        self.app: FastAPI = create_app(Settings(device="cpu", workers=1), sessions=sessions)
        self.service: Service = self.app.state.service
        self.express: Express = self.app.state.express
        self._life = self.app.router.lifespan_context(self.app)
        runner.run(self._life.__aenter__())
        # What is small does not depend on who else uses the machine.
        costs = self.service.engine._policy.costs
        costs.rates = Rates()
        costs.record = lambda *_: None

    def close(self) -> None:
        self.runner.run(self._life.__aexit__(None, None, None))

    def long(self, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        """What ASGI answers; `express` learns the head as from the server."""
        first, _, body = sent.partition(b"\r\n\r\n")
        line, *lines = first.decode().split("\r\n")
        path, _, query = line.split()[1].partition("?")
        headers = [tuple(part.encode() for part in one.split(": ", 1)) for one in lines]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "query_string": query.encode(),
            "headers": headers,
        }
        for _ in range(2):  # what came once is not remembered
            self.express.learn(first + b"\r\n\r\n", scope)
        return asgi(self.runner, self.app, scope, body)

    def short(self, *sent: bytes) -> list[tuple[int, dict[str, str], bytes]] | None:
        """What is answered straight away, all in one turn; None where none is taken, or all are declined."""
        connections = [Connection() for _ in sent]

        async def main() -> bool:
            taken = [self.express.take(one, data) for one, data in zip(connections, sent, strict=True)]
            assert len(set(taken)) == 1
            while any(one.held for one in connections):
                await asyncio.sleep(0)
            return taken[0]

        if not self.runner.run(main()):
            return None
        declined = [one.declined for one in connections]
        if any(declined):
            assert declined == list(sent)
            return None
        return [parts(one.written) for one in connections]


@contextmanager
def opened(sessions: Sessions | None = None) -> Iterator[Door]:
    with asyncio.Runner() as runner:
        door = Door(runner, sessions)
        yield door
        door.close()


def embeddings(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
