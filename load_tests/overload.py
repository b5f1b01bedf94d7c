"""More requests than the service can answer: `python -m load_tests overload`.

First a closed loop finds the capacity, then requests come at several times that rate whether the earlier ones have been
answered or not. All of it is ratios measured in one run. It passes where a second of the processors still answers at
least `GOODPUT` of what it did, every request gets an answer, each is a 200 or a 429 with `Retry-After`, and the
service's own counts are those of the client.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import quantiles
from urllib.parse import urlsplit

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from load_tests.bodies import as_npy
from load_tests.server import running_service

TIMES = 5
"""So many times the capacity."""
GOODPUT = 0.8
CONNECTIONS = 16
"""Of the closed loop: more than there are cores, fewer than would fill a queue."""
WARM_UP, CAPACITY, OVERLOAD = 2.0, 6.0, 12.0
"""Seconds. Of the overload, the first third is left out: it fills the queue."""
PATIENCE = 60.0
LATE = 0.1
"""Seconds, at the 99th percentile."""

KINDS = {
    # The longest that is not computed in blocks: some 20 ms of a core. Shorter ones than these would come faster than
    # this client can send them.
    "1,000 tokens": (1000, 16, "/attention?heads=8&return=output"),
    "1,000 tokens under 4 encodings": (1000, 16, "/attention?heads=8&return=output&compare=alibi,t5,none"),
}


@dataclass(frozen=True)
class Answer:
    """What came back, and seconds since it was due and since the measurement began."""

    status: int
    waited: float
    at: float
    retry_after: str | None


@dataclass
class Client:
    """Keeps connections open, as many as are in use at a time."""

    address: str
    body: bytes
    path: str
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Requests that were never answered."""
    late: list[float] = field(default_factory=list)
    """Seconds by which requests were sent too late: beyond `LATE` nothing is learnt of the service."""
    began: float = 0.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        self.host, self.port = parts.hostname or "", parts.port
        self.request = (
            f"POST {self.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/x-npy\r\n"
            f"accept: application/vnd.safetensors\r\ncontent-length: {len(self.body)}\r\n\r\n"
        ).encode() + self.body

    async def ask(self, due: float) -> None:
        sent = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                connection = self.idle.pop() if self.idle else await asyncio.open_connection(self.host, self.port)
                status, headers = await self._exchange(*connection)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.lost.append(repr(error))
            return
        now = time.monotonic()
        self.late.append(sent - due)
        self.answers.append(Answer(status, now - due, now - self.began, headers.get("retry-after")))
        if headers.get("connection") == "close":
            connection[1].close()
        else:
            self.idle.append(connection)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, dict[str, str]]:
        writer.write(self.request)
        await writer.drain()
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        await reader.readexactly(int(headers["content-length"]))
        return int(first.split()[1]), headers

    async def closed(self, seconds: float) -> None:
        """`CONNECTIONS` of them, one request after the other."""
        self.began = time.monotonic()

        async def one() -> None:
            while time.monotonic() < self.began + seconds:
                await self.ask(time.monotonic())

        await asyncio.gather(*(one() for _ in range(CONNECTIONS)))

    async def opened(self, rate: float, seconds: float, seed: int) -> None:
        """At random moments, so many a second, whatever is answered."""
        random = np.random.default_rng(seed)
        self.began = due = time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        while due < self.began + seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(self.ask(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due += random.exponential(1 / rate)
        await asyncio.gather(*tasks)

    def close(self) -> None:
        for _, writer in self.idle:
            writer.close()


@dataclass(frozen=True)
class Found:
    """Requests a second, and seconds."""

    kind: str
    capacity: float
    offered: float
    goodput: float
    answered_p50: float
    refused_p50: float
    refused_p99: float
    late_p99: float
    efficiency: float
    """Answers for each second of the processors that the service had, beside those when it was not overloaded: a busy
    machine takes seconds away, and does not change this."""
    statuses: Counter[int]
    wrong: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.wrong and self.efficiency >= GOODPUT

    def __str__(self) -> str:
        shown = ", ".join(f"{count:,} x {status}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.kind}: {self.capacity:.0f}/s is the capacity; of {self.offered / self.capacity:.1f} times that, "
            f"{self.goodput / self.capacity:.0%} of the capacity is answered, after {self.answered_p50:.2f} s in the "
            f"median; 429 comes after {1e3 * self.refused_p50:.0f} ms, at the 99th percentile "
            f"{1e3 * self.refused_p99:.0f} ms; sent {1e3 * self.late_p99:.0f} ms late; a second of the "
            f"processors answers {self.efficiency:.0%} of what it did; {shown}"
            + "".join(f"; WRONG: {one}" for one in self.wrong)
        )


async def measure(address: str, kind: str, seed: int = 0) -> Found:
    tokens, width, path = KINDS[kind]
    body = as_npy(np.random.default_rng(seed).standard_normal((tokens, width), dtype=np.float32))
    warm, closed, opened = (Client(address, body, path) for _ in range(3))
    before = counted(address)
    await warm.closed(WARM_UP)
    idle = worked(address)
    await closed.closed(CAPACITY)
    busy = worked(address)
    capacity = sum(one.status == 200 for one in closed.answers) / CAPACITY
    await opened.opened(TIMES * capacity, OVERLOAD, seed)
    overloaded = worked(address)
    for client in (warm, closed, opened):
        client.close()
    after = counted(address)

    good = [one for one in opened.answers if one.status == 200]
    refused = [one for one in opened.answers if one.status == 429]
    steady = [one for one in good if OVERLOAD / 3 <= one.at < OVERLOAD]
    statuses = Counter(one.status for one in opened.answers)
    everything = [*warm.answers, *closed.answers, *opened.answers]
    return Found(
        kind,
        capacity,
        (len(opened.answers) + len(opened.lost)) / OVERLOAD,
        len(steady) / (OVERLOAD * 2 / 3),
        _percentile(one.waited for one in good)[49],
        _percentile(one.waited for one in refused)[49],
        _percentile(one.waited for one in refused)[98],
        _percentile(opened.late)[98],
        (len(good) / (overloaded - busy)) / (capacity * CAPACITY / (busy - idle)),
        statuses,
        tuple(_wrong([warm, closed, opened], Counter(one.status for one in everything), after - before)),
    )


def _wrong(clients: Iterable[Client], seen: Counter[int], told: Counter[int]) -> Iterable[str]:
    for client in clients:
        if _percentile(client.late)[98] > LATE:
            yield "the client could not send as fast as that: nothing is learnt of the service"
        if client.lost:
            yield f"{len(client.lost)} were never answered ({client.lost[0]})"
        if any(one.status == 429 and not (one.retry_after or "").isdigit() for one in client.answers):
            yield "a 429 without Retry-After"
    if others := set(seen) - {200, 429}:
        yield f"answers of {', '.join(map(str, sorted(others)))}"
    if seen != told:
        yield f"the client saw {dict(seen)}, the service counted {dict(told)}"


def _percentile(values: Iterable[float]) -> list[float]:
    """1 to 99; NaN where there are too few."""
    found = list(values)
    return quantiles(found, n=100) if len(found) > 1 else [float("nan")] * 99


def counted(address: str) -> Counter[int]:
    """Requests to /attention by status, as the service counts them."""
    found: Counter[int] = Counter()
    for sample in _samples(address, "attention_requests_total"):
        if sample.labels["endpoint"] == "/attention":
            found[int(sample.labels["status"])] += round(sample.value)
    return +found


def worked(address: str) -> float:
    """Seconds of the processors that the service has had. Processes tell of theirs once a second."""
    time.sleep(1.2)
    return sum(sample.value for sample in _samples(address, "process_cpu_seconds_total"))


def _samples(address: str, name: str) -> list[Sample]:
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return [sample for family in families for sample in family.samples if sample.name == name]


def main() -> int:
    """1 where anything did not pass."""
    passed = True
    for kind in KINDS:
        with running_service(log_level="warning") as address:
            found = asyncio.run(measure(address, kind))
        print(found, flush=True)
        passed &= found.passed
    return 0 if passed else 1
