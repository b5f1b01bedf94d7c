"""A service of one's own: started on a free loopback port, awaited, stopped by its process id. It never outlives us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from load_tests.tied import tied


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@dataclass(frozen=True)
class Started:
    """`pid` is that of the supervisor: the processes that serve are its children."""

    address: str
    pid: int


@contextmanager
def running_service(*, start_seconds: float = 60.0, stop_seconds: float = 40.0, **settings: str) -> Iterator[str]:
    """The address of a service that is ready, as `started_service` has it."""
    with started_service(start_seconds=start_seconds, stop_seconds=stop_seconds, nice=0, **settings) as service:
        yield service.address


@contextmanager
def started_service(
    *, start_seconds: float = 60.0, stop_seconds: float = 40.0, nice: int = 0, **settings: str
) -> Iterator[Started]:
    """A service that is ready. `settings` are ATTENTION_* variables in lower case, without the prefix.

    `nice` above 0 lets other programs go first where there are not enough cores. Raises RuntimeError when it is not
    ready in `start_seconds`, or when it does not leave with exit code 0 on SIGTERM.
    """
    port = free_port()
    variables = {f"ATTENTION_{name.upper()}": value for name, value in settings.items()}
    environment = os.environ | variables | {"ATTENTION_HOST": "127.0.0.1", "ATTENTION_PORT": str(port)}
    process = subprocess.Popen(tied([sys.executable, "-m", "service"]), env=environment)
    if nice:
        # Of the supervisor: it has not forked yet, and what it forks inherits this.
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + nice)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(address, process, time.monotonic() + start_seconds)
        yield Started(address, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"the service left with exit code {process.returncode} on SIGTERM")


def _wait_until_ready(address: str, process: subprocess.Popen[bytes], deadline: float) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the service ended with exit code {process.returncode} before it was ready")
        try:
            urllib.request.urlopen(f"{address}/health/ready", timeout=1).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise RuntimeError(f"the service at {address} did not become ready in time")
