"""Connections go to the process that has the fewest: the choice, the queues between processes, and services as they
run."""

from __future__ import annotations

import http.client
import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from service.board import Board
from service.server import SPREADS
from service.siblings import Siblings, least
from service.telemetry import Telemetry
from tests.service.process import Process, serving
from tests.service.test_processes import BODY, HEADERS, connect, name, open_over, ready, until, workers

pytestmark = pytest.mark.skipif(not SPREADS, reason="connections are spread on Linux only")

# The choice


@given(st.data())
def test_the_process_with_the_fewest_is_chosen_and_one_that_takes_none_never_is(data: st.DataObject) -> None:
    loads = data.draw(st.lists(st.integers(0, 9) | st.just(inf), min_size=1, max_size=9))
    waiting = data.draw(st.lists(st.integers(0, 3), min_size=len(loads), max_size=len(loads)))
    process = data.draw(st.integers(0, len(loads) - 1))
    chosen = least(process, loads, waiting.__getitem__)
    totals = [load + more for load, more in zip(loads, waiting, strict=True)]
    assert totals[chosen] == min(totals)
    if totals[process] == min(totals):
        assert chosen == process, "it stays where it is as good as anywhere"
    assert chosen == process or loads[chosen] < inf


@given(st.integers(1, 9), st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 16)), max_size=200))
def test_opening_never_makes_processes_differ_more(processes: int, events: Sequence[tuple[bool, int]]) -> None:
    """Whoever accepts them, and wherever others have closed."""
    open_ = [0] * processes
    for opens, number in events:
        differed = max(open_) - min(open_)
        if opens:
            open_[least(number % processes, open_, lambda _: 0)] += 1
            assert max(open_) - min(open_) <= max(1, differed)
        elif any(open_):
            busy = [process for process, count in enumerate(open_) if count]
            open_[busy[number % len(busy)]] -= 1


def test_those_that_are_asked_for_what_waits_are_few() -> None:
    asked = []

    def waiting(process: int) -> int:
        asked.append(process)
        return 0

    assert least(0, [5.0] * 100, waiting) == 0
    assert asked == [0]
    assert least(0, [5.0, *[4.0] * 99], waiting) == 1
    assert asked == [0, 0, 1]


# The queues


class Held:
    """Stands for a transport: only its socket is asked for."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def get_extra_info(self, _: str) -> socket.socket:
        return self.connection


@pytest.fixture
def telemetry() -> Telemetry:
    """Of two processes that take work, as the first sees it."""
    found = Telemetry(CollectorRegistry(), Board(2))
    found.watch(queues=dict, ready=lambda: 1.0)
    for process in (1, 0):
        found.enter(process)
    return found


@pytest.fixture
def siblings(telemetry: Telemetry) -> Iterator[Siblings]:
    with closing(Siblings(telemetry)) as found:
        yield found


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_what_is_on_its_way_counts_and_a_full_queue_takes_no_more(
    telemetry: Telemetry, siblings: Siblings, pair: tuple[socket.socket, socket.socket]
) -> None:
    transport = Held(pair[0])
    assert not siblings.hand_on(transport)  # type: ignore[arg-type]
    for _ in range(2):
        telemetry.connected()
    outcomes = [siblings.hand_on(transport) for _ in range(4)]  # type: ignore[arg-type]
    assert outcomes == [True, True, False, False], "two are as many as are open here"
    for _ in range(100_000):
        telemetry.connected()
    handed = [siblings.hand_on(transport) for _ in range(2000)]  # type: ignore[arg-type]
    first = handed.index(False)
    assert first > 50
    assert not any(handed[first:])


def test_what_a_dead_process_has_not_taken_is_anothers_or_waits_for_the_next(
    telemetry: Telemetry, siblings: Siblings, pair: tuple[socket.socket, socket.socket]
) -> None:
    telemetry.enter(1)
    telemetry.connected()
    assert siblings.hand_on(Held(pair[0]))  # type: ignore[arg-type]
    telemetry.leave()
    telemetry.forget(0)
    siblings.forget(0)
    assert telemetry.loads() == [inf, inf]
    assert (siblings._waiting(0), siblings._waiting(1)) == (1, 0), "nobody takes it now"
    telemetry.publish()
    siblings.forget(0)
    assert (siblings._waiting(0), siblings._waiting(1)) == (0, 1)


# Services


@pytest.fixture(scope="module")
def two() -> Iterator[Process]:
    with serving(processes="2") as service:
        until(lambda: ready(service) == 2)
        yield service
        service.child.send_signal(signal.SIGTERM)
        assert service.wait(15) == 0


@pytest.fixture(scope="module")
def four() -> Iterator[Process]:
    """On asyncio's own event loop."""
    with serving(processes="4", connections="10", before="import sys; sys.modules['uvloop'] = None") as service:
        until(lambda: ready(service) == 4)
        yield service
        service.child.send_signal(signal.SIGTERM)
        assert service.wait(15) == 0


@pytest.fixture(params=["two", "four"])
def service(request: pytest.FixtureRequest) -> Process:
    found: Process = request.getfixturevalue(request.param)
    return found


