"""The application as a whole, over plain ASGI: starting, refusing, clients that leave, failures, the end."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from prometheus_client import generate_latest
from pydantic import ByteSize
from starlette.testclient import TestClient

from service.app import Service, create_app
from service.engine.job import Job
from service.engine.session import Sessions
from service.errors import NotReady
from service.settings import Settings
from service.wire import media
from tests.service import counts, samples

BODY = samples.npy(np.ones((4, 8), np.float32))


class Gated(Sessions):
    """Sessions that compute only while the gate is open, and may be told to fail."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.failure: Exception | None = None
        self.runs = 0

    def ready(self, job: Job) -> bool:
        """Never: the event loop, which opens the gate, must not wait at it."""
        return False

    def run(self, *arguments: Any, **more: Any) -> dict[str, np.ndarray]:
        self.runs += 1
        gate = self.gate
        self.entered.set()
        assert gate.wait(20)
        if self.failure is not None:
            raise self.failure
        return super().run(*arguments, **more)


class Client:
    """One request over plain ASGI. `leave` is what a closed connection is to the server."""

    def __init__(self, app: FastAPI, body: bytes = BODY, path: str = "/attention", method: str = "POST") -> None:
        self.app = app
        self.messages: list[dict[str, Any]] = []
        self._left = asyncio.Event()
        self._events: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"return=weights,scores" if path == "/attention" else b"",
            "headers": [(b"content-type", media.NPY.encode()), (b"content-length", str(len(body)).encode())],
        }
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self.app(self.scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._events:
            return self._events.pop(0)
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.messages.append(message)

    def leave(self) -> None:
        self._left.set()

    async def ended(self) -> None:
        """Until it is over of itself: `wait_for` would end it in the end, and see nothing wrong."""
        assert (await asyncio.wait([self.task], timeout=20))[0], "it goes on"

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        await self.ended()
        await self.task
        headers = {key.decode(): value.decode() for key, value in self.messages[0]["headers"]}
        return self.messages[0]["status"], headers, b"".join(bytes(part["body"]) for part in self.messages[1:])


def run(scenario: Callable[[FastAPI, Gated], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Runs a scenario against a warm application with one worker, and looks that nothing is left behind."""
    sessions = Gated()

    async def whole() -> None:
        app = create_app(Settings(device="cpu", workers=1, **settings), sessions=sessions)
        async with alive(app):
            sessions.entered.clear()
            sessions.runs = 0
            await scenario(app, sessions)
            sessions.gate.set()
        assert service(app).lifecycle.inflight == 0
        assert service(app).engine.queued_jobs == 0

    asyncio.run(whole())


@asynccontextmanager
async def alive(app: FastAPI) -> AsyncIterator[None]:
    async with app.router.lifespan_context(app):
        yield


def service(app: FastAPI) -> Service:
    found: Service = app.state.service
    return found


def metrics(app: FastAPI) -> dict[counts.Key, float]:
    return counts.parse(generate_latest(service(app).telemetry.registry).decode())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def test_a_client_that_leaves_while_queued_is_never_computed_and_counts_as_499() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        before = metrics(app)
        sessions.gate.clear()
        first = Client(app)
        await until(sessions.entered.is_set)
        leaver, stayer = Client(app), Client(app)
        await until(lambda: service(app).engine.queued_jobs == 2)
        leaver.leave()
        await leaver.ended()
        assert service(app).engine.queued_jobs == 1
        assert leaver.messages == []
        sessions.gate.set()
        assert (await first.answer())[0] == (await stayer.answer())[0] == 200
        assert sessions.runs == 2
        after = metrics(app)
        assert counts.changes(before, after, "attention_requests_total") == {
            ("rope", "/attention", "200"): 2,
            ("rope", "/attention", "499"): 1,
        }
        assert counts.changes(before, after, "attention_rejected_total") == {("cancelled",): 1}

    run(scenario)


def test_one_of_eight_in_flight_leaves_and_seven_answer() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        first_gate, second_gate = sessions.gate, threading.Event()
        first_gate.clear()
        first = Client(app)
        await until(sessions.entered.is_set)
        clients = [Client(app) for _ in range(8)]
        await until(lambda: service(app).engine.queued_jobs == 8)
        sessions.gate = second_gate
        first_gate.set()
        await until(lambda: service(app).engine.running_jobs == 8)  # all in one run
        clients[0].leave()
        await clients[0].ended()
        second_gate.set()
        assert [(await client.answer())[0] for client in (first, *clients[1:])] == [200] * 8

    run(scenario)


def test_a_client_that_leaves_while_it_sends_is_forgotten() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        client = Client(app)
        client._events = [{"type": "http.request", "body": BODY[:50], "more_body": True}]
        await asyncio.sleep(0.01)
        client.leave()
        await client.ended()
        assert client.messages == []
        assert metrics(app)["attention_rejected_total", (("reason", "cancelled"),)] == 1
        assert sessions.runs == 0

    run(scenario)


def test_a_body_that_does_not_arrive_times_out() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        client = Client(app)
        client._events = [{"type": "http.request", "body": BODY[:50], "more_body": True}]
        status, headers, _ = await client.answer()
        assert status == 408
        assert headers["connection"] == "close"

    run(scenario, body_seconds=0.05)


def test_a_body_over_the_limit_is_refused_and_the_connection_kept() -> None:
    """So that a client which writes first and reads then gets to read the refusal."""

    async def scenario(app: FastAPI, sessions: Gated) -> None:
        client = Client(app, samples.npy(np.ones((100, 100))))
        status, headers, _ = await client.answer()
        assert status == 413
        assert "connection" not in headers

    run(scenario, max_body_bytes=ByteSize(1000))


def test_a_client_that_asks_before_it_sends_is_refused_without_sending() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        client = Client(app, samples.npy(np.ones((100, 100))))
        client.scope["headers"].append((b"expect", b"100-continue"))  # type: ignore[attr-defined]
        status, headers, _ = await client.answer()
        assert status == 413
        assert headers["connection"] == "close"
        assert len(client._events) == 1, "receiving would have told the client to go on"

    run(scenario, max_body_bytes=ByteSize(1000))


def test_a_full_queue_is_429_with_retry_after() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        sessions.gate.clear()
        first = Client(app)
        await until(sessions.entered.is_set)
        waiting = [Client(app) for _ in range(2)]
        await until(lambda: service(app).engine.queued_jobs == 2)
        status, headers, body = await Client(app).answer()
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert json.loads(body)["retry_after"] > 0
        sessions.gate.set()
        for client in (first, *waiting):
            assert (await client.answer())[0] == 200

    run(scenario, queue_jobs=2)


def test_waiting_past_the_deadline_is_504() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        sessions.gate.clear()
        first = Client(app)
        await until(sessions.entered.is_set)
        status, _, body = await Client(app).answer()
        assert status == 504
        told = json.loads(body)
        assert told["type"] == "urn:attention:problem:deadline"
        assert "0.1 s after it came (ATTENTION_DEADLINE_SECONDS)" in told["detail"]
        sessions.gate.set()
        await first.answer()

    run(scenario, deadline_seconds=0.1)


def test_a_model_that_fails_is_500_and_the_next_request_is_served() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        sessions.failure = RuntimeError("boom")
        status, _, body = await Client(app).answer()
        assert status == 500
        assert json.loads(body)["title"] == "The model failed"
        sessions.failure = None
        assert (await Client(app).answer())[0] == 200

    run(scenario)


def test_a_defect_is_500_with_an_id_and_without_its_details(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        async def broken(*_: Any) -> None:
            raise ZeroDivisionError("a secret at /home/someone")

        monkeypatch.setattr(service(app).scoring, "score", broken)
        status, headers, body = await Client(app).answer()
        assert status == 500
        assert headers["content-type"] == media.PROBLEM
        assert b"secret" not in body
        assert b"ZeroDivisionError" not in body
        assert headers["x-request-id"] in caplog.text
        assert "a secret" in caplog.text
        assert metrics(app)["attention_rejected_total", (("reason", "internal"),)] == 1

    run(scenario)


def test_a_draining_service_refuses_new_work_and_finishes_what_it_took() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        sessions.gate.clear()
        taken = Client(app)
        await until(sessions.entered.is_set)
        service(app).lifecycle.drain()
        status, headers, body = await Client(app).answer()
        assert status == 503
        assert json.loads(body)["title"] == "Shutting down"
        assert headers["retry-after"]
        assert headers["connection"] == "close"
        assert (await Client(app, path="/health/ready", method="GET").answer())[0] == 503
        assert (await Client(app, path="/health/live", method="GET").answer())[0] == 200
        assert metrics(app)["attention_ready", ()] == 0
        sessions.gate.set()
        assert (await taken.answer())[0] == 200

    run(scenario)


def test_the_event_loop_turns_while_a_large_answer_is_written() -> None:
    async def scenario(app: FastAPI, sessions: Gated) -> None:
        longest, done = 0.0, False

        async def watch() -> None:
            nonlocal longest
            while not done:
                before = time.thread_time()  # whatever else the machine does
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - before)

        watcher = asyncio.create_task(watch())
        client = Client(app, samples.npy(np.random.default_rng(0).standard_normal((700, 8)).astype(np.float32)))
        status, _, body = await client.answer()
        done = True
        await watcher
        assert status == 200
        assert len(body) > 5_000_000
        # Written at once, these 980,000 numbers would hold it for about 100 ms.
        assert longest < 0.06

    run(scenario)


def test_a_service_that_was_not_started_is_alive_and_not_ready() -> None:
    client = TestClient(create_app(Settings(device="cpu")))
    assert client.get("/health/live").status_code == 200
    answer = client.get("/health/ready")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == media.PROBLEM


def test_without_models_the_service_runs_and_is_not_ready(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(device="cpu", models=(tmp_path,)))) as client:
        assert client.get("/health/live").status_code == 200
        ready = client.get("/health/ready")
        assert ready.status_code == 503
        assert "no exported models" in ready.json()["detail"]
        answer = client.post("/attention", json={"embeddings": [[1, 2]]})
        assert answer.status_code == 503
        assert client.get("/encodings").json() == {"encodings": []}
        assert client.get("/openapi.json").status_code == 200


def test_a_model_that_fails_its_warm_up_ends_the_start_with_its_reason() -> None:
    sessions = Gated()
    sessions.failure = RuntimeError("no kernel for this")

    async def start() -> None:
        async with alive(create_app(Settings(device="cpu"), sessions=sessions)):
            pytest.fail("it started")

    with pytest.raises(NotReady, match="no kernel for this"):
        asyncio.run(start())


def test_ready_means_that_the_first_request_without_parameters_waits_for_no_graph_to_be_opened() -> None:
    sessions = Sessions("cpu")
    with TestClient(create_app(Settings(device="cpu", workers=1), sessions=sessions)) as client:
        opened = len(sessions)
        for model in client.get("/models").json()["models"]:
            width = model["width"] or 16
            body = {"embeddings": np.random.default_rng(0).standard_normal((5, width)).tolist()}
            answer = client.post("/attention", params={"model": model["name"]}, json=body)
            assert answer.status_code == 200
            assert "summary" in answer.json()["results"][0]
        assert len(sessions) == opened


def test_a_graph_of_summaries_that_fails_ends_the_start_with_its_reason() -> None:
    class Without(Sessions):
        def run(self, graph: Any, *arguments: Any, **more: Any) -> dict[str, np.ndarray]:
            if graph.behind is not None:
                raise RuntimeError("nothing can be put behind this")
            return super().run(graph, *arguments, **more)

    async def start() -> None:
        async with alive(create_app(Settings(device="cpu"), sessions=Without("cpu"))):
            pytest.fail("it started")

    with pytest.raises(NotReady, match=r"the warm-up of identity failed: .*nothing can be put behind"):
        asyncio.run(start())
