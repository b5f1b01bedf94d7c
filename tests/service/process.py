"""A real service in a process of its own, on a loopback port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from typer.testing import CliRunner

from service.__main__ import cli

START_SECONDS = 240.0  # a start that hangs; how long one takes on a busy machine decides nothing


def environment(**settings: str) -> dict[str, str]:
    """This process's, with these ATTENTION_ variables (named in lower case, without the prefix) and no others."""
    plain = {name: value for name, value in os.environ.items() if not name.upper().startswith("ATTENTION_")}
    return {**plain, **{f"ATTENTION_{name.upper()}": value for name, value in settings.items()}}


def command(*arguments: str, input: str | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m service` to its end. What it writes goes into pipes."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "service", *arguments],
        env=environment(**settings),
        input=input,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def command_here(*arguments: str, input: str | bytes | None = None) -> Done:
    """The same inside this process: much faster, for what does not depend on the process."""
    result = CliRunner().invoke(cli, arguments, input=input, prog_name="python -m service")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


@dataclass
class Process:
    """`port` is known once it listens; `output` is what it has written so far."""

    child: subprocess.Popen[str]
    output: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def resident(self) -> int:
        """Bytes of memory."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])

    def wait(self, seconds: float = 30.0) -> int:
        """The exit code."""
        return self.child.wait(seconds)

    def listen(self, stream: IO[str]) -> None:
        for line in stream:
            self.output.append(line)
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found and not self.port:
                self.port = int(found[1])


@contextmanager
def serving(
    *, processes: str = "1", before: str = "", variables: Mapping[str, str] | None = None, **settings: str
) -> Iterator[Process]:
    """A service that listens and is ready. It is killed where the test has not ended it. `before` is Python that runs
    in it first; `variables` are of its environment.
    """
    child = subprocess.Popen(
        [
            sys.executable,
            *(["-c", f"{before}\nfrom service.__main__ import main\nmain()"] if before else ["-m", "service"]),
        ],
        env={**environment(device="cpu", port="0", processes=processes, **settings), **(variables or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    process = Process(child)
    assert child.stderr is not None
    reader = threading.Thread(target=process.listen, args=(child.stderr,))
    reader.start()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not process.port:
            assert child.poll() is None, "".join(process.output)
            assert time.monotonic() < deadline, "".join(process.output)
            time.sleep(0.02)
        yield process
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        reader.join()
        child.stderr.close()
