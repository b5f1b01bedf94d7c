"""Servers started and stopped by their process ids: each in a session of its own, its descendants ended with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from load_tests.bench.job import Post
from load_tests.tied import tied

START_SECONDS = 60.0
STOP_SECONDS = 8.0


class StartFailed(Exception):
    """A server that did not come up; the message ends with the last lines it printed."""


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    address: str
    process: psutil.Process

    def processes(self) -> list[psutil.Process]:
        """It and all its descendants."""
        with suppress(psutil.NoSuchProcess):
            return [self.process, *self.process.children(recursive=True)]
        return []

    def resident_bytes(self) -> int:
        """Of all its processes; of a page that several have in memory, each has a share (PSS), so it counts once."""
        total = 0
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().pss
        return total


@contextmanager
def running(
    command: Sequence[str], variables: Mapping[str, str], log: Path, address: str, probe: Post, cwd: Path | None = None
) -> Iterator[Server]:
    """A server from its first good answer to `probe` until all its processes have ended. Raises StartFailed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        started = subprocess.Popen(
            tied(command),
            env={name: value for name, value in os.environ.items() if not name.startswith("ATTENTION_")}
            | dict(variables),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            start_new_session=True,
        )
    server = Server(address, psutil.Process(started.pid))
    try:
        _await(server, started, probe, log)
        yield server
    finally:
        _stop(server, started)


def post(address: str, post: Post, timeout: float = 30.0) -> tuple[str, bytes]:
    """The media type and body of one answer. Raises OSError for anything that is not a 2xx."""
    request = urllib.request.Request(address + post.path, data=post.data, headers=post.headers, method="POST")
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.headers.get("content-type", ""), answer.read()


def _await(server: Server, started: subprocess.Popen[bytes], probe: Post, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    last = "no answer"
    while time.monotonic() < deadline and started.poll() is None:
        try:
            post(server.address, probe, timeout=10)
        except (OSError, urllib.error.URLError) as error:
            last = str(error)
            time.sleep(0.1)
        else:
            return
    ended = (
        f"exit code {started.returncode}"
        if started.poll() is not None
        else f"not ready in {START_SECONDS:g} s ({last})"
    )
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
    raise StartFailed(f"{ended}\n{tail}".rstrip())


def _stop(server: Server, started: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the server, time to end its children, then SIGKILL to what is left of those that it had."""
    had = server.processes()
    with suppress(ProcessLookupError):
        os.kill(started.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        started.wait(STOP_SECONDS)
    had = list({*had, *server.processes()})
    _, left = psutil.wait_procs(had, timeout=3)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=5)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()
