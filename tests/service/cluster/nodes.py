"""A real Ray cluster on this machine, a head and nodes that are processes of their own, each with CPUs of its own to
give away; and the service on it, started by its command.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import httpx
import psutil  # type: ignore[import-untyped]

from tests.service.process import environment

START_SECONDS = 60.0
RAY = Path(sys.executable).parent / "ray"
REPLICA = "ray::ServeReplica:attention"


class Node:
    """One node: `ray start --block`, and all that it has started."""

    def __init__(self, folder: Path, variables: dict[str, str], *arguments: str) -> None:
        self._log = folder / f"node-{secrets.token_hex(4)}.log"
        with self._log.open("wb") as log:
            self.child = subprocess.Popen(
                [RAY, "start", "--block", "--disable-usage-stats", *arguments],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def started(self) -> bool:
        said = self._log.read_text()
        assert self.child.poll() is None, said
        return "Ray runtime started" in said

    @property
    def processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.child.pid)
            return [top, *top.children(recursive=True)]
        return []

    @property
    def replicas(self) -> list[psutil.Process]:
        """The processes of the service's replicas on it."""
        found = []
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                if "".join(process.cmdline()[:1]).startswith(REPLICA):
                    found.append(process)
        return found

    def kill(self) -> None:
        """As if the machine's plug were pulled."""
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.child.wait()


class Cluster:
    """A head without CPUs, so no replica is on it, and two nodes: one that has room for two replicas, one for one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = environment() | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_SERVE_LOG_TO_STDERR": "0",
        }
        self.nodes: list[Node] = []

    def start(self) -> None:
        self.head = self._node("--head", "--port=0", "--include-dashboard=false", f"--temp-dir={self.folder}", cpus=0)
        self.address = (self.folder / "ray_current_cluster").read_text().strip()
        # One after the other: nodes of one machine that start together may choose the same ports.
        self.large, self.small = (self._node(f"--address={self.address}", cpus=cpus) for cpus in (2, 1))

    def _node(self, *arguments: str, cpus: int) -> Node:
        node = Node(self.folder, self.variables, *arguments, f"--num-cpus={cpus}", f"--object-store-memory={256 << 20}")
        self.nodes.append(node)
        until(node.started, "a node")
        return node

    def end(self) -> None:
        for node in reversed(self.nodes):
            node.kill()


class Served:
    """The service on a cluster."""

    def __init__(self, cluster: Cluster, *arguments: str, **settings: str) -> None:
        self.cluster = cluster
        self.output: list[str] = []
        self.child = subprocess.Popen(
            [sys.executable, "-m", "service", "ray", "--address", cluster.address, "--head-only", *arguments],
            env=cluster.variables | {f"ATTENTION_{name.upper()}": value for name, value in settings.items()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.child.stderr is not None
        self._reader = threading.Thread(target=self._listen, args=(self.child.stderr,))
        self._reader.start()
        self.url = ""
        try:
            until(lambda: bool(self.url) or self.child.poll() is not None, "the service")
            assert self.url, "".join(self.output)
        except AssertionError:
            self.close()
            raise

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            self.output.append(line)
            if found := re.search(r"at (http://127\.0\.0\.1:\d+)", line):
                self.url = found[1]

    def client(self, **options: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30.0, **options)  # type: ignore[arg-type]

    def series(self, name: str, **labels: str) -> dict[str, float]:
        """The values of a metric by replica, of all series that have these labels."""
        with self.client() as client:
            text = client.get("/metrics").raise_for_status().text
        found: dict[str, float] = {}
        for line in text.splitlines():
            if not line.startswith(name + "{"):
                continue
            if all(f'{label}="{value}"' in line for label, value in labels.items()):
                replica = re.search(r'replica="(\w+)"', line)
                assert replica is not None, line
                found[replica[1]] = found.get(replica[1], 0.0) + float(line.rpartition(" ")[2])
        return found

    def ready(self) -> int:
        """How many replicas take work."""
        return int(sum(self.series("attention_ready").values()))

    def end(self, seconds: float = 60.0) -> int:
        self.child.terminate()
        return self.child.wait(seconds)

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self._reader.join()
        assert self.child.stderr is not None
        self.child.stderr.close()


def until(true: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Waits for it."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(httpx.TransportError, httpx.HTTPStatusError):
            if true():
                return
        assert time.monotonic() < deadline, f"{what} is not there after {seconds:g} s"
        time.sleep(0.1)


@contextmanager
def cluster() -> Iterator[Cluster]:
    # Sockets have short paths: pytest's own folders are too deep.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp" if os.path.isdir("/tmp") else None))
    begun = Cluster(folder)
    try:
        begun.start()
        yield begun
    finally:
        begun.end()
        shutil.rmtree(folder, ignore_errors=True)
