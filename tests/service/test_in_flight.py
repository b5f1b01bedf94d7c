"""Many requests under way at once, over sockets and with the whole service in the loop: who leaves, who is refused, and
that each gets its own answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from service.engine.job import Job
from service.engine.session import Sessions
from service.wire import media
from tests.service import counts, samples
from tests.service.open_inference import bodies
from tests.service.test_lessons import listening, metrics, service_of

PATIENCE = 30.0
QUEUE = 9
"""Jobs that may wait."""
Array = np.ndarray[Any, np.dtype[Any]]


class Held(Sessions):
    """Runs wait at the gate that is there when they begin, and what they are of is noted by its first number. While
    `quick` is not set none is run on the event loop, which opens the gates.
    """

    def __init__(self) -> None:
        super().__init__("cpu")
        self.gate = threading.Event()
        self.gate.set()
        self.seen: list[float] = []
        self.quick = False

    def ready(self, job: Job) -> bool:
        return self.quick and super().ready(job)

    def run(self, graph: Any, outputs: Any, masked: bool, feeds: Any, *rest: Any, **more: Any) -> dict[str, np.ndarray]:
        gate = self.gate
        if "queries" in feeds:
            self.seen += [float(one.flat[0]) for one in feeds["queries"] if one.size]
        assert gate.wait(PATIENCE)
        return super().run(graph, outputs, masked, feeds, *rest, **more)

    def close(self) -> threading.Event:
        """What begins from now on waits for another gate; the one it was is returned."""
        before, self.gate = self.gate, threading.Event()
        return before


class Client:
    """A connection and what is sent over it."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        self.writer.close()

    def send(self, path: str, body: bytes, kind: str = media.NPY) -> None:
        accept = media.JSON if kind == media.JSON else media.SAFETENSORS
        lines = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\naccept: {accept}\r\n"
        self.writer.write(f"{lines}content-length: {len(body)}\r\n\r\n".encode() + body)

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            length = next(int(line[16:]) for line in head.split("\r\n") if line.lower().startswith("content-length: "))
            return int(head.split()[1]), await self.reader.readexactly(length)

    async def ask(self, path: str, body: bytes, kind: str = media.NPY) -> tuple[int, bytes]:
        self.send(path, body, kind)
        return await self.answer()


def of(number: float, tokens: int = 8) -> bytes:
    return samples.npy(np.full((tokens, 16), number, np.float32))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


class Whole:
    """The service, on an event loop of its own."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner, self.sessions = runner, Held()
        self._open = listening(self.sessions, queue_jobs=QUEUE)
        self.app, self.port = runner.run(self._open.__aenter__())
        self.engine, self.lifecycle = service_of(self.app).engine, service_of(self.app).lifecycle

    def close(self) -> None:
        self.runner.run(self._open.__aexit__(None, None, None))

    def play(self, scenario: Coroutine[Any, Any, None]) -> None:
        """With nothing under way before it and after it."""
        self.sessions.seen.clear()

        async def whole() -> None:
            try:
                await scenario
            finally:
                self.sessions.gate.set()
            await until(lambda: not self.lifecycle.inflight and not self.engine.waiting_requests)
            assert self.engine.queued_jobs == self.engine.running_jobs == 0

        self.runner.run(whole())

    def metrics(self) -> dict[counts.Key, float]:
        return metrics(self.app)

    async def queued(self, jobs: int) -> None:
        await until(lambda: self.engine.queued_jobs == jobs)

    @asynccontextmanager
    async def occupied(self) -> AsyncIterator[threading.Event]:
        """The worker computes for somebody else until the event is set, who then gets an answer."""
        async with Client(self.port) as client:
            self.sessions.close()
            free = self.sessions.gate
            client.send("/attention?heads=2&return=output", of(-1.0))
            await until(lambda: self.engine.running_jobs == 1)
            yield free
            assert free.is_set()
            assert (await client.answer())[0] == 200


@pytest.fixture(scope="module")
def whole() -> Iterator[Whole]:
    with asyncio.Runner() as runner:
        service = Whole(runner)
        yield service
        service.close()


# Clients that leave

INFER = "/v2/models/identity.rope/infer"
PROTOCOL = bodies.json_body(bodies.tensor("embeddings", np.full((1, 8, 16), 7.0, np.float32)))


@pytest.mark.parametrize(
    ("path", "body", "kind", "before"),
    [
        ("/attention?heads=2&return=weights", of(7.0), media.NPY, 0),
        ("/attention?heads=4&return=weights", of(7.0), media.NPY, 4),
        ("/attention?compare=alibi,t5", of(7.0), media.NPY, 0),
        (INFER, PROTOCOL, media.JSON, 0),
    ],
    ids=["the long way", "from the socket", "a comparison", "the open inference protocol"],
)
def test_a_client_that_hangs_up_while_queued_never_reaches_the_model(
    whole: Whole, path: str, body: bytes, kind: str, before: int
) -> None:
    """LitServe#165, vllm#10087: work was done for clients that had left, for a middleware hid that they had."""
    other, engine, sessions = of(6.0), whole.engine, whole.sessions

    async def scenario() -> None:
        async with Client(whole.port) as client:
            for _ in range(before):  # then such requests need not be read by the framework
                assert (await client.ask(path, other, kind))[0] == 200
        async with whole.occupied() as free, Client(whole.port) as leaver, Client(whole.port) as stayer:
            first = whole.metrics()
            leaver.send(path, body, kind)
            await until(lambda: engine.queued_jobs >= 1)
            stayer.send("/attention?heads=2&return=scores", of(9.0))
            queued = engine.queued_jobs
            await whole.queued(queued + 1)
            leaver.leave()
            await until(lambda: counts.changes(first, whole.metrics(), "attention_rejected_total").total() == 1)
            assert engine.queued_jobs == 1
            free.set()
            assert (await stayer.answer())[0] == 200
            assert 9.0 in sessions.seen
            assert 7.0 not in sessions.seen
        assert counts.changes(first, whole.metrics(), "attention_rejected_total") == {("cancelled",): 1}
        moved = counts.changes(first, whole.metrics(), "attention_requests_total")
        assert sorted((key[2], count) for key, count in moved.items()) == [("200", 2), ("499", 1)]

    whole.play(scenario())


