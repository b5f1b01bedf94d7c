"""Clients whose tensors lie in memory that they share with the service: their numbers pass no socket."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from urllib.parse import urlsplit

from pydantic import BaseModel

from load_tests.bench.contenders import CORES, ROOT, Setting
from load_tests.bench.wrk import TIMEOUT, RunFailed
from load_tests.tied import tied

SETTING = Setting("shared memory allowed", variables={"ATTENTION_SHARED_MEMORY": "true"})
READY = "ready\n"


class Counted(BaseModel):
    """What one process of clients has counted."""

    requests: int
    seconds: float


def load(address: str, tokens: int, connections: int, seconds: float, sequences: int = 1) -> float:
    """Sequences a second, so many in a request, over so many connections, in as many processes as there are cores, all
    at the same time. Raises RunFailed.
    """
    each = max(1, connections // CORES)
    command = [sys.executable, "-m", "load_tests.bench.shared_client", str(urlsplit(address).port)]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                subprocess.Popen(
                    tied([*command, *map(str, (tokens, sequences, each, seconds))]),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                )
            )
            for _ in range(CORES)
        ]
        for client in clients:
            stack.callback(client.kill)
            assert client.stdout is not None
            if client.stdout.readline() != READY:
                raise RunFailed(f"a client of shared memory: {client.communicate()[1].strip()[-400:]}")
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("\n")
            client.stdin.flush()
        return sequences * sum(_rate(client, seconds) for client in clients)


def _rate(client: subprocess.Popen[str], seconds: float) -> float:
    try:
        said, trouble = client.communicate(timeout=seconds + TIMEOUT)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"a client of shared memory has not ended {TIMEOUT} s after it should have") from None
    if client.returncode != 0:
        raise RunFailed(f"a client of shared memory: {trouble.strip()[-400:]}")
    counted = Counted.model_validate_json(said)
    if not counted.requests:
        raise RunFailed("a client of shared memory got no answer at all")
    return counted.requests / counted.seconds
