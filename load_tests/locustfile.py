"""Users of the service, and the shape of a run. `python -m load_tests` starts it; every choice comes from one seed.

An open loop is one user: it draws exponential gaps and starts a greenlet for each arrival, so that no answer is waited
for, and times are taken from the moment a request was due. What it cannot have under way is dropped, and counted.
"""

from __future__ import annotations

import json
import math
import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gevent
from gevent.event import Event
from gevent.pool import Pool
from locust import FastHttpUser, LoadTestShape, events, task

from load_tests.arrivals import due_times
from load_tests.bodies import BAD_REQUESTS, build
from load_tests.mixes import Ask, draw, needed, problem_with
from load_tests.report import LEFT, Part
from load_tests.scenarios import IN_FLIGHT, Closed, Mix, Open, Scenario, Step, chosen
from load_tests.verdict import promised

SEED = int(os.environ["LOAD_SEED"])
CAPACITY = float(os.environ["LOAD_CAPACITY"])
"""Answers a second to go by; 0: those that a closed loop is given."""
FOUND = Path(os.environ["LOAD_FOUND"])
"""Where the parts of the run are written to at its end."""
ENCODINGS: list[str] = os.environ["LOAD_ENCODINGS"].split(",")
MOST_REASONS = 20
REFUSALS = {429, 503}


class Run:
    """Which stage is on, and what was found in each part of it."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        stages = scenario.stages
        mixes = [part.mix for stage in stages for part in ([stage] if isinstance(stage, Closed) else stage.steps)]
        self.bodies = build(SEED, (body for mix in mixes for body in needed(mix)))
        self.begins = [Event() for _ in stages]
        self.began = [0.0 for _ in stages]
        self.parts: list[list[Part]] = [[] for _ in stages]
        self.current = -1
        self.busy = 0
        self.slow = False
        self.capacity = 0.0
        self.reasons: dict[str, int] = {}

    def advance(self) -> bool:
        """Begins the next stage where the current one is over; False where there is none."""
        if self.current >= 0 and self.busy:
            return True
        if self.current >= 0 and self.parts[self.current][0].name == "capacity":
            part = self.parts[self.current][0]
            self.capacity = CAPACITY or part.statuses["200"] / part.seconds
            print(f"capacity: {self.capacity:.1f} answers a second", flush=True)
        self.current += 1
        if self.current == len(self.begins):
            return False
        stage = self.scenario.stages[self.current]
        began = self.began[self.current] = time.monotonic() + 0.1
        if isinstance(stage, Closed):
            self.parts[self.current] = [Part(stage.name, began, stage.seconds, None, stage.judged)]
        else:
            at = began
            for step in stage.steps:
                self.parts[self.current].append(
                    Part(step.name, at, step.seconds, self.rate(step), refusable=step.refusable)
                )
                at += step.seconds
        self.begins[self.current].set()
        return True

    def rate(self, step: Step) -> float:
        return step.rate if self.scenario.absolute else step.rate * self.capacity

    def stages(self) -> Iterator[tuple[int, Closed | Open]]:
        """Each when it has begun."""
        for index, stage in enumerate(self.scenario.stages):
            self.begins[index].wait()
            gevent.sleep(max(0.0, self.began[index] - time.monotonic()))
            yield index, stage

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    def failed(self, name: str, reason: str) -> None:
        key = f"{name}: {reason}"
        if key not in self.reasons and len(self.reasons) >= MOST_REASONS:
            key = "others"
        self.reasons[key] = self.reasons.get(key, 0) + 1

    def write(self) -> None:
        kept = [part for parts in self.parts for part in parts if part.statuses or part.dropped]
        found = {
            "capacity": round(self.capacity, 1) or None,
            "parts": [part.as_dict() | {"promised": promised(part)} for part in kept],
            "reasons": dict(sorted(self.reasons.items(), key=lambda item: -item[1])),
        }
        FOUND.write_text(json.dumps(found))


run = Run(chosen(os.environ["LOAD_SCENARIO"], float(os.environ["LOAD_SECONDS"])))


@events.quitting.add_listener
def conclude(environment: Any, **_: Any) -> None:
    run.write()
    # What fails a run is decided over all that was found; here only that it came to its end.
    environment.process_exit_code = 0 if run.current == len(run.begins) else 1


def refused(answer: Any, status: int) -> bool:
    """Whether it says that there is too much to do, and when to come again."""
    return status in REFUSALS and (answer.headers.get("retry-after") or "").isdigit()


class LoadUser(FastHttpUser):
    """Sends requests of a mix and records what comes back."""

    abstract = True
    concurrency = IN_FLIGHT
    kind = "attention"

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.chance = random.Random(f"{SEED} {type(self).__name__} {next(_numbers)}")

    def send(self, mix: Mix, part: Part, due: float) -> None:
        ask, check = draw(mix, run.bodies, ENCODINGS, self.chance)
        with self.post(ask, part, due) as (answer, status):
            if status == 200:
                problem = problem_with(ask, answer.content) if check else None
            elif refused(answer, status):
                part.refuse(ask.name, time.monotonic() - due, status)
                return
            else:
                problem = f"{status} {answer.text or answer.error!r}"[:300]
            seconds = answer.request_meta["response_time"] / 1e3
            part.add(ask.name, seconds, status, failed=bool(problem), received=len(answer.content or b""))
            if problem:
                run.failed(ask.name, f"{ask.path}, {ask.body.length} tokens: {problem}")
                answer.failure(problem)

    @contextmanager
    def post(self, ask: Ask, part: Part, due: float) -> Iterator[tuple[Any, int]]:
        """The answer and its status (0: there is none). Its time counts from `due`."""
        data: Any = ask.body.data  # locust declares str only, and sends bytes as they are
        headers = {"Content-Type": ask.body.media_type, "Accept": ask.accept}
        with self.client.post(ask.path, data=data, headers=headers, name=ask.name, catch_response=True) as answer:
            answer.request_meta["response_time"] = (time.monotonic() - due) * 1e3
            answer.success()
            yield answer, answer.status_code


class ClosedAttentionUser(LoadUser):
    """One request after the other: what the service can answer, and what one client sees. Hides overload."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.index = next(_closed)

    @task
    def ask(self) -> None:
        for index, stage in run.stages():
            if not isinstance(stage, Closed) or self.index >= stage.connections:
                continue
            with run.taking_part():
                (part,) = run.parts[index]
                while (now := time.monotonic()) < part.began + part.seconds:
                    self.send(stage.mix, part, now)
        Event().wait()


