"""What Ray Serve costs in front of one replica: `python -m load_tests.ray_check [--rounds 3] [--seconds 5]`.

The plain server (one process, one worker thread), the same application in one replica behind Ray Serve's proxy, and
in one behind its HAProxy answer the same requests in turns. Prints a Markdown table of answers a second: medians, and
how many times as many the plain server gives. All of it runs on this machine, the client too. Needs wrk and
requirements/ray.txt.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, ExitStack
from statistics import median

from load_tests.bench import job, throughput, wrk
from load_tests.bench.contenders import LOGS, ROOT
from load_tests.bench.processes import Server, running
from load_tests.bench.report import number, table
from load_tests.server import free_port

HAPROXY = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # Requests are answered on the event loop that they come in on.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}
SERVERS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "plain": ((), {"ATTENTION_PROCESSES": "1"}),
    "Ray Serve's proxy": (("ray",), {}),
    "its HAProxy": (("ray",), HAPROXY),
}
POSTS = (
    ("32 tokens, 16 kB answers, 1 connection", job.to_service("binary"), 1),
    ("32 tokens, 16 kB answers, 32 connections", job.to_service("binary"), 32),
    ("128 tokens, 1 MB answers, 8 connections", throughput.post(128), 8),
    ("512 tokens, 17 MB answers, 4 connections", throughput.post(512), 4),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    options = parser.parse_args()
    wrk.version()
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_server(name)) for name in SERVERS}
        rows = [_row(servers, *one, options.rounds, options.seconds) for one in POSTS]
    print(table(("", *SERVERS, *(f"plain / {name}" for name in list(SERVERS)[1:])), rows))


def _server(name: str) -> AbstractContextManager[Server]:
    arguments, variables = SERVERS[name]
    port = str(free_port())
    command = (sys.executable, "-m", "service", *arguments)
    settings = {"ATTENTION_PORT": port, "ATTENTION_WORKERS": "1", "ATTENTION_DEVICE": "cpu", **variables}
    log = LOGS / f"{name.replace(' ', '-')}.log"
    return running(command, settings, log, f"http://127.0.0.1:{port}", job.to_service("binary"), ROOT)


def _row(
    servers: dict[str, Server], what: str, post: job.Post, connections: int, rounds: int, seconds: int
) -> list[str]:
    found: dict[str, list[float]] = {name: [] for name in servers}
    for server in servers.values():
        wrk.load(server.address, post, connections, 1)
    for _ in range(rounds):
        for name, server in servers.items():
            found[name].append(wrk.load(server.address, post, connections, seconds).per_second)
            print(f"{what}, {name}: {found[name][-1]:,.0f}/s", file=sys.stderr)
    middle = {name: median(values) for name, values in found.items()}
    ratios = [f"{middle['plain'] / middle[name]:.1f}" for name in list(SERVERS)[1:]]
    return [what, *(number(value) for value in middle.values()), *ratios]


if __name__ == "__main__":
    main()
