"""Failures that ended other serving systems, with the whole service in the loop: what is answered straight from the
socket, too."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI
from prometheus_client import generate_latest

from service.app import Service, create_app
from service.engine.engine import Pending, Ticket
from service.engine.job import Job
from service.engine.session import Sessions
from service.exchange import Exchange
from service.express.routine import Waiting
from service.protocol import Protocol
from service.settings import Settings
from service.wire import body as bodies
from service.wire import media
from tests.service import counts, samples

SMALL = samples.npy(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32))
MARKED = samples.npy(np.full((8, 16), 3.0, np.float32))
"""Fails where its number is looked for."""
LONG = samples.npy(np.random.default_rng(0).standard_normal((400, 16)).astype(np.float32))
"""Needs a worker."""


class Breaking(Sessions):
    """Sessions that fail as they are told: all runs, so many of them, or those that have a marked number."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.broken = False
        self.times = 0
        self.marked = False
        self.lock = threading.Lock()

    def run(
        self, graph: Any, outputs: Any, masked: bool, feeds: Any, switches: Any = (), into: Any = None
    ) -> dict[str, np.ndarray]:
        with self.lock:
            fails = self.broken or self.times > 0
            self.times -= self.times > 0
        if fails or (self.marked and (feeds["queries"] == 3.0).any()):
            raise RuntimeError("no kernel for this")
        return super().run(graph, outputs, masked, feeds, switches, into)


def service_of(app: FastAPI) -> Service:
    found: Service = app.state.service
    return found


@asynccontextmanager
async def listening(sessions: Sessions, **settings: Any) -> AsyncIterator[tuple[FastAPI, int]]:
    """The service as it is served, over a socket, and its port."""
    app = create_app(Settings(device="cpu", workers=1, **settings), sessions=sessions)
    protocol = partial(Protocol, header_seconds=20, express=app.state.express)
    config = uvicorn.Config(app, http=protocol, lifespan="off", log_config=None, access_log=False)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    config.load()
    async with app.router.lifespan_context(app):
        loop = asyncio.get_running_loop()
        found = await loop.create_server(
            lambda: protocol(config=config, server_state=server.server_state, app_state={}),
            "127.0.0.1",
            0,
        )
        async with found:
            yield app, found.sockets[0].getsockname()[1]


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(
        self,
        body: bytes,
        path: str = "/attention?heads=2&return=output",
        method: str = "POST",
        missing: int = 0,
        accept: str = media.SAFETENSORS,
    ) -> None:
        """But for the last bytes, where some are to be missing."""
        self.writer.write(
            f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {media.NPY}\r\naccept: {accept}\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body[: len(body) - missing]
        )

    async def answer(self) -> int:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[16:]) for line in head.split("\r\n") if line.lower().startswith("content-length: "))
        await self.reader.readexactly(length)
        return int(head.split()[1])

    async def ask(self, body: bytes, **more: Any) -> int:
        self.send(body, **more)
        return await asyncio.wait_for(self.answer(), 30)


def metrics(app: FastAPI) -> dict[counts.Key, float]:
    return counts.parse(generate_latest(service_of(app).telemetry.registry).decode())


@pytest.fixture
def sessions(caplog: pytest.LogCaptureFixture) -> Breaking:
    caplog.set_level(logging.CRITICAL)  # each failure is logged, and there are thousands
    return Breaking()


@pytest.mark.parametrize("body", [SMALL, LONG], ids=["from the socket", "by a worker"])
def test_a_run_that_fails_once_is_one_500_or_none_and_the_next_is_served(sessions: Breaking, body: bytes) -> None:
    """infinity#544: a model thread died, every request hung, and health stayed 200."""

    async def main() -> None:
        async with listening(sessions) as (app, port), Client(port) as client:
            for _ in range(3):
                assert await client.ask(body) == 200
            sessions.times = 1
            first = await client.ask(body)
            assert first in (200, 500), "what is answered from the socket is tried once more by itself"
            assert await client.ask(body) == 200
            assert await client.ask(b"", path="/health/ready", method="GET") == 200
            found = counts.changes({}, metrics(app), "attention_requests_total")
            assert found["rope", "/attention", "200"] + found["rope", "/attention", "500"] == 5

    asyncio.run(main())


