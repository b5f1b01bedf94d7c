"""Time for one request against length, one connection: the whole matrix, or its last rows against a long past."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from load_tests.bench import bare, graph, job, wrk
from load_tests.bench.contenders import SERVICE
from load_tests.bench.job import Post
from load_tests.bench.others import watching
from load_tests.bench.records import ScalingRow
from load_tests.bodies import as_npy
from service.settings import Settings

HEADS, WIDTH = 4, 64
LAST_ROWS = 16
LONGEST = 8192
PAUSE = 0.3
"""Seconds in which the service drops the request that the client left unread."""
REQUEST_CELLS: int = Settings.model_fields["request_cells"].default
"""The service's default limit on batch x heads x queries x keys."""


def grid(longest: int = LONGEST) -> Iterator[tuple[int, int | None]]:
    """Tokens and rows; None where all rows are asked for, as far as the service computes so much at once."""
    lengths = [2**power for power in range(3, longest.bit_length()) if 2**power <= longest]
    yield from ((tokens, None) for tokens in lengths if HEADS * tokens * tokens <= REQUEST_CELLS)
    yield from ((tokens, LAST_ROWS) for tokens in lengths if tokens > LAST_ROWS)


def post(tokens: int, rows: int | None) -> Post:
    """The weights of all rows, or of the last `rows` alone."""
    wanted = "" if rows is None else f"&rows=-{rows}:"
    return Post(
        f"/attention?encoding={graph.ENCODING}&heads={HEADS}&return=weights{wanted}",
        as_npy(job.vectors(tokens, WIDTH)),
        {"Content-Type": "application/x-npy", "Accept": "application/vnd.safetensors"},
    )


def measure(say: Callable[[str], None], *, passes: int, seconds: float, longest: int = LONGEST) -> list[ScalingRow]:
    """Every length in every pass, the bare model in one thread right before the service."""
    session = graph.session(graph.scores_graph("weights"))
    found = [ScalingRow(tokens=tokens, rows=rows, service=[], bare=[], others=[]) for tokens, rows in grid(longest)]
    with SERVICE.running(SERVICE.settings[0], "binary") as server:
        for number in range(passes):
            for point in found:
                sent = post(point.tokens, point.rows)
                due = seconds if point.rows or point.tokens < 2048 else 3 * seconds
                feeds = graph.feeds(session, job.vectors(point.tokens, WIDTH), HEADS, point.rows)
                point.bare.append(bare.milliseconds(session, feeds, due / 3))
                with watching(server) as others:
                    point.service.append(wrk.load(server.address, sent, 1, due).p50_us / 1e3)
                point.others.append(others.value)
                time.sleep(PAUSE)
                say(
                    f"pass {number + 1}/{passes}: {point.tokens:,} tokens, {point.rows or 'all'} rows: "
                    f"{point.service[-1]:,.3f} ms, bare {point.bare[-1]:,.3f} ms"
                )
    return found