@dataclass
class Clients:
    """Connections that are kept; the first of them is the only one that is open when the others begin."""

    service: Process
    kept: list[http.client.HTTPConnection] = field(default_factory=list)

    def more(self, connections: int) -> list[http.client.HTTPConnection]:
        """Made, but not opened."""
        found = [connect(self.service) for _ in range(connections)]
        self.kept += found
        return found

    def open(self) -> int:
        """How many all processes count as open."""
        return open_over(self.kept[0])


@contextmanager
def clients(service: Process) -> Iterator[Clients]:
    found = Clients(service)
    (first,) = found.more(1)
    try:
        until(lambda: open_over(first) == 1)
        yield found
    finally:
        for connection in found.kept:
            connection.close()


def differ(found: Counter[str], processes: int) -> int:
    each = [*found.values(), *[0] * (processes - len(found))]
    assert len(each) == processes
    return max(each) - min(each)


def pid_of(service: Process, connection: http.client.HTTPConnection) -> int:
    """The process that has the connection, as the system tells."""
    here, there = (f"{end[1]:04X}" for end in (connection.sock.getsockname(), connection.sock.getpeername()))
    (inode,) = (line[9] for line in sockets() if line[1].endswith(f":{there}") and line[2].endswith(f":{here}"))

    def found() -> list[int]:
        return [pid for pid in workers(service) if f"socket:[{inode}]" in files(pid)]

    until(lambda: len(found()) == 1)  # who hands it on lets go of it a moment after the other has it
    return found()[0]


def files(pid: int) -> set[str]:
    """What a process has open."""
    names = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            names.add(os.readlink(file))
    return names


def accepted(service: Process) -> int:
    """How many connections some process has accepted, as the system tells: they have an inode."""
    port, established = f":{service.port:04X}", "01"
    return sum(line[1].endswith(port) and line[3] == established and line[9] != "0" for line in sockets())


def sockets() -> list[list[str]]:
    return [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]


@pytest.mark.parametrize("connections", [8, 40])
def test_connections_that_are_opened_one_after_the_other_differ_by_at_most_one(
    service: Process, connections: int
) -> None:
    processes, found = len(workers(service)), Counter[str]()
    with clients(service) as opened:
        opened.more(connections - 1)
        for connection in opened.kept:
            found[name(connection)] += 1
            assert differ(found, processes) <= 1
        assert Counter(map(name, opened.kept)) == found, "each stays where it is"
        assert opened.open() == connections


def test_connections_that_are_opened_at_once_are_spread_and_all_are_answered(two: Process) -> None:
    with clients(two) as opened:
        for connection in opened.more(39):
            connection.connect()
        # The two choose at the same time, and neither sees what the other is about to do.
        assert differ(Counter(map(name, opened.kept)), 2) <= 2


def test_the_next_connections_go_where_others_have_closed(service: Process) -> None:
    with clients(service) as opened:
        names = {connection: name(connection) for connection in (*opened.kept, *opened.more(15))}
        left = [connection for connection, one in names.items() if one != names[opened.kept[0]]]
        freed = names[left[0]]
        leaving = [connection for connection in left if names[connection] == freed]
        for connection in leaving:
            connection.close()
        until(lambda: opened.open() == 16 - len(leaving))
        assert {name(connection) for connection in opened.more(len(leaving))} == {freed}


def test_all_processes_are_filled_before_a_connection_is_one_too_many(four: Process) -> None:
    with clients(four) as opened:
        for connection in opened.more(39):
            name(connection)
        (last,) = opened.more(1)
        last.request("GET", "/models")
        assert last.getresponse().status == 503


def test_one_process_that_drains_leaves_new_connections_to_the_others(four: Process) -> None:
    """And answers what it has, whoever accepted it."""
    with clients(four) as opened:
        slow = [*opened.kept, *opened.more(7)]
        for connection in slow:
            name(connection)
            connection.putrequest("POST", "/attention?heads=4")
            for header in {**HEADERS, "content-length": str(len(BODY))}.items():
                connection.putheader(*header)
            connection.endheaders(BODY[:-10])
        doomed = pid_of(four, slow[0])
        assert [pid_of(four, one) for one in slow].count(doomed) == 2
        os.kill(doomed, signal.SIGTERM)
        until(lambda: ready(four) == 3)
        for connection in opened.more(12):
            connection.request("POST", "/attention?heads=4", BODY, HEADERS)
            assert connection.getresponse().status == 200
        assert doomed in workers(four)
        for connection in slow:
            connection.send(BODY[-10:])
            assert connection.getresponse().status == 200
    until(lambda: ready(four) == 4)
    assert doomed not in workers(four)


def test_what_waits_for_a_process_that_is_killed_is_answered_by_another(two: Process) -> None:
    with clients(two) as opened:
        awake, asleep, *others = (*opened.kept, *opened.more(41))
        who = name(awake)
        assert name(asleep) != who
        doomed = pid_of(two, asleep)
        os.kill(doomed, signal.SIGSTOP)
        for connection in others:
            connection.request("GET", "/models")
        # The system gives about half of them to each, and that which is awake hands on about half of its own.
        until(lambda: accepted(two) - opened.open() >= 2)
        due = accepted(two) - 2
        os.kill(doomed, signal.SIGKILL)
        answered = Counter[str]()
        for connection in others:
            with suppress(ConnectionError):  # nobody had accepted it
                answered[(connection.getresponse().getheader("x-request-id") or "").rpartition("-")[0]] += 1
        assert set(answered) == {who}
        assert answered.total() >= due
    until(lambda: ready(two) == 2)
