"""What a service holds of memory after a burst, and what is left of it some time later: `python -m load_tests.idle`.

A service of its own, with the settings that it has unless told otherwise, is asked on 8 connections for every length
up to 1,024 tokens under every encoding, 8 heads, several outputs, a comparison or summary now and then; then nothing
is asked, or with `--small` something small ten times a second. Prints a Markdown table of the memory of all processes
together and, of the small requests, the slowest in each span.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np

from load_tests.__main__ import served
from load_tests.bench.report import table
from load_tests.bodies import as_npy
from load_tests.server import started_service
from load_tests.watch import Resident

CONNECTIONS = 8
LONGEST = 1024
HEADS = 8
RETURNS = ("weights", "weights,scores", "output", "weights,scores,terms,output", "summary", "comparison")
SMALL = 0.1
"""Seconds between two small requests."""
EVERY = 0.5


class Client:
    """One connection, kept open."""

    def __init__(self, address: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)

    def ask(self, query: str, body: bytes) -> int:
        """The status; what came is thrown away."""
        headers = {"Content-Type": "application/x-npy", "Accept": "application/vnd.safetensors"}
        self.connection.request("POST", f"/attention?{query}", body=body, headers=headers)
        answer = self.connection.getresponse()
        while answer.read(1 << 20):
            pass
        return answer.status


def burst(address: str, encodings: list[str], seconds: float, requests: int) -> dict[int, int]:
    """How many answers had each status."""
    numbers = np.random.default_rng(0).standard_normal((LONGEST, 8 * HEADS), dtype=np.float32)
    turns, lock, ends = itertools.count(), threading.Lock(), time.monotonic() + seconds
    statuses: dict[int, int] = {}

    def client() -> None:
        one = Client(address)
        while (turn := next(turns)) < requests and time.monotonic() < ends:
            dice = np.random.default_rng(turn)
            encoding, returns = encodings[turn % len(encodings)], str(dice.choice(RETURNS))
            query = f"encoding={encoding}&heads={HEADS}&causal=true&return={returns}"
            if returns == "comparison":
                query += f"&compare={encodings[(turn + 1) % len(encodings)]}"
            status = one.ask(query, as_npy(numbers[: int(dice.integers(1, LONGEST + 1))]))
            with lock:
                statuses[status] = statuses.get(status, 0) + 1
        one.connection.close()

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        for done in [threads.submit(client) for _ in range(CONNECTIONS)]:
            done.result()
    return statuses


def watched(seconds: float, resident: Callable[[], float], ask: Callable[[], float] | None) -> tuple[float, float]:
    """Megabytes at the end of so many seconds, and the slowest of the small requests meanwhile, in ms."""
    slowest, ends = 0.0, time.monotonic() + seconds
    while time.monotonic() < ends:
        if ask is not None:
            slowest = max(slowest, ask())
        time.sleep(SMALL)
    return resident(), slowest


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m load_tests.idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the burst lasts at most")
    parser.add_argument("--requests", type=int, default=20_000, help="how many it has at most")
    parser.add_argument("--small", action="store_true", help="ask for something small afterwards, again and again")
    options = parser.parse_args(arguments)
    lines: list[list[str]] = []
    with started_service(log_level="error") as service:
        resident = Resident(service.pid).megabytes
        small, body = Client(service.address), as_npy(np.ones((32, 64), np.float32))

        def ask() -> float:
            began = time.monotonic()
            small.ask("heads=4&return=weights", body)
            return 1e3 * (time.monotonic() - began)

        lines.append(["at the start", f"{resident():,.0f}", ""])
        most, over = [0.0], threading.Event()

        def look() -> None:
            while not over.wait(EVERY):
                most.append(resident())

        watch = threading.Thread(target=look)
        watch.start()
        try:
            statuses = burst(service.address, served(service.address), options.seconds, options.requests)
        finally:
            over.set()
            watch.join()
        print(f"answers by status: {statuses}")
        lines.append(["the most, amid the burst", f"{max(most):,.0f}", ""])
        lines.append(["after its last answer", f"{resident():,.0f}", ""])
        passed = 0
        for until in (5, 15, 30, 60, 150):
            megabytes, slowest = watched(until - passed, resident, ask if options.small else None)
            passed = until
            lines.append([f"{until} s later", f"{megabytes:,.0f}", f"{slowest:.0f}" if options.small else ""])
    print(table(("memory of all processes", "MB", "slowest small request since, ms"), lines))
    return 0 if set(statuses) == {200} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
