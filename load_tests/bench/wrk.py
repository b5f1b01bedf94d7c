"""The client of every measurement: wrk, one thread, so many connections that always have one request under way."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from load_tests.bench.job import Post
from load_tests.tied import tied

SCRIPT = Path(__file__).with_name("post.lua")
INSTALL = "wrk is not installed. It is the Debian package wrk: apt-get install wrk"
TIMEOUT = 60
"""Seconds an answer may take."""


class WrkMissing(Exception):
    """The message says how to install it."""


class RunFailed(Exception):
    """A run in which something other than a 2xx came back, or nothing."""


@dataclass(frozen=True)
class Run:
    """What one run measured. Times in microseconds."""

    requests: int
    microseconds: int
    bytes: int
    p50_us: int
    p99_us: int
    max_us: int
    status: int
    connect: int
    read: int
    write: int
    timeout: int

    @property
    def per_second(self) -> float:
        return self.requests / self.microseconds * 1e6

    def check(self) -> Run:
        """Itself. Raises RunFailed naming what went wrong, with counts."""
        kinds = {
            "answers that were not 2xx": self.status,
            "failed connections": self.connect,
            "failed reads": self.read,
            "failed writes": self.write,
            "timeouts": self.timeout,
        }
        wrong = [f"{count} {kind}" for kind, count in kinds.items() if count]
        if not self.requests:
            wrong.append("no answer at all")
        if wrong:
            raise RunFailed(f"of {self.requests} requests: {', '.join(wrong)}")
        return self


def version() -> str:
    """What the installed wrk calls itself. Raises WrkMissing."""
    if shutil.which("wrk") is None:
        raise WrkMissing(INSTALL)
    return subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False).stdout.split(" [")[0].strip()


def load(address: str, post: Post, connections: int, seconds: float) -> Run:
    """Posts for about so many seconds (whole ones, at least 1). Raises RunFailed."""
    with tempfile.NamedTemporaryFile(suffix=".body") as body:
        body.write(post.data)
        body.flush()
        command = [
            "wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{max(1, round(seconds))}s",
            "--timeout", f"{TIMEOUT}s", "--latency", "--script", str(SCRIPT), address + post.path, "--",
            body.name, *(f"{name}: {value}" for name, value in post.headers.items()),
        ]  # fmt: skip
        finished = subprocess.run(
            tied(command), capture_output=True, text=True, check=False, timeout=seconds + 2 * TIMEOUT
        )
    if finished.returncode != 0:
        raise RunFailed(f"wrk: {finished.stderr.strip() or finished.stdout.strip()}")
    return parse(finished.stdout).check()


def parse(output: str) -> Run:
    """The line of JSON that `post.lua` prints after wrk's own report."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            return Run(**json.loads(line))
    raise RunFailed(f"wrk printed no figures: {output.strip()[-300:]}")