@pytest.mark.parametrize("body", [SMALL, LONG], ids=["from the socket", "by a worker"])
def test_runs_that_fail_again_and_again_turn_readiness_off_and_their_recovery_on(
    sessions: Breaking, body: bytes
) -> None:
    async def main() -> None:
        async with listening(sessions) as (app, port), Client(port) as client:
            service_of(app).engine._recheck = 0.05
            for _ in range(3):
                assert await client.ask(body) == 200
            sessions.broken = True
            statuses = Counter[int]()
            for _ in range(200):
                statuses[await client.ask(body)] += 1
                if await client.ask(b"", path="/health/ready", method="GET") == 503:
                    break
            else:
                pytest.fail(f"still ready after {statuses}")
            assert set(statuses) <= {500, 503}
            assert statuses[500] >= 1
            assert await client.ask(body) == 503
            assert await client.ask(b"", path="/health/live", method="GET") == 200
            sessions.broken = False
            async with asyncio.timeout(20):
                while await client.ask(b"", path="/health/ready", method="GET") == 503:
                    await asyncio.sleep(0.02)
            assert await client.ask(body) == 200
            found = counts.changes({}, metrics(app), "attention_requests_total")
            answered = sum(count for labels, count in found.items() if labels[1] == "/attention")
            assert answered == 3 + statuses.total() + 2

    asyncio.run(main())


def test_one_that_fails_among_those_it_shares_a_run_with_fails_alone(sessions: Breaking) -> None:
    async def main() -> None:
        async with listening(sessions) as (app, port):
            clients = [await Client(port).__aenter__() for _ in range(16)]
            for client in clients:
                assert await client.ask(SMALL) == 200
            sessions.marked = True
            for _ in range(5):
                for i, client in enumerate(clients):
                    client.send(MARKED if i in (3, 11) else SMALL)
                found = [await client.answer() for client in clients]
                assert found == [500 if i in (3, 11) else 200 for i in range(16)]
            assert service_of(app).engine.ready
            for client in clients:
                client.writer.close()

    asyncio.run(main())


class Still(asyncio.SelectorEventLoop):
    """An event loop whose clock can be stopped: then no timer ever ends."""

    stopped: float | None = None

    def time(self) -> float:
        return super().time() if self.stopped is None else self.stopped


