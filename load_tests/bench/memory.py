"""Resident memory of the service while thousands of requests of different shapes, encodings and formats go through."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np

from load_tests.bench import job
from load_tests.bench.contenders import SERVICE
from load_tests.bench.job import Post
from load_tests.bench.wrk import RunFailed
from load_tests.bodies import as_json, as_npy

LARGEST = 512
CONNECTIONS = 4
EVERY = 50
"""Requests between two samples."""
ENCODINGS = ("none", "sinusoidal", "rope", "alibi", "t5", "shaw")
RETURNS = ("weights", "weights,scores", "output", "weights,scores,terms")
LENGTHS = 24
"""Lengths of the warm-up. Each has tables of its own, of 8 MB where there is a number for every pair: enough to fill
what the service keeps of them."""


def random_post(random: np.random.Generator) -> Post:
    """Tokens from 1 to LARGEST, evenly in the logarithm; 1 to 8 heads of 2 to 64; any encoding above; some JSON."""
    tokens = int(LARGEST ** random.random())
    heads = int(2 ** random.integers(0, 4))
    vectors = job.vectors(tokens, heads * 2 * int(random.integers(1, 33)), seed=int(random.integers(1 << 31)))
    path = f"/attention?encoding={random.choice(ENCODINGS)}&heads={heads}&return={random.choice(RETURNS)}"
    if tokens <= 64 and random.random() < 0.2:
        return Post(path, as_json(vectors), {"Content-Type": "application/json", "Accept": "application/json"})
    return Post(path, as_npy(vectors), {"Content-Type": "application/x-npy", "Accept": "application/x-npz"})


def large_posts() -> Iterator[Post]:
    """The largest of every encoding and set of outputs, in wide heads and narrow ones; many lengths of those that keep
    large tables."""

    def post(encoding: str, returned: str, tokens: int = LARGEST, head_dim: int = 64) -> Post:
        path = f"/attention?encoding={encoding}&heads=8&return={returned}"
        body = as_npy(job.vectors(tokens, 8 * head_dim))
        return Post(path, body, {"Content-Type": "application/x-npy", "Accept": "application/x-npz"})

    for encoding in ENCODINGS:
        for returned in RETURNS:
            yield from (post(encoding, returned, head_dim=head_dim) for head_dim in (64, 2))
    for i in range(LENGTHS):
        yield from (post(encoding, "weights", LARGEST - i) for encoding in ("alibi", "t5"))


class Client:
    """One connection, kept open."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def send(self, post: Post) -> None:
        """Raises RunFailed for anything but a 2xx."""
        self.connection.request("POST", post.path, body=post.data, headers=post.headers)
        answer = self.connection.getresponse()
        body = answer.read()
        if not 200 <= answer.status < 300:
            raise RunFailed(f"{post.path}: {answer.status} {body[:300].decode(errors='replace')}")


def measure(say: Callable[[str], None], *, requests: int) -> tuple[list[int], list[int], int, int]:
    """Requests since the warm-up, resident bytes of all processes then, the same before the warm-up, and the number of
    processes."""
    counts, resident = [0], []
    with SERVICE.running(SERVICE.settings[0], "binary") as server, ThreadPoolExecutor(CONNECTIONS) as pool:
        clients = [Client(server.address) for _ in range(CONNECTIONS)]
        started = server.resident_bytes()
        for post in large_posts():
            list(pool.map(Client.send, clients, [post] * CONNECTIONS))
        resident.append(server.resident_bytes())
        say(f"{started / 1e6:,.0f} MB at the start, {resident[-1] / 1e6:,.0f} MB after the warm-up")
        seeds = np.random.SeedSequence(0).spawn(CONNECTIONS)
        randoms = [np.random.default_rng(seed) for seed in seeds]

        def share(index: int) -> None:
            for _ in range(EVERY // CONNECTIONS + (index < EVERY % CONNECTIONS)):
                clients[index].send(random_post(randoms[index]))

        while counts[-1] < requests:
            list(pool.map(share, range(CONNECTIONS)))
            counts.append(counts[-1] + EVERY)
            resident.append(server.resident_bytes())
            if counts[-1] % (requests // 10 // EVERY * EVERY or EVERY) == 0:
                say(f"{counts[-1]:,}/{requests:,} requests: {resident[-1] / 1e6:,.0f} MB")
        return counts, resident, started, len(server.processes())
