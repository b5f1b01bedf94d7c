"""How much of the bare model's throughput is left behind HTTP: whole answers of this service beside `session.run`."""

from __future__ import annotations

import time
from collections.abc import Callable

from load_tests.bench import bare, graph, job, wrk
from load_tests.bench.contenders import CORES, SERVICE
from load_tests.bench.job import Post
from load_tests.bench.others import watching
from load_tests.bench.records import BareRow
from load_tests.bodies import as_npy

HEADS, WIDTH = 8, 256
LENGTHS = (128, 512)
CONNECTIONS = 8
PAUSE = 0.5
"""Seconds in which the service drops the requests that the client left unread."""
OUTPUTS = ("weights", "scores")


def post(tokens: int) -> Post:
    """All scores and weights of so many tokens, binary both ways."""
    return Post(
        f"/attention?encoding={graph.ENCODING}&heads={HEADS}&return={','.join(OUTPUTS)}",
        as_npy(job.vectors(tokens, WIDTH)),
        {"Content-Type": "application/x-npy", "Accept": "application/vnd.safetensors"},
    )


def measure(say: Callable[[str], None], *, rounds: int, seconds: int) -> list[BareRow]:
    """In turns. The service is idle while the bare model runs."""
    session = graph.session(graph.scores_graph(*OUTPUTS))
    found = []
    with SERVICE.running(SERVICE.settings[0], "binary") as server:
        for tokens in LENGTHS:
            feeds = graph.feeds(session, job.vectors(tokens, WIDTH), HEADS)
            bytes_out = len(OUTPUTS) * HEADS * tokens * tokens * 4
            row = BareRow(tokens=tokens, megabytes=bytes_out / 1e6, service=[], bare=[], others=[])
            wrk.load(server.address, post(tokens), CONNECTIONS, 1)
            for number in range(rounds):
                row.bare.append(bare.throughput(session, feeds, CORES, seconds))
                with watching(server) as others:
                    row.service.append(wrk.load(server.address, post(tokens), CONNECTIONS, seconds).per_second)
                row.others.append(others.value)
                time.sleep(PAUSE)
                say(
                    f"round {number + 1}/{rounds}, {tokens} tokens: bare {row.bare[-1]:,.0f}/s, "
                    f"service {row.service[-1]:,.0f}/s"
                )
            found.append(row)
    return found