@pytest.mark.parametrize("body", [SMALL, LONG], ids=["from the socket", "by a worker"])
def test_who_asks_alone_is_answered_while_time_stands_still(
    sessions: Breaking, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LitServe#481: a fixed time was waited for others to share a run with. Here nothing is waited for: neither a timer
    of the event loop nor, in a worker, anything that ends by itself. The first requests go by way of the framework."""
    waits: list[float | None] = []
    wait, sleep = threading.Condition.wait, time.sleep

    def noted(seconds: float | None) -> None:
        if threading.current_thread().name.startswith("attention-engine"):
            waits.append(seconds)

    def waited(condition: threading.Condition, timeout: float | None = None) -> bool:
        noted(timeout)
        return wait(condition, timeout)

    def slept(seconds: float) -> None:
        noted(seconds)
        sleep(seconds)

    monkeypatch.setattr(threading.Condition, "wait", waited)
    monkeypatch.setattr(time, "sleep", slept)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Still)
        async with listening(sessions) as (_, port), Client(port) as client:
            loop.stopped = loop.time()
            try:
                for _ in range(5):
                    client.send(body)
                    answer, deadline = asyncio.create_task(client.answer()), time.monotonic() + 20
                    while not answer.done():
                        assert time.monotonic() < deadline, "it waits for a time that does not come"
                        await asyncio.sleep(0)
                    assert await answer == 200
            finally:
                loop.stopped = None

    with asyncio.Runner(loop_factory=Still) as runner:
        runner.run(main())
    assert set(waits) <= {None}
    assert waits or body == SMALL


def resident() -> int:
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def alive() -> Counter[str]:
    gc.collect()
    kinds = (Ticket, Pending, Job, Exchange, Waiting, asyncio.Task)
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in kinds)


def test_ten_thousand_requests_of_which_a_third_leave_or_fail_leave_nothing_behind(sessions: Breaking) -> None:
    """LitServe#452: a map of responses grew with every failure. Every request is counted, and once."""
    dice = random.Random(0)
    wrong = SMALL[:-4] + b"\x00\x00\xc0\x7f"
    seen = Counter[str]()

    async def some(port: int, requests: int) -> None:
        """On one connection after the other: a client that leaves takes its connection with it."""
        left = requests
        while left:
            async with Client(port) as client:
                while left:
                    left -= 1
                    kind = dice.random()
                    body = LONG if dice.random() < 0.02 else SMALL
                    if kind < 0.15:
                        client.send(body, missing=10 if dice.random() < 0.3 else 0)
                        if dice.random() < 0.5:
                            await client.writer.drain()
                            await asyncio.sleep(0)
                        seen["left"] += 1
                        break
                    if kind < 0.25:
                        seen[str(await client.ask(MARKED))] += 1
                    elif kind < 0.3:
                        seen[str(await client.ask(wrong))] += 1
                    else:
                        seen[str(await client.ask(body))] += 1

    async def main() -> None:
        async with listening(sessions) as (app, port):
            service = service_of(app)
            service.engine._failures_allowed = 10**6
            sessions.marked = True
            await asyncio.gather(*(some(port, 100) for _ in range(20)))
            await asyncio.sleep(0.2)
            before, memory = alive(), resident()
            first = seen.total()
            for _ in range(4):
                await asyncio.gather(*(some(port, 100) for _ in range(20)))
            async with asyncio.timeout(20):
                while service.lifecycle.inflight or service.engine.waiting_requests:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            assert seen.total() == 10_000
            assert seen.total() - first == 8_000
            after = alive()
            for kind, count in after.items():
                assert count <= before[kind] + 30, (before, after)
            assert resident() < memory + (48 << 20)
            assert service.engine.queued_jobs == service.engine.queued_cells == 0
            assert service.engine.ready
            found = metrics(app)
            assert counts.total(found, "attention_inflight_requests") == 0
            told = counts.changes({}, found, "attention_requests_total")
            statuses = Counter[str]()
            for (_, endpoint, status), count in told.items():
                assert endpoint == "/attention"
                statuses[status] += count
            assert statuses["422"] == seen["422"]
            assert statuses["500"] == seen["500"]
            # Those that left were answered all the same, or not: whether they had come was never seen by some.
            assert seen["200"] <= statuses["200"] <= seen["200"] + seen["left"]
            assert statuses["200"] + statuses["499"] <= seen["200"] + seen["left"]
            assert set(statuses) <= {"200", "422", "499", "500"}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("accept", "query"), [(media.SAFETENSORS, "&dtype=float16"), (media.NPZ, ""), (media.JSON, "&arrays=base64")]
)
def test_a_large_answer_is_written_beside_the_event_loop_and_a_small_one_on_it(
    sessions: Breaking, accept: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm#41681: writing answers took several times as long as computing them, and held up everybody else."""
    wrote: list[str] = []
    encode = bodies.encode

    def noted(*arguments: Any) -> Any:
        wrote.append(threading.current_thread().name)
        return encode(*arguments)

    monkeypatch.setattr(bodies, "encode", noted)

    async def main() -> list[str]:
        async with listening(sessions) as (_, port), Client(port) as client:
            found = []
            for tokens in (8, 600):
                content = samples.npy(np.ones((tokens, 16), np.float32))
                assert await client.ask(content, path=f"/attention?return=weights{query}", accept=accept) == 200
                found.append(wrote[-1])
            return found

    small, large = asyncio.run(main())
    assert small == threading.main_thread().name != large


INFER = "/v2/models/identity.rope/infer"
PROTOCOL = b'{"inputs": [{"name": "embeddings", "datatype": "FP32", "shape": [1, 90, 16], "data": [%b]}]%b}'
NINETY = np.random.default_rng(0).standard_normal((90, 16)).astype(np.float32)
"""Its matrices have 8,100 numbers."""


def test_no_matrix_is_made_a_list_on_its_way_out(sessions: Breaking) -> None:
    """vllm#41681: `.tolist()` took most of the time of an answer. In every format, by every door."""
    watched, body = False, samples.npy(NINETY)
    largest: dict[str, int] = {}

    def look(_: object, event: str, called: Any) -> None:
        if watched and event == "c_call" and called.__name__ in ("tolist", "tobytes"):
            owner = called.__self__
            if isinstance(owner, np.ndarray):
                largest[called.__name__] = max(owner.size, largest.get(called.__name__, 0))

    async def main() -> None:
        nonlocal watched
        async with listening(sessions) as (_, port), Client(port) as client:
            watched = True
            sys.setprofile(look)
            for accept, query in (
                (media.JSON, ""),
                (media.JSON, "&arrays=base64"),
                (media.SAFETENSORS, ""),
                (media.SAFETENSORS, "&dtype=float16"),
                (media.NPZ, ""),
            ):
                for returns in ("weights,scores", "weights,output,terms,summary"):
                    path = f"/attention?heads=2&return={returns}{query}"
                    for _ in range(4):  # then they are answered from the socket
                        assert await client.ask(body, path=path, accept=accept) == 200
            numbers = ",".join(map(str, NINETY.ravel())).encode()
            for binary in (b"", b', "parameters": {"binary_data_output": true}'):
                assert await client.ask(PROTOCOL % (numbers, binary), path=INFER, accept=media.JSON) == 200

    threading.setprofile(look)
    try:
        asyncio.run(main())
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert largest["tolist"] < 1000, "those of a summary are"
    assert largest.get("tobytes", 0) < 1000
