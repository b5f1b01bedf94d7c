"""Requests whose tensors lie in shared memory, straight from the socket: the same answers as the long way's."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.app import create_app
from service.engine.policy import CpuPolicy
from service.express.shared import AGAIN, PATIENCE, REQUESTS
from service.settings import Settings
from service.shared_memory.regions import Regions
from tests.service import counts
from tests.service.doors import Connection, asgi, parts

SIZE = 1 << 20
X = np.random.default_rng(3).standard_normal((12, 32)).astype(np.float32)


class Door:
    """One application with shared memory, asked the long way and the short one, on one event loop."""

    def __init__(self, runner: asyncio.Runner, folder: Path) -> None:
        self.runner = runner
        self.regions = Regions(folder)
        self.app = create_app(Settings(device="cpu", workers=1, shared_memory=True), regions=self.regions)
        self.express = self.app.state.express
        self.known = self.express.shared._known
        self._life = self.app.router.lifespan_context(self.app)
        runner.run(self._life.__aenter__())

    def close(self) -> None:
        self.runner.run(self._life.__aexit__(None, None, None))

    def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """What ASGI answers; `express` learns the head as from the server."""
        named = {"host": "here", "content-length": str(len(body)), **headers}
        lines = [(name.encode(), value.encode()) for name, value in named.items()]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": lines,
            "client": ("127.0.0.1", 1),
        }
        self.express.learn(head(method, path, named), scope)
        return asgi(self.runner, self.app, scope, body)

    def short(self, sent: bytes, peer: str = "127.0.0.1") -> tuple[int, dict[str, str], bytes] | None:
        """What is answered straight away; None where it is not taken, or declined."""

        async def main() -> Connection | None:
            connection = Connection()
            connection.peer = peer
            if not self.express.take(connection, sent):
                return None
            while not connection.written and connection.declined is None:
                await asyncio.sleep(0.001)
            return connection

        connection = self.runner.run(main())
        return None if connection is None or not connection.written else parts(connection.written)

    def metrics(self) -> dict[counts.Key, float]:
        return counts.parse(self.call("GET", "/metrics")[2].decode())


def head(method: str, path: str, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with asyncio.Runner() as runner:
        door = Door(runner, tmp_path_factory.mktemp("regions"))
        yield door
        door.close()


class Memory:
    """A region of the door's, and requests for what lies in it."""

    def __init__(self, door: Door, name: str) -> None:
        self.path = Path(f"/dev/shm/attention-{os.getpid()}-{name}")
        self.path.write_bytes(bytes(SIZE))
        self.name = name
        door.regions.register(name, f"/{self.path.name}", 0, SIZE)
        self.bytes = np.memmap(self.path, np.uint8, "r+")
        self.put(X)

    def put(self, x: np.ndarray) -> None:
        self.bytes[: x.nbytes] = x.reshape(-1).view(np.uint8)

    def body(self, *names: str, x: np.ndarray = X, heads: int = 4, **members: Any) -> bytes:
        """For these outputs, 64 KiB apart."""
        inside = {"shared_memory_region": self.name}
        asked = [
            {
                "name": name,
                "parameters": {
                    **inside,
                    "shared_memory_offset": 65536 * (i + 1) + (1 << 18),
                    "shared_memory_byte_size": SIZE - 65536 * (i + 1) - (1 << 18),
                },
            }
            for i, name in enumerate(names)
        ]
        embeddings: dict[str, Any] = {"name": "embeddings", "shape": x.shape, "datatype": "FP32"}
        embeddings["parameters"] = {**inside, "shared_memory_byte_size": x.nbytes}
        document = {"inputs": [embeddings], "outputs": asked, "parameters": {"heads": heads}, **members}
        return json.dumps(document).encode()


@pytest.fixture
def memory(door: Door, request: pytest.FixtureRequest) -> Iterator[Memory]:
    made = Memory(door, request.node.name[:60].replace("/", "-"))
    yield made
    made.path.unlink(missing_ok=True)
    door.regions.clear()
    door.express.shared.forget()


PATH = "/v2/models/identity.rope/infer"
TERMS = {"rope": "term.fast", "sinusoidal": "term.position-content"}


def request(body: bytes, path: str = PATH, **headers: str) -> bytes:
    return head("POST", path, {"host": "here", "content-length": str(len(body)), **headers}) + body


def settle(door: Door, body: bytes, path: str = PATH, **headers: str) -> tuple[dict[str, str], bytes]:
    """The long way, twice: now what it needs is known. Its headers and content."""
    door.call("POST", path, body, **headers)
    status, said, content = door.call("POST", path, body, **headers)
    assert status == 200, content
    return said, content


