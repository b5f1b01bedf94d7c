"""When the client tries again, for how long it waits, and what it says when it gives up."""

from __future__ import annotations

import asyncio
import socket
from email.utils import formatdate

import pytest

from service.client import AsyncClient, AttentionError, Busy, Client, Failed, Patience, Refused, Unreachable
from tests.service.client.scripted import Reply, answering, problem

NOW = 1_700_000_000.0
READY = Reply(content=b'{"models": []}')


class Rest:
    """A sleep that takes no time, and remembers."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)

    async def asleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


def patient(url: str, rest: Rest, retries: int = 4, jitter: float = 0.0, longest_wait: float = 30.0) -> Client:
    return Client(url, retries=retries, longest_wait=longest_wait, sleep=rest, clock=lambda: NOW, jitter=lambda: jitter)


@pytest.mark.parametrize("status", [429, 503])
def test_what_is_refused_for_lack_of_room_is_asked_again_after_retry_after(status: int) -> None:
    rest = Rest()
    busy = problem(status, retry_after=3)
    with answering(busy, busy, READY) as server, patient(server.url, rest) as client:
        assert client.models() == []
    assert rest.seconds == [3.0, 3.0]
    assert server.paths == ["/models"] * 3


def test_retry_after_may_be_a_date() -> None:
    rest = Rest()
    busy = problem(503, retry_after=formatdate(NOW + 7, usegmt=True))
    with answering(busy, READY) as server, patient(server.url, rest) as client:
        client.models()
    assert rest.seconds == [7.0]


@pytest.mark.parametrize("header", ["soon", "nan", "-5"])
def test_a_retry_after_that_says_nothing_does_no_harm(header: str) -> None:
    rest = Rest()
    with answering(problem(503, retry_after=header), READY) as server, patient(server.url, rest) as client:
        client.models()
    assert rest.seconds[0] in (0.0, 0.25)


def test_without_retry_after_pauses_double_up_to_the_longest() -> None:
    rest = Rest()
    with (
        answering(problem(503)) as server,
        patient(server.url, rest, retries=5, longest_wait=3.0) as client,
        pytest.raises(Busy) as failure,
    ):
        client.models()
    assert rest.seconds == [0.25, 0.5, 1.0, 2.0, 3.0]
    assert len(server.paths) == 6
    assert (failure.value.status, failure.value.detail, failure.value.request_id) == (503, "What went wrong", "abc-1")


def test_clients_do_not_come_back_together() -> None:
    waits = set()
    for share in (0.0, 0.5, 1.0):
        rest = Rest()
        with answering(problem(429, retry_after=8), READY) as server, patient(server.url, rest, jitter=share) as client:
            client.models()
        waits.update(rest.seconds)
    assert waits == {8.0, 9.0, 10.0}


def test_a_service_that_asks_for_too_much_patience_is_not_pestered() -> None:
    rest = Rest()
    with (
        answering(problem(429, retry_after=3600)) as server,
        patient(server.url, rest) as client,
        pytest.raises(Busy) as failure,
    ):
        client.models()
    assert (rest.seconds, failure.value.retry_after) == ([], 3600.0)


@pytest.mark.parametrize(("status", "kind"), [(422, Refused), (404, Refused), (500, Failed), (504, Failed)])
def test_other_failures_are_not_repeated(status: int, kind: type[AttentionError]) -> None:
    rest = Rest()
    with (
        answering(problem(status, retry_after=1)) as server,
        patient(server.url, rest) as client,
        pytest.raises(kind, match=f"{status} A title: What went wrong .*abc-1"),
    ):
        client.models()
    assert (rest.seconds, len(server.paths)) == ([], 1)


def test_health_is_asked_once() -> None:
    rest = Rest()
    with answering(problem(503, retry_after=1)) as server, patient(server.url, rest) as client, pytest.raises(Busy):
        client.health()
    assert rest.seconds == []


def test_a_service_that_is_not_there_yet_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    rest = Rest()
    with patient(f"http://127.0.0.1:{port}", rest, retries=3) as client, pytest.raises(Unreachable) as failure:
        client.models()
    assert rest.seconds == [0.25, 0.5, 1.0]
    assert not failure.value.sent
    assert f"127.0.0.1:{port}" in str(failure.value)
    assert failure.value.__cause__ is not None


def test_what_may_have_arrived_is_not_sent_twice() -> None:
    rest = Rest()
    with (
        answering(Reply(status=0), READY) as server,
        patient(server.url, rest) as client,
        pytest.raises(Unreachable) as failure,
    ):
        client.models()
    assert failure.value.sent
    assert (rest.seconds, len(server.paths)) == ([], 1)


def test_a_proxy_that_answers_in_html_is_quoted() -> None:
    page = Reply(502, b"<html>Bad gateway</html>", {"Content-Type": "text/html"})
    with (
        answering(page) as server,
        patient(server.url, Rest()) as client,
        pytest.raises(Failed, match="502 Bad Gateway: <html>Bad gateway</html>"),
    ):
        client.models()


@pytest.mark.parametrize("content", [b"<html>Welcome</html>", b"[]", b"{}"])
def test_another_server_is_told_from_the_service(content: bytes) -> None:
    with answering(Reply(200, content)) as server, patient(server.url, Rest()) as client:
        for ask in (client.models, lambda: client.attention([[1.0]])):
            with pytest.raises(AttentionError, match="is it the attention scoring service"):
                ask()


def test_the_asynchronous_client_is_as_patient() -> None:
    rest = Rest()
    busy = problem(429, retry_after=2)

    async def ask(url: str) -> list[dict[str, object]]:
        async with AsyncClient(url, sleep=rest.asleep, jitter=lambda: 0.0) as client:
            return await client.models()

    with answering(busy, busy, READY) as server:
        assert asyncio.run(ask(server.url)) == []
    assert rest.seconds == [2.0, 2.0]


def test_time_and_chance_are_the_real_ones_by_default() -> None:
    with Client() as client:
        patience = client._patience
    assert isinstance(patience, Patience)
    assert patience.clock() > NOW
    assert 0 <= patience.jitter() < 1