def test_one_of_eight_in_one_run_leaves_and_seven_are_answered(whole: Whole) -> None:
    """ray#41057: what was found for one who had left ended the loop, for all."""
    path, engine, sessions = "/attention?heads=1&return=weights", whole.engine, whole.sessions

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(whole.port)) for _ in range(8)]
            first = whole.metrics()
            async with whole.occupied() as free:
                for i, client in enumerate(clients):
                    client.send(path, of(float(i)))
                await whole.queued(8)
                sessions.close()
                free.set()
                await until(lambda: engine.running_jobs == 8)
                clients[2].leave()
                await until(
                    lambda: counts.changes(first, whole.metrics(), "attention_rejected_total") == {("cancelled",): 1}
                )
                sessions.gate.set()
                for client in (*clients[:2], *clients[3:]):
                    assert (await client.answer())[0] == 200
            assert (await clients[0].ask(path, of(20.0)))[0] == 200, "the worker goes on"

    whole.play(scenario())


# What is refused


def test_a_comparison_takes_as_many_places_as_it_has_encodings_or_none(whole: Whole) -> None:
    """TEI#470: a request that became several had one permit. TEI#744: what was over the limit was a crash."""
    engine, sessions = whole.engine, whole.sessions
    two, three = ("/attention?return=weights&compare=" + names for names in ("alibi", "alibi,t5"))

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            client, fitting, *waiting = [
                await stack.enter_async_context(Client(whole.port)) for _ in range(2 + QUEUE - 2)
            ]
            status, content = await client.ask("/attention?return=weights&compare=all", of(1.0))
            assert status == 413, "more than the empty queue holds"
            assert b"compare fewer encodings" in content
            async with whole.occupied() as free:
                for one in waiting:
                    one.send("/attention?return=weights", of(2.0))
                await whole.queued(QUEUE - 2)
                status, content = await client.ask(three, of(3.0))
                assert status == 429
                assert json.loads(content)["queued_jobs"] == engine.queued_jobs == QUEUE - 2
                fitting.send(two, of(4.0))
                await whole.queued(QUEUE)
                assert (await client.ask("/attention?return=scores", of(3.0)))[0] == 429
                free.set()
                for one in (fitting, *waiting):
                    assert (await one.answer())[0] == 200
            assert (await client.ask(three, of(5.0)))[0] == 200, "there is room again"
            assert [sessions.seen.count(number) for number in (1.0, 2.0, 3.0, 4.0, 5.0)] == [0, QUEUE - 2, 0, 2, 3]

    whole.play(scenario())


# Each gets its own

ENCODINGS = ("rope", "alibi", "t5", "shaw", "cope", "fox", "none", "rope-dynamic", "deberta")
AT_ONCE = QUEUE - 1