@pytest.mark.parametrize("encoding", ["rope", "alibi", "t5", "sinusoidal", "cope"])
@pytest.mark.parametrize("names", [("scores",), ("weights", "scores"), ("output", "weights"), ("term.content",)])
def test_the_short_way_gives_the_same_bytes(door: Door, memory: Memory, encoding: str, names: tuple[str, ...]) -> None:
    path = f"/v2/models/identity.{encoding}/infer"
    if "term.content" in names:
        names = (TERMS.get(encoding, "term.content"),)
    body = memory.body(*names, id="mine")
    said, content = settle(door, body, path)
    lying = memory.bytes.copy()
    for _ in range(2):
        memory.bytes[1 << 18 :] = 0
        found = door.short(request(body, path))
        assert found is not None
        status, headers, came = found
        assert (status, came) == (200, content)
        assert (memory.bytes == lying).all()
        varying = ("x-request-id", "server-timing")
        assert {name: value for name, value in headers.items() if name not in (*varying, "date")} == {
            name: value for name, value in said.items() if name not in varying
        }
        for stage in ("decode", "queue", "batch_assembly", "compute", "postprocess", "serialize", "total"):
            assert f"{stage};dur=" in headers["server-timing"]


@pytest.mark.parametrize("inline", [True, False], ids=["on the event loop", "by a worker"])
def test_both_lanes_answer_and_are_counted_as_the_long_way_is(
    door: Door, memory: Memory, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuPolicy, "inline", lambda *_: inline)
    body = memory.body("scores")
    settle(door, body)
    expected = memory.bytes.copy()
    assert door.short(request(body)) is not None  # it is read
    stats = "/v2/models/identity.rope/stats"
    own = {"/metrics", "/v2/models/{model}/stats"}

    def moved(ask: Any) -> list[Any]:
        def statistics() -> Any:
            found = json.loads(door.call("GET", stats)[2])["model_stats"][0]
            return found["inference_count"], found["execution_count"], found["inference_stats"]["success"]["count"]

        before, counted = door.metrics(), statistics()
        memory.bytes[1 << 18 :] = 0
        ask()
        assert (memory.bytes == expected).all()
        after = door.metrics()
        names = [
            *("attention_requests_total", "attention_request_duration_seconds_count"),
            *("attention_stage_duration_seconds_count", "attention_request_bytes_sum", "attention_response_bytes_sum"),
            *("attention_batches_total", "attention_batch_requests_sum", "attention_tokens_total"),
            *("attention_sequences_total", "attention_sequence_length_tokens_sum", "attention_nonfinite_outputs_total"),
        ]
        found = [
            {key: value for key, value in counts.changes(before, after, name).items() if not own & set(key)}
            for name in names
        ]
        return [*found, [now - then for now, then in zip(statistics(), counted, strict=True)]]

    long = moved(lambda: door.call("POST", PATH, body))
    assert moved(lambda: door.short(request(body))) == long
    assert long[0]
    assert door.app.state.service.lifecycle.inflight == 0


def test_numbers_are_read_anew_and_checked(door: Door, memory: Memory) -> None:
    body = memory.body("scores")
    settle(door, body)
    assert door.short(request(body)) is not None
    memory.put(2 * X)
    memory.bytes[1 << 18 :] = 0
    assert door.short(request(body)) is not None
    doubled = memory.bytes.copy()
    door.call("POST", PATH, body)
    assert (memory.bytes == doubled).all()
    broken = X.copy()
    broken[1, 2] = np.nan
    memory.put(broken)
    assert door.short(request(body)) is None
    status, _, content = door.call("POST", PATH, body)
    assert (status, b"/embeddings/1/2 is nan" in content) == (400, True)
    memory.put(X)
    assert door.short(request(body)) is not None


@pytest.mark.parametrize("kind", [np.float16, np.float64, np.int8])
def test_numbers_of_another_type_are_read_anew_as_well(door: Door, memory: Memory, kind: Any) -> None:
    datatype = {np.float16: "FP16", np.float64: "FP64", np.int8: "INT8"}[kind]
    x: np.ndarray = np.round(4 * X).astype(kind)
    document = json.loads(memory.body("scores", x=x))
    document["inputs"][0]["datatype"] = datatype
    body = json.dumps(document).encode()
    memory.put(x)
    settle(door, body)
    for factor in (1, 2, 3):
        memory.put((factor * x).astype(kind))
        door.call("POST", PATH, body)
        expected = memory.bytes.copy()
        memory.bytes[1 << 18 :] = 0
        if door.short(request(body)) is None:
            door.call("POST", PATH, body)
        assert (memory.bytes == expected).all()


