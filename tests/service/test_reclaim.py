"""Memory goes back to the system once there is less to do, and only then."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Callable

import numpy as np
import safetensors.numpy

from service.reclaim import AGE, LOOKS, WORTH, Reclaim
from tests.service import samples
from tests.service.process import Process, serving
from tests.service.test_memory import HEADERS, MIB, resident


class Watched:
    """A process that holds so many bytes and has made a run of so many cells since it was last looked at."""

    def __init__(self, *sweeps: Callable[[], object]) -> None:
        self.holds = 200 * MIB
        self.run = 0
        self.given = 0
        self._reclaim = Reclaim(lambda: self.run, self._give_back, sweeps, lambda: self.holds)

    async def _give_back(self) -> None:
        self.given += 1
        self.holds = 200 * MIB

    def look(self, times: int = 1) -> int:
        """How often it has given back since it began."""

        async def looks() -> None:
            for _ in range(times):
                await self._reclaim.look()

        asyncio.run(looks())
        return self.given


def test_nothing_is_given_back_while_runs_are_as_large_as_before() -> None:
    one = Watched()
    one.run = 1 << 20
    one.holds = 900 * MIB
    assert one.look(100) == 0
    one.run = 1 << 18  # a quarter
    assert one.look(LOOKS - 1) == 0
    one.run = 1 << 20
    assert one.look() == 0
    one.run = 0
    assert one.look(LOOKS - 1) == 0


def test_what_was_held_is_given_back_once_after_the_last_large_run() -> None:
    one = Watched()
    one.look()
    one.run, one.holds = 1 << 23, 900 * MIB
    one.look(3)
    one.run = 0
    assert one.look(LOOKS - 1) == 0
    assert one.look() == 1
    assert one.look(100) == 1
    assert one.holds == 200 * MIB


def test_small_runs_that_go_on_do_not_keep_what_large_ones_needed() -> None:
    one = Watched()
    one.look()
    one.run, one.holds = 1 << 23, 900 * MIB
    one.look()
    one.run = 1 << 20
    assert one.look(100) == 1
    # These are now the largest: what they need is theirs.
    one.holds = 400 * MIB
    assert one.look(100) == 1


def test_a_little_is_not_worth_it() -> None:
    one = Watched()
    one.look()
    one.run, one.holds = 1 << 23, 200 * MIB + WORTH - 1
    one.look()
    one.run = 0
    assert one.look(100) == 0
    one.holds += 1
    assert one.look() == 1


def test_what_came_without_runs_is_given_back_as_well() -> None:
    """Bodies that are read and refused."""
    one = Watched()
    one.look()
    one.holds = 500 * MIB
    assert one.look(LOOKS) == 1


def test_what_came_before_the_first_look_counts() -> None:
    one = Watched()
    one.holds = 500 * MIB
    assert one.look(LOOKS) == 1


def test_what_is_kept_is_swept_now_and_then() -> None:
    swept: list[str] = []
    one = Watched(lambda: swept.append("tables"), lambda: swept.append("plans"))
    one.look(AGE - 1)
    assert swept == []
    one.look()
    assert swept == ["tables", "plans"]
    one.look(AGE)
    assert swept == ["tables", "plans"] * 2


SOON = "import service.reclaim as reclaim; reclaim.LOOKS, reclaim.AGE = 2, 3"
LARGE = (
    (1024, "encoding=rope&return=weights,scores,terms,output"),
    (777, "encoding=deberta&return=weights,scores,terms"),
    (1500, "encoding=alibi&return=weights&top_k=8"),
    (1024, "encoding=t5&return=summary"),
    (600, "encoding=none&compare=rope&return=comparison"),
)


def numbers(service: Process, tokens: int, query: str) -> dict[str, np.ndarray]:
    x = np.random.default_rng(tokens).standard_normal((tokens, 128), dtype=np.float32)
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=600)
    connection.request("POST", f"/attention?heads=8&causal=true&{query}", samples.npy(x), HEADERS)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status == 200, content
    return safetensors.numpy.load(content)


def test_what_a_burst_of_large_requests_took_is_given_back_and_answers_are_as_before() -> None:
    with serving(processes="1", before=SOON, deadline_seconds="600") as service:
        before = [numbers(service, 64, query) for _, query in LARGE]  # and their sessions
        idle = resident(service)
        for tokens, query in LARGE:
            numbers(service, tokens, query)
        burst, deadline = resident(service), time.monotonic() + 120
        assert burst > idle + 128 * MIB
        # A third of it, and less later: sessions that came, and pieces of pages between them.
        while resident(service) - idle > (burst - idle) / 3:
            assert time.monotonic() < deadline, [size // MIB for size in (idle, burst, resident(service))]
            time.sleep(0.25)
        for known, (_, query) in zip(before, LARGE, strict=True):
            again = numbers(service, 64, query)
            assert set(again) == set(known)
            for name, array in known.items():
                np.testing.assert_array_equal(again[name], array, err_msg=f"{query} {name}")
