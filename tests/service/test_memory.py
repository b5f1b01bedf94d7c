"""What a service takes of memory, over many requests and over large ones: all of its processes together."""

from __future__ import annotations

import http.client
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from service.wire import media
from tests.service import samples
from tests.service.process import Process, serving

MIB = 1 << 20
HEADERS = {"content-type": media.NPY, "accept": media.SAFETENSORS}
ENCODINGS = ("rope", "alibi", "t5", "shaw", "none", "sinusoidal", "deberta", "kerple")
RETURNS = ("weights", "weights,scores", "output", "weights,scores,terms,output")
CONNECTIONS, LONGEST, HEADS, WIDEST = 4, 200, 4, 16


@pytest.fixture
def service() -> Iterator[Process]:
    with serving(processes="2", table_cache_bytes="16MiB") as service:  # full before it is measured
        yield service


def processes(service: Process) -> list[Path]:
    tasks = Path(f"/proc/{service.child.pid}/task/{service.child.pid}")
    return [Path("/proc") / pid for pid in (str(service.child.pid), *(tasks / "children").read_text().split())]


def _sum(service: Process, file: str, name: str) -> int:
    lines = (line.split() for process in processes(service) for line in (process / file).read_text().splitlines())
    return sum(int(line[1]) * 1024 for line in lines if line[0] == name)


def resident(service: Process) -> int:
    """Bytes now; of a page that several processes have, each has a share."""
    return _sum(service, "smaps_rollup", "Pss:")


def most(service: Process) -> int:
    """The most that each ever had, what they share counted in each: more than there ever was at a time."""
    return _sum(service, "status", "VmHWM:")


def ask(service: Process, array: np.ndarray, query: str, connection: http.client.HTTPConnection | None = None) -> int:
    """How many bytes came back."""
    own = connection is None
    connection = connection or http.client.HTTPConnection("127.0.0.1", service.port, timeout=120)
    try:
        connection.request("POST", f"/attention?{query}", samples.npy(array), HEADERS)
        answer = connection.getresponse()
        size = 0
        while part := answer.read(1 << 20):
            size += len(part)
        assert answer.status == 200
        return size
    finally:
        if own:
            connection.close()


class Client:
    """One connection, kept open."""

    def __init__(self, service: Process, seed: int) -> None:
        self.service = service
        self.dice, self.generator = random.Random(seed), np.random.default_rng(seed)
        self.connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=120)

    def ask(self, shape: tuple[int, ...], query: str) -> None:
        ask(self.service, self.generator.standard_normal(shape, dtype=np.float32), query, self.connection)

    def warm_up(self) -> None:
        """The largest of everything, and enough lengths to fill the caches."""
        for encoding in ENCODINGS:
            for returns in RETURNS:
                for causal in ("true", "false"):
                    query = f"encoding={encoding}&heads={HEADS}&return={returns}&causal={causal}"
                    self.ask((3, LONGEST, HEADS * WIDEST), query)
        for tokens in range(LONGEST - 20, LONGEST):
            for encoding in ("alibi", "t5"):
                self.ask((tokens, HEADS * WIDEST), f"encoding={encoding}&heads={HEADS}&return=output")

    def any_shapes(self, count: int) -> None:
        """So many requests, of any shape up to that."""
        dice = self.dice
        for _ in range(count):
            heads = dice.choice([1, 2, HEADS])
            shape = (*dice.choice([(), (1,), (3,)]), dice.randint(1, LONGEST), heads * 2 * dice.randint(1, WIDEST // 2))
            query = f"encoding={dice.choice(ENCODINGS)}&heads={heads}&return={dice.choice(RETURNS)}"
            self.ask(shape, f"{query}&causal={dice.choice(['true', 'false'])}")


def test_two_thousand_shapes_after_a_warm_up_at_the_largest_leave_memory_as_it_was(service: Process) -> None:
    clients = [Client(service, seed) for seed in range(CONNECTIONS)]
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(Client.warm_up, clients))
        before = resident(service)
        list(threads.map(lambda client: client.any_shapes(2000 // CONNECTIONS), clients))
        after = resident(service)
    for client in clients:
        client.connection.close()
    # What is kept of a thousand plans and headers in each process is some 20 MB, whatever else comes.
    assert after < 1.05 * before + 28 * MIB


def test_a_large_answer_takes_its_own_size_and_that_of_a_few_blocks(service: Process) -> None:
    idle = most(service)
    x = np.random.default_rng(0).standard_normal((2048, 64), dtype=np.float32)
    for encoding in ("rope", "t5", "alibi"):
        size = ask(service, x, f"encoding={encoding}&heads=8&return=weights&causal=true")
        assert size > 4 * 8 * 2048 * 2048 == 128 * MIB
    # Connections are spread over two processes, each of which may have had its largest.
    assert most(service) < idle + 2 * (128 + 450) * MIB


def test_the_summary_of_a_large_matrix_takes_no_room_for_it(service: Process) -> None:
    """4096 tokens under 8 heads: a matrix of 512 MiB."""
    idle = most(service)
    x = np.random.default_rng(0).standard_normal((4096, 64), dtype=np.float32)
    for query in ("causal=true&return=summary", "encoding=alibi&return=summary&top_k=8"):
        assert ask(service, x, f"{query}&heads=8") < 4 * MIB
    assert most(service) < idle + 450 * MIB


def test_one_query_against_32768_keys(service: Process) -> None:
    x = np.random.default_rng(0).standard_normal((32_768, 64), dtype=np.float32)
    for encoding in ("rope", "t5", "alibi", "deberta", "transformer-xl", "cope"):
        size = ask(service, x, f"encoding={encoding}&heads=4&return=weights&causal=true&rows=-1")
        assert size > 4 * 4 * 32_768
    assert most(service) < 1500 * MIB


def test_one_query_takes_what_its_keys_take_and_not_a_table_for_each_of_them() -> None:
    """Of 1,024 distances: eight times 131,072 keys would be 4 GiB."""
    with serving(processes="1", workers="1") as service:
        x = np.random.default_rng(0).standard_normal((65_536, 64), dtype=np.float32)
        ask(service, x[:64], "encoding=deberta&heads=8&return=weights&rows=-1")
        idle = most(service)
        ask(service, x, "encoding=deberta&heads=8&return=weights&rows=-1")
        assert most(service) < idle + 500 * MIB


def test_the_largest_keys_of_a_whole_long_matrix_and_what_they_took_is_given_back(service: Process) -> None:
    idle = resident(service)
    x = np.random.default_rng(0).standard_normal((4096, 512), dtype=np.float32)
    size = ask(service, x, "encoding=rope&heads=8&return=weights&top_k=8")
    assert size > 2 * 4 * 8 * 8 * 4096
    assert most(service) < 1500 * MIB
    # Sessions and what is between them stay.
    taken, deadline = resident(service) - idle, time.monotonic() + 30
    while resident(service) - idle > max(taken / 2, 128 * MIB):
        assert time.monotonic() < deadline, (taken, resident(service) - idle)
        time.sleep(0.5)