def test_answers_that_are_not_finite_say_so(door: Door, memory: Memory) -> None:
    body = memory.body("scores", "weights")
    settle(door, body)
    memory.put(np.full_like(X, 1e30))
    _, _, content = door.call("POST", PATH, body)
    cells = json.loads(content)["parameters"]["nonfinite_cells"]
    assert cells > 0
    before = door.metrics()
    found = door.short(request(body))
    assert found is not None
    assert found[2] == content
    assert counts.changes(before, door.metrics(), "attention_nonfinite_outputs_total") == {("rope",): 1}


def test_a_region_that_goes_or_shrinks_takes_the_long_way(door: Door, memory: Memory) -> None:
    body = memory.body("scores")
    settle(door, body)
    assert door.short(request(body)) is not None
    door.regions.unregister(memory.name)
    assert door.short(request(body)) is None
    assert b"unknown shared memory region" in door.call("POST", PATH, body)[2]
    door.regions.register(memory.name, f"/{memory.path.name}", 0, SIZE)
    assert door.short(request(body)) is not None
    os.truncate(memory.path, 4096)
    assert door.short(request(body)) is None
    assert b"has 4096 now" in door.call("POST", PATH, body)[2]


@pytest.mark.parametrize("inline", [True, False], ids=["on the event loop", "by a worker"])
def test_a_region_that_shrinks_during_the_run_takes_the_long_way(
    door: Door, memory: Memory, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuPolicy, "inline", lambda *_: inline)
    body = memory.body("scores")
    settle(door, body)
    assert door.short(request(body)) is not None
    compute = door.app.state.service.engine._compute
    run = compute._run

    def shrinking(*arguments: Any) -> Any:
        os.truncate(memory.path, 4096)
        return run(*arguments)

    monkeypatch.setattr(compute, "_run", shrinking)
    assert door.short(request(body)) is None
    monkeypatch.undo()
    assert b"has 4096 now" in door.call("POST", PATH, body)[2]


def test_what_others_send_for_a_client_elsewhere_and_odd_requests_are_not_taken(door: Door, memory: Memory) -> None:
    body = memory.body("scores")
    settle(door, body)
    assert door.short(request(body)) is not None
    assert door.short(request(body), peer="192.0.2.1") is None
    for headers in (
        {"x-forwarded-for": "192.0.2.1"},
        {"accept-encoding": "gzip"},
        {"x-request-id": "mine"},
        {"connection": "close"},
    ):
        door.call("POST", PATH, body, **headers)
        assert door.short(request(body, **headers)) is None, headers
    timed = memory.body("scores", parameters={"heads": 4, "timeout": 10_000_000})
    settle(door, timed)
    assert door.short(request(timed)) is None
    some = json.loads(body)
    some["outputs"].append({"name": "weights"})
    mixed = json.dumps(some).encode()
    settle(door, mixed)
    assert door.short(request(mixed)) is None
    assert door.short(request(body)[:-1]) is None


def test_a_head_of_which_nothing_can_be_taken_is_looked_at_seldom(door: Door, memory: Memory) -> None:
    body = memory.body("scores", parameters={"heads": 4, "timeout": 10_000_000})
    settle(door, body)
    (head,) = [one for said, one in door.express.shared._heads.items() if b"content-length: %d\r" % len(body) in said]
    for _ in range(PATIENCE + 1):
        assert door.short(request(body)) is None
    assert head.hopeless
    assert door.express.shared.expects(request(body)[:-5]) is None
    for _ in range(AGAIN):
        assert door.short(request(body)) is None
    assert head.refused > AGAIN


def test_what_is_remembered_has_an_end_and_goes_with_its_region(door: Door, memory: Memory) -> None:
    for i in range(REQUESTS + 10):
        body = memory.body("scores", id=f"{i:06}")
        if not i:
            settle(door, body)
        assert door.short(request(body)) is not None
    assert 0 < len(door.known) <= REQUESTS
    door.regions.clear()
    door.express.shared.sweep()
    assert not door.known


def test_clients_that_leave_are_not_computed_for(door: Door, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPolicy, "inline", lambda *_: False)
    body = memory.body("scores")
    settle(door, body)
    assert door.short(request(body)) is not None
    before = door.metrics()

    async def never(*_: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(door.express.shared.scoring.engine, "run", never)

    async def main() -> Connection:
        connection = Connection()
        assert door.express.take(connection, request(body))
        connection.gone = True
        while door.express.lifecycle.inflight:
            await asyncio.sleep(0.001)
        return connection

    connection = door.runner.run(main())
    assert not connection.written
    assert connection.declined is None
    moved = counts.changes(before, door.metrics(), "attention_requests_total")
    assert moved["rope", "/v2/models/{model}/infer", "499"] == 1
