"""`python tied.py PARENT COMMAND ...` becomes the command, which is told to end (SIGTERM) when its parent has ended.

However that ended: a `finally` does not run where a process is killed, and what it started would stay for ever. Linux
does this (`PR_SET_PDEATHSIG`, which outlives `execve`); elsewhere the command is run as it is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
"""prctl(2)"""


def tied(command: Sequence[str]) -> list[str]:
    """The command, tied to the thread that starts it."""
    return [sys.executable, "-I", __file__, str(os.getpid()), *command]


def main(parent: int, command: Sequence[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:  # it had ended before it could tell
            return
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
