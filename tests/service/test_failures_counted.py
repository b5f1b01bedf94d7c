"""Whatever a request fails of, one counter moves, and one reason: at each door, for each failure that there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI

from service.app import create_app
from service.errors import MethodNotAllowed, ServiceError, Unauthorized, UnknownName, failures
from service.settings import Settings
from tests.service import counts
from tests.service.open_inference import bodies
from tests.service.test_app import Client, alive, metrics, service

SPECIAL: dict[type[ServiceError], tuple[tuple[Any, ...], dict[str, Any]]] = {
    Unauthorized: ((), {"unknown": True}),
    MethodNotAllowed: (("GET", ["POST"]), {}),
    UnknownName: (("encoding", "wrong", ["rope"]), {}),
}
"""What is not made of one sentence."""
X = np.ones((1, 4, 8), np.float32)
INFER = "/v2/models/identity.rope/infer"
PROTOCOL = bodies.json_body(bodies.tensor("embeddings", X))


@asynccontextmanager
async def asked(path: str) -> AsyncIterator[tuple[FastAPI, Callable[[], Awaitable[int | None]]]]:
    """A service, and what asks it over that path and returns the status that is told."""
    app = create_app(Settings(device="cpu", workers=1))

    async def ask() -> int | None:
        client = Client(app, PROTOCOL, path) if path == INFER else Client(app, path=path)
        await client.ended()
        await client.task
        return client.messages[0]["status"] if client.messages else None

    async with alive(app):
        yield app, ask


@pytest.mark.parametrize(("path", "labels"), [("/attention", "/attention"), (INFER, "/v2/models/{model}/infer")])
def test_each_failure_moves_exactly_one_counter(path: str, labels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """triton#7713: failures were counted as successes. Here each 4xx, each 5xx, a client that left and a defect."""

    async def main() -> None:
        async with asked(path) as (app, ask):
            before = metrics(app)
            for failure in (*failures(), ZeroDivisionError):
                arguments, named = SPECIAL.get(failure, (("of itself",), {}))
                error = failure(*arguments, **named)

                async def fails(*_: Any, error: Exception = error, **__: Any) -> None:
                    raise error

                monkeypatch.setattr(service(app).scoring, "score", fails)
                status, reason = getattr(failure, "status", 500), getattr(failure, "reason", "internal")
                if path == INFER and status == 422:  # the protocol has no such status
                    status = 400
                assert await ask() == (None if status == 499 else status), failure
                after = metrics(app)
                moved = counts.changes(before, after, "attention_requests_total")
                assert moved == {("rope", labels, str(status)): 1}, failure
                assert counts.changes(before, after, "attention_rejected_total") == {(reason,): 1}, failure
                assert counts.changes(before, after, "attention_request_duration_seconds_count").total() == 1
                for name in ("sequences_total", "stage_duration_seconds_count", "nonfinite_outputs_total"):
                    assert not counts.changes(before, after, f"attention_{name}"), failure
                assert counts.total(after, "attention_inflight_requests") == 0
                before = after

    asyncio.run(main())