class OpenUser(LoadUser):
    """Requests at random moments, its share of the rate, whatever has been answered."""

    abstract = True
    fixed_count = 1

    @task
    def offer(self) -> None:
        share = run.scenario.shares.get(self.kind, 0.0)
        for index, stage in run.stages():
            if isinstance(stage, Open) and share:
                with run.taking_part():
                    self.arrivals(stage, run.parts[index], share)
        Event().wait()

    def arrivals(self, stage: Open, parts: list[Part], share: float) -> None:
        began = parts[0].began
        pool = Pool(max(1, math.floor(IN_FLIGHT * share)))
        rates = [(run.rate(step) * share, step.seconds) for step in stage.steps]
        last = 0
        run.slow = False
        for due, number in due_times(rates, self.chance):
            gevent.sleep(max(0.0, began + due - time.monotonic()))
            if number != last:
                last = number
                if stage.until_slow and not promised(parts[number - 1]):
                    break
            if pool.free_count() > 0:
                pool.spawn(self.arrive, stage.steps[number], parts[number], began + due)
            else:
                parts[number].dropped += 1
        pool.join()

    def arrive(self, step: Step, part: Part, due: float) -> None:
        part.late.append(time.monotonic() - due)
        self.send(step.mix, part, due)


class OpenAttentionUser(OpenUser):
    """Asks for what the mix has."""


class BadInputUser(OpenUser):
    """Sends what must be refused: the right 4xx is a success, an answer or a 5xx is a failure."""

    kind = "bad"

    def send(self, mix: Mix, part: Part, due: float) -> None:
        path, body, due_status = self.chance.choice(BAD_REQUESTS)
        ask = Ask("POST /attention [bad input]", path, body, "*/*", weights=False)
        with self.post(ask, part, due) as (answer, status):
            if refused(answer, status):
                part.refuse(ask.name, time.monotonic() - due, status)
                return
            wrong = status != due_status
            part.add(ask.name, answer.request_meta["response_time"] / 1e3, status, failed=wrong)
            if wrong:
                problem = f"{path} {body.data[:40]!r}: {status} where {due_status} was due"
                run.failed(ask.name, problem)
                answer.failure(problem)


class LeavingUser(OpenUser):
    """Sends a whole request and closes the connection after half of the time that answers take in the mean."""

    kind = "leaving"

    def send(self, mix: Mix, part: Part, due: float) -> None:
        ask, _ = draw(mix, run.bodies, ENCODINGS, self.chance)
        before = [one.mean_seconds() for parts in run.parts for one in parts if one.name == "capacity"]
        where = urlsplit(self.host or "")
        name = "POST /attention [left]"
        head = (
            f"POST {ask.path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: {ask.body.media_type}\r\n"
            f"Accept: {ask.accept}\r\nContent-Length: {len(ask.body.data)}\r\n\r\n"
        )
        try:
            with socket.create_connection((where.hostname or "", where.port or 80), timeout=30) as connection:
                connection.sendall(head.encode() + ask.body.data)
                gevent.sleep(before[-1] / 2)
        except OSError as error:
            run.failed(name, repr(error))
            part.add(name, time.monotonic() - due, LEFT, failed=True)
        else:
            part.add(name, time.monotonic() - due, LEFT)


class StageShape(LoadTestShape):
    """Users as many as the scenario needs from the start; then one stage after the other."""

    def tick(self) -> tuple[int, float] | None:
        connections = [stage.connections for stage in run.scenario.stages if isinstance(stage, Closed)]
        users = len(OPEN) + max(connections, default=1)
        if run.current < 0 and self.runner is not None and self.runner.user_count < users:
            return users, 100
        return (users, 100) if run.advance() else None


OPEN = (OpenAttentionUser, BadInputUser, LeavingUser)
_numbers, _closed = count(), count()
