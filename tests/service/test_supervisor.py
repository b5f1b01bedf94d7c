"""The supervisor and processes that do what a test tells them, each time in a process of its own: it forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

PATIENCE = 20.0

PROGRAM = """
import logging, os, signal, sys, time
from service.supervisor import Supervisor

logging.basicConfig(format="%(message)s")

def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

def until_told(process, ties):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    say("begun", process, os.getpid())
    ties.ready()
    while True:
        time.sleep(1)

{work}

code = Supervisor({processes}, work, up=lambda: say("up"), died=lambda process: say("died", process)).run()
say("over", code)
sys.exit(code)
"""


@dataclass
class Run:
    """A supervisor at work; `lines` are what it and its processes have said."""

    child: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def until(self, condition: Callable[[list[str]], bool]) -> None:
        assert self.child.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while not condition(self.lines):
            line = self.child.stdout.readline()
            assert line, self.lines
            assert time.monotonic() < deadline, self.lines
            self.lines.append(line.strip())

    def has(self, *wanted: str) -> None:
        self.until(lambda lines: all(one in lines for one in wanted))

    def pids(self, process: int) -> list[int]:
        """Of each process of that number, in the order of their starts."""
        return [int(line.split()[2]) for line in self.lines if line.startswith(f"begun {process} ")]

    def begun(self, process: int, times: int) -> int:
        """The process id, once it was started so many times."""
        self.until(lambda _: len(self.pids(process)) >= times)
        return self.pids(process)[-1]

    def end(self, signals: int = 1) -> int:
        for _ in range(signals):
            self.child.send_signal(signal.SIGTERM)
        return self.child.wait(PATIENCE)


@contextmanager
def supervising(work: str = "work = until_told", processes: int = 2) -> Iterator[Run]:
    program = PROGRAM.format(work=textwrap.dedent(work), processes=processes)
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield Run(child)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pid: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_and_the_exit_code_is_0(sent: signal.Signals) -> None:
    with supervising(processes=3) as run:
        run.has("up")
        pids = [run.begun(process, 1) for process in range(3)]
        assert run.lines.count("up") == 1
        run.child.send_signal(sent)
        run.has("over 0")
        assert run.child.wait(PATIENCE) == 0
        assert not any(map(alive, pids))


def test_a_process_that_dies_is_started_again_and_the_others_live() -> None:
    with supervising() as run:
        run.has("up")
        first, other = run.begun(0, 1), run.begun(1, 1)
        for times in (2, 3):
            os.kill(run.begun(0, times - 1), signal.SIGKILL)
            run.begun(0, times)
        assert first not in run.pids(0)[1:]
        assert run.pids(1) == [other]
        assert alive(other)
        assert run.lines.count("up") == 1
        assert run.lines.count("died 0") == 2
        assert any("was killed by SIGKILL; it is started again in 0.25 s" in line for line in run.lines)
        assert any("it is started again in 0.5 s" in line for line in run.lines), "it dies again and again"
        assert run.end() == 0


def test_a_process_that_cannot_begin_ends_them_all() -> None:
    work = """
    def work(process, ties):
        if process == 1:
            return 3
        return until_told(process, ties)
    """
    with supervising(work, processes=3) as run:
        run.has("over 1")
        assert "up" not in run.lines
        assert run.child.wait(PATIENCE) == 1


def test_an_exception_is_shown_and_is_a_failure() -> None:
    work = """
    def work(process, ties):
        raise ValueError("no such thing")
    """
    with supervising(work, processes=1) as run:
        run.has("ValueError: no such thing", "over 1")


def test_what_ends_badly_when_told_to_end_decides_the_exit_code() -> None:
    work = """
    def work(process, ties):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(process))
        ties.ready()
        say("begun", process, os.getpid())
        while True:
            time.sleep(1)
    """
    with supervising(work) as run:
        run.has("up")
        assert run.end() == 1


def test_each_signal_is_handed_on() -> None:
    work = """
    def work(process, ties):
        told = []
        signal.signal(signal.SIGTERM, lambda *_: told.append(1))
        ties.ready()
        while len(told) < 2:
            time.sleep(0.01)
            if told:
                say("told once")
                told.append(1) if len(told) > 1 else None
        return 0
    """
    with supervising(work, processes=1) as run:
        run.has("up")
        run.child.send_signal(signal.SIGTERM)
        run.has("told once")
        assert run.child.poll() is None
        assert run.end() == 0


def test_processes_whose_supervisor_is_gone_learn_of_it() -> None:
    work = """
    def work(process, ties):
        say("begun", process, os.getpid())
        ties.ready()
        os.read(ties.lifeline, 1)
        return 0
    """
    with supervising(work) as run:
        run.has("up")
        pids = [run.begun(process, 1) for process in range(2)]
        run.child.kill()
        assert all(map(gone, pids))


def test_one_that_is_told_to_end_before_it_has_begun_ends() -> None:
    work = """
    def work(process, ties):
        say("begun", process, os.getpid())
        time.sleep(60)
    """
    with supervising(work) as run:
        pids = [run.begun(process, 1) for process in range(2)]
        assert run.end() == 0
        assert all(map(gone, pids))


def test_a_supervisor_that_has_nothing_to_do_uses_no_time() -> None:
    with supervising() as run:
        run.has("up")
        before = ticks(run.child.pid)
        time.sleep(1)
        assert ticks(run.child.pid) - before <= 1
        assert run.end() == 0


def ticks(pid: int) -> int:
    """Hundredths of a second of CPU time."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
