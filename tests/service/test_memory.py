"""What a process takes of memory, over many requests and over large ones."""

from __future__ import annotations

import http.client
import random
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


@pytest.fixture
def service() -> Iterator[Process]:
    with serving(workers="1", table_cache_bytes="16MiB") as service:  # full before it is measured
        yield service


def memory(service: Process, name: str) -> int:
    """`VmRSS`, resident now, or `VmHWM`, the most it ever was; bytes."""
    for line in Path(f"/proc/{service.child.pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


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


def shapes(service: Process, seed: int, count: int) -> None:
    """So many requests, of any shape up to one."""
    dice, generator = random.Random(seed), np.random.default_rng(seed)
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=120)
    for _ in range(count):
        heads = dice.choice([1, 2, 4])
        shape = (*dice.choice([(), (1,), (3,)]), dice.randint(1, 200), heads * 2 * dice.randint(1, 8))
        returns = dice.choice(["weights", "weights,scores", "output", "weights,scores,terms,output"])
        causal = dice.choice(["true", "false"])
        query = f"encoding={dice.choice(ENCODINGS)}&heads={heads}&return={returns}&causal={causal}"
        ask(service, generator.standard_normal(shape, dtype=np.float32), query, connection)
    connection.close()


def test_two_thousand_shapes_leave_memory_as_it_was_after_the_first_few_hundred(service: Process) -> None:
    with ThreadPoolExecutor(4) as threads:
        for seeds, count in ((range(4), 150), (range(4, 8), 350)):
            before = memory(service, "VmRSS")
            for done in [threads.submit(shapes, service, seed, count) for seed in seeds]:
                done.result()
    assert memory(service, "VmRSS") < 1.15 * before + 16 * MIB


def test_a_large_answer_takes_its_own_size_and_that_of_a_few_blocks(service: Process) -> None:
    idle = memory(service, "VmRSS")
    x = np.random.default_rng(0).standard_normal((2048, 64), dtype=np.float32)
    for encoding in ("rope", "t5", "alibi"):
        size = ask(service, x, f"encoding={encoding}&heads=8&return=weights&causal=true")
        assert size > 4 * 8 * 2048 * 2048 == 128 * MIB
    assert memory(service, "VmHWM") < idle + 128 * MIB + 450 * MIB


def test_one_query_against_32768_keys(service: Process) -> None:
    idle = memory(service, "VmRSS")
    x = np.random.default_rng(0).standard_normal((32_768, 64), dtype=np.float32)
    for encoding in ("rope", "t5", "alibi", "deberta", "transformer-xl", "cope"):
        size = ask(service, x, f"encoding={encoding}&heads=4&return=weights&causal=true&rows=-1")
        assert size > 4 * 4 * 32_768
    assert memory(service, "VmHWM") < idle + 800 * MIB
