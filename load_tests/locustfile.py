"""Users of the service. Run by `python -m load_tests`, or `locust -f load_tests/locustfile.py --host http://127.0.0.1:8000`.

Users are closed loops paced by `constant_throughput`: a rate is offered, not forced. All random choices come from one
printed seed.
"""

from __future__ import annotations

import io
import os
import random
import time
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from locust import FastHttpUser, constant_throughput, events, task

from load_tests.bodies import BAD_BODIES, Body, build
from load_tests.report import Report

SEED = int(os.environ.get("LOAD_SEED", "0"))
# One answer in so many is read and checked in full.
CHECK_EVERY = 20

report = Report()
chance = random.Random(SEED)
bodies: list[Body] = []
encodings: list[str] = []


@events.test_start.add_listener
def prepare(**_: Any) -> None:
    print(f"seed {SEED}")
    bodies.extend(build(SEED))
    report.start(time.monotonic())


@events.request.add_listener
def record(name: str, response_time: float, exception: BaseException | None, **_: Any) -> None:
    report.record(name, response_time, exception)


@events.quitting.add_listener
def summarise(**_: Any) -> None:
    report.print(time.monotonic())


def post(user: FastHttpUser, url: str, body: Body, accept: str, name: str) -> AbstractContextManager[Any]:
    headers = {"Content-Type": body.media_type, "Accept": accept}
    data: Any = body.data  # locust declares str only, and sends bytes as they are
    return user.client.post(url, data=data, headers=headers, name=name, catch_response=True)


def problem_with(answer: Any, length: int) -> str | None:
    """What is wrong with an answer: the attention weights of one head over `length` tokens."""
    weights = answer.json()["results"][0]["weights"] if answer.headers["content-type"] == "application/json" else None
    if weights is None:
        with np.load(io.BytesIO(answer.content)) as arrays:
            (name,) = (name for name in arrays if name.endswith("/weights"))
            weights = arrays[name]
    weights = np.asarray(weights)
    if weights.shape != (1, length, length):
        return f"weights have shape {weights.shape} where (1, {length}, {length}) was due"
    error = float(np.abs(weights.sum(-1) - 1).max())
    return f"rows of weights sum to 1 only within {error:.1e}" if error > 1e-4 else None


class AttentionUser(FastHttpUser):
    """Asks for one encoding at a time, over every length and body format; binary bodies get binary answers."""

    weight = 9
    wait_time = constant_throughput(10)

    def on_start(self) -> None:
        if not encodings:
            listed = self.client.get("/encodings", name="GET /encodings").json()
            encodings.extend(encoding["id"] for encoding in listed["encodings"])

    @task
    def score(self) -> None:
        body, encoding = chance.choice(bodies), chance.choice(encodings)
        accept = "application/json" if body.format == "json" else "application/x-npz"
        with post(self, f"/attention?encoding={encoding}", body, accept, f"POST /attention {body.format}") as answer:
            if answer.status_code != 200:
                answer.failure(f"{encoding}, {body.length} tokens: {answer.status_code} {(answer.text or '')[:200]}")
            elif chance.randrange(CHECK_EVERY) == 0 and (problem := problem_with(answer, body.length)):
                answer.failure(f"{encoding}, {body.length} tokens: {problem}")


class BadInputUser(FastHttpUser):
    """Sends what must be refused: the right 4xx is a success, an answer or a 5xx is a failure."""

    weight = 1
    wait_time = constant_throughput(5)

    @task
    def refused(self) -> None:
        body, status = chance.choice(BAD_BODIES)
        with post(self, "/attention", body, "*/*", "POST /attention refused") as answer:
            if answer.status_code == status:
                answer.success()
            else:
                answer.failure(f"{body.data[:40]!r}: {answer.status_code} where {status} was due")