@dataclass(frozen=True)
class Question:
    """What one asks, but for the numbers."""

    model: str = "identity"
    encoding: str = "rope"
    heads: int = 4
    scale: float = 0.5
    returns: tuple[str, ...] = ("weights", "scores")
    batch: tuple[int, ...] = ()
    tokens: int = 8

    @property
    def path(self) -> str:
        heads = self.heads if self.model == "identity" else 4
        return (
            f"/attention?model={self.model}&encoding={self.encoding}&heads={heads}&causal=true"
            f"&{self.encoding}.scale={self.scale}&return={','.join(self.returns)}"
        )

    def body(self, seed: int) -> bytes:
        shape = (*self.batch, self.tokens, 64)
        return samples.npy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


OTHERWISE: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["identity", "tiny"]),
    "encoding": st.sampled_from(ENCODINGS),
    "heads": st.sampled_from([1, 2, 4]),
    "scale": st.sampled_from([0.5, 2.0]),
    "returns": st.lists(
        st.sampled_from(["weights", "scores", "terms", "output"]), min_size=1, max_size=4, unique=True
    ).map(tuple),
    "batch": st.sampled_from([(), (2,)]),
    "tokens": st.sampled_from([1, 7, 8, 9, 40, 200]),
}


@st.composite
def twins(draw: st.DrawFn) -> list[Question]:
    """Two that differ in one thing."""
    one = Question(**{name: draw(values) for name, values in OTHERWISE.items()})
    name = draw(st.sampled_from(list(OTHERWISE)))
    return [one, replace(one, **{name: draw(OTHERWISE[name])})]


ONE = Question()
ALIKE = [
    [ONE, replace(ONE, scale=2.0), replace(ONE, returns=("scores",)), replace(ONE, heads=2)],
    [replace(ONE, encoding="alibi"), replace(ONE, model="tiny"), replace(ONE, tokens=9), replace(ONE, batch=(1,))],
]


def answered(asked: Question, status: int, content: bytes) -> dict[str, Array]:
    assert status == 200, content
    found = dict(safetensors.numpy.load(content))
    assert {name.split("/")[1] for name in found} == set(asked.returns)
    return found


async def alone(whole: Whole, questions: list[Question]) -> list[dict[str, Array]]:
    async with Client(whole.port) as client:
        return [answered(one, *await client.ask(one.path, one.body(seed))) for seed, one in enumerate(questions)]


async def together(whole: Whole, questions: list[Question]) -> list[dict[str, Array]]:
    """So many at once; where a worker runs them, while it is busy, so that all are in the queue."""
    found: list[dict[str, Array]] = []
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(whole.port)) for _ in range(AT_ONCE)]
        for start in range(0, len(questions), AT_ONCE):
            some = list(zip(clients, questions[start : start + AT_ONCE], strict=False))
            async with AsyncExitStack() as waiting:
                free = None if whole.sessions.quick else await waiting.enter_async_context(whole.occupied())
                for i, (client, one) in enumerate(some):
                    client.send(one.path, one.body(start + i))
                if free is not None:
                    await whole.queued(len(some))
                    free.set()
                found += [answered(one, *await client.answer()) for client, one in some]
    return found


@pytest.mark.parametrize("quick", [True, False], ids=["on the event loop", "by a worker"])
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@example(ALIKE, [0, 1, 0, 2, 0, 3, 0, 7, 4, 4, 5, 0, 6, 0, 1, 1] * 2)
@given(st.lists(twins(), min_size=4, max_size=4), st.lists(st.integers(0, 7), min_size=32, max_size=32))
def test_a_random_mix_in_flight_is_answered_as_each_is_alone(
    whole: Whole, quick: bool, kinds: list[list[Question]], order: list[int]
) -> None:
    """MLServer#1306: one answer got the data of all. MLServer#514: all got the outputs that one had asked for. A cache
    of other answers forgot the model. Some are alike, and share a run."""
    of_all = [one for pair in kinds for one in pair]
    questions = [of_all[which] for which in order]
    found: list[list[dict[str, Array]]] = []

    async def scenario() -> None:
        found.append(await together(whole, questions))
        found.append(await alone(whole, questions))

    whole.sessions.quick, before = quick, whole.metrics()
    try:
        whole.play(scenario())
    finally:
        whole.sessions.quick = False
    runs = counts.changes(before, whole.metrics(), "attention_batches_total").total()
    jobs = counts.changes(before, whole.metrics(), "attention_batch_requests_sum").total()
    event(f"{jobs - runs} of {jobs} shared the run of others")
    assert kinds is not ALIKE or jobs > runs
    for asked, one, other in zip(questions, *found, strict=True):
        for name, array in other.items():
            assert one[name].shape == array.shape
            scale = 1.0 if name.endswith("weights") else max(1.0, float(np.abs(array).max()))
            assert float(np.abs(one[name] - array).max()) <= 1e-6 * scale, (asked, name)
