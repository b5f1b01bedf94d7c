"""How much of the bare model's throughput is left behind HTTP, and where tensors lie in shared memory: whole answers of
this service beside `session.run`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from load_tests.bench import bare, graph, job, shared, wrk
from load_tests.bench.contenders import CORES, LOGS, ROOT, SERVICE
from load_tests.bench.job import Post
from load_tests.bench.others import watching
from load_tests.bench.processes import running
from load_tests.bench.records import BareRow
from load_tests.bodies import as_npy
from load_tests.server import free_port

HEADS, WIDTH = 8, 256
LENGTHS = (128, 512)
TOGETHER = {128: 8, 512: 2}
"""Sequences that clients with shared memory send in one request, beside one."""
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
    """In turns. The service is idle while the bare model and the bare server run."""
    session = graph.session(graph.scores_graph(*OUTPUTS))
    found = []
    with SERVICE.running(shared.SETTING, "binary") as server:
        for tokens in LENGTHS:
            feeds = graph.feeds(session, job.vectors(tokens, WIDTH), HEADS)
            bytes_out = len(OUTPUTS) * HEADS * tokens * tokens * 4
            row = BareRow(
                tokens=tokens,
                megabytes=bytes_out / 1e6,
                service=[],
                bare=[],
                sending=[],
                others=[],
                shared=[],
                shared_others=[],
                together=TOGETHER[tokens],
                shared_together=[],
                together_others=[],
            )
            wrk.load(server.address, post(tokens), CONNECTIONS, 1)
            for number in range(rounds):
                row.bare.append(bare.throughput(session, feeds, CORES, seconds))
                with watching(server) as others:
                    row.service.append(wrk.load(server.address, post(tokens), CONNECTIONS, seconds).per_second)
                row.others.append(others.value)
                time.sleep(PAUSE)
                with watching(server) as others:
                    row.shared.append(shared.load(server.address, tokens, CONNECTIONS, seconds))
                row.shared_others.append(others.value)
                time.sleep(PAUSE)
                with watching(server) as others:
                    row.shared_together.append(shared.load(server.address, tokens, CONNECTIONS, seconds, row.together))
                row.together_others.append(others.value)
                time.sleep(PAUSE)
                row.sending.append(_sending(post(tokens), bytes_out, seconds))
                say(
                    f"round {number + 1}/{rounds}, {tokens} tokens: bare {row.bare[-1]:,.0f}/s, "
                    f"sending {row.sending[-1]:,.0f}/s, service {row.service[-1]:,.0f}/s, "
                    f"in shared memory {row.shared[-1]:,.0f}/s, "
                    f"{row.together} together {row.shared_together[-1]:,.0f}/s"
                )
            found.append(row)
    return found


def _sending(post: Post, size: int, seconds: float) -> float:
    """Answers a second of a server that does nothing but send so many bytes."""
    port = free_port()
    command = (sys.executable, "-m", "load_tests.bench.sending", f"{size}", f"{port}", f"{CORES}")
    with running(command, {}, LOGS / "sending.log", f"http://127.0.0.1:{port}", post, ROOT) as server:
        wrk.load(server.address, post, CONNECTIONS, 1)
        return wrk.load(server.address, post, CONNECTIONS, seconds).per_second
