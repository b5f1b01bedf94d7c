"""Several processes that do the same work: started, watched, started again when they die, ended together."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

OK, FAILED = 0, 1
FIRST_WAIT, LONGEST_WAIT = 0.25, 30.0
"""Seconds before a process that died soon after its start is started again; they double each time."""
SOON = 60.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


@dataclass(frozen=True, slots=True)
class Ties:
    """What a process has of its supervisor."""

    lifeline: int
    """A file descriptor that reads as ended once the supervisor is gone."""
    _ready: int

    def ready(self) -> None:
        """Says that the process does its work."""
        os.write(self._ready, b"r")


Work = Callable[[int, Ties], int]
"""What a process does, given its number: returns the exit code. SIGTERM tells it to end, SIGINT is not for it."""


@dataclass(slots=True)
class Child:
    pid: int
    began: float
    ready: int
    """A file descriptor to read from: a byte once the process does its work."""


class Supervisor:
    """Forks the processes from what is loaded here, so that they share its memory. It must have one thread only.

    `up` is called once all of them do their work, `died` with the number of each that has died unasked.
    """

    def __init__(
        self,
        processes: int,
        work: Work,
        *,
        up: Callable[[], None],
        died: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work = work
        self._up = up
        self._died = died
        self._clock = clock
        self._children: dict[int, Child | None] = dict.fromkeys(range(processes))
        self._failures = [0] * processes
        self._due: dict[int, float] = {}
        """When those that have died are started again."""
        self._waiting = set(range(processes))
        """Those that have not yet done their work since all of this began."""
        self._asked = 0
        """Signals to end that came."""
        self._handed_on = 0
        self._code = OK

    def run(self) -> int:
        """Until SIGTERM or SIGINT, which are handed on, and the last process has ended. A second signal hurries them.

        0 where all processes ended with 0. A process that fails before it has ever done its work ends them all.
        """
        self._selector = selectors.DefaultSelector()
        lifeline, self._hold = os.pipe()
        self._lifeline = lifeline
        woken, self._wake = socket.socketpair()
        for end in (woken, self._wake):
            end.setblocking(False)
        self._selector.register(woken, selectors.EVENT_READ, None)
        before = {one: signal.signal(one, self._signalled) for one in SIGNALS}
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # else the collector of each process would copy all that they share
        try:
            for process in self._children:
                self._start(process)
            while any(self._children.values()) or (self._due and not self._asked):
                self._turn(woken)
            return self._code
        finally:
            signal.set_wakeup_fd(-1)
            for one, handler in before.items():
                signal.signal(one, handler)
            self._selector.close()
            for end in (woken, self._wake):
                end.close()
            os.close(lifeline)
            os.close(self._hold)

    def _turn(self, woken: socket.socket) -> None:
        wait = min(self._due.values(), default=None)
        for key, _ in self._selector.select(None if wait is None else max(0.0, wait - self._clock())):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    woken.recv(4096)
            else:
                self._told(key.data)
        while self._handed_on < self._asked:
            self._handed_on += 1
            self._end()
        self._reap()
        now = self._clock()
        for process in [process for process, due in self._due.items() if due <= now]:
            del self._due[process]
            if not self._asked:
                self._start(process)

    def _signalled(self, number: int, frame: object) -> None:
        """Only notes it: what was interrupted may be a fork."""
        if number != signal.SIGCHLD:
            self._asked += 1

    def _end(self) -> None:
        for child in self._children.values():
            if child is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGTERM)

    def _start(self, process: int) -> None:
        ready, tell = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        # Until it has handlers of its own, what is sent to the new process waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid == 0:
            self._become(process, ready, tell)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(tell)
        self._children[process] = Child(pid, self._clock(), ready)
        self._selector.register(ready, selectors.EVENT_READ, process)

    def _become(self, process: int, ready: int, tell: int) -> None:
        """The rest of the life of a process just forked."""
        code = FAILED
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the supervisor hands it on
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            self._selector.close()
            self._wake.close()
            for one in (self._hold, ready, *(child.ready for child in self._children.values() if child is not None)):
                os.close(one)
            code = self._work(process, Ties(self._lifeline, tell))
        except SystemExit as asked:
            code = asked.code if isinstance(asked.code, int) else OK if asked.code is None else FAILED
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # Nothing of the supervisor's is to be undone here.
            os._exit(code)

    def _told(self, process: int) -> None:
        child = self._children[process]
        if child is None:
            return
        self._selector.unregister(child.ready)
        if os.read(child.ready, 1):
            self._waiting.discard(process)
            if not self._waiting and not self._asked:
                self._up()
                self._up = _nothing

    def _reap(self) -> None:
        for process, child in self._children.items():
            if child is None:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._ended(process, child, os.waitstatus_to_exitcode(status))

    def _ended(self, process: int, child: Child, code: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.ready)
        os.close(child.ready)
        self._children[process] = None
        self._died(process)
        if self._asked:
            # One that is told to end before it has begun knows no better than to die of it, and nothing is lost.
            ended = code == OK or (process in self._waiting and code == -signal.SIGTERM)
            self._code = self._code if ended else FAILED
        elif process in self._waiting:
            self._code = FAILED
            self._asked += 1
            self._handed_on += 1
            self._end()
        else:
            lived = self._clock() - child.began
            self._failures[process] = self._failures[process] + 1 if lived < SOON else 0
            wait = 0.0 if not self._failures[process] else FIRST_WAIT * 2 ** (self._failures[process] - 1)
            wait = min(wait, LONGEST_WAIT)
            logger.error("process %d (pid %d) %s; it is started again in %g s", process, child.pid, _how(code), wait)
            self._due[process] = self._clock() + wait


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _nothing() -> None: ...
