"""Whatever a request fails of, one counter moves, and one reason: at each door, for each failure that there is."""

from __future__ import annotations

import asyncio
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


async def ask(app: FastAPI, path: str) -> int | None:
    """The status that is told, if any is."""
    client = Client(app, PROTOCOL, path) if path == INFER else Client(app, path=path)
    await client.ended()
    await client.task
    return client.messages[0]["status"] if client.messages else None


def test_each_failure_moves_exactly_one_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """triton#7713: failures were counted as successes. Here each 4xx, each 5xx, a client that left and a defect, at
    both doors."""

    async def main() -> None:
        app = create_app(Settings(device="cpu", workers=1))
        async with alive(app):
            before = metrics(app)
            for failure in (*failures(), ZeroDivisionError):
                arguments, named = SPECIAL.get(failure, (("of itself",), {}))
                error = failure(*arguments, **named)

                async def fails(*_: Any, error: Exception = error, **__: Any) -> None:
                    raise error

                monkeypatch.setattr(service(app).scoring, "score", fails)
                status, reason = getattr(failure, "status", 500), getattr(failure, "reason", "internal")
                theirs = 400 if status == 422 else status  # the protocol has no 422
                told = [await ask(app, "/attention"), await ask(app, INFER)]
                assert told == ([None, None] if status == 499 else [status, theirs]), failure
                after = metrics(app)
                assert counts.changes(before, after, "attention_requests_total") == {
                    ("rope", "/attention", str(status)): 1,
                    ("rope", "/v2/models/{model}/infer", str(theirs)): 1,
                }, failure
                assert counts.changes(before, after, "attention_rejected_total") == {(reason,): 2}, failure
                assert counts.changes(before, after, "attention_request_duration_seconds_count").total() == 2
                for name in ("sequences_total", "stage_duration_seconds_count", "nonfinite_outputs_total"):
                    assert not counts.changes(before, after, f"attention_{name}"), failure
                assert counts.total(after, "attention_inflight_requests") == 0
                before = after

    asyncio.run(main())
