"""What a load test starts ends with it, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from load_tests.tied import tied

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")

STARTS = """
import signal, subprocess, time
from load_tests.tied import tied
for one in (signal.SIGINT, signal.SIGHUP):  # whoever runs the tests may ignore them, and that is inherited
    signal.signal(one, signal.SIG_DFL)
child = subprocess.Popen(tied(["sleep", "60"]))
print(child.pid, flush=True)
time.sleep(60)
"""


def ended(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that have not."""
    return list(psutil.wait_procs(processes, timeout=seconds)[1])


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_what_is_tied_ends_with_the_one_that_started_it(how: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as starter:
        assert starter.stdout is not None
        child = psutil.Process(int(starter.stdout.readline()))
        starter.send_signal(how)
        starter.wait(10)
        assert ended([child], 10) == []


def test_what_is_tied_is_the_command_with_its_arguments_and_its_exit_code() -> None:
    script = "import sys; print(sys.argv[1:]); sys.exit(7)"
    done = subprocess.run(tied([sys.executable, "-c", script, "a b", "-I"]), capture_output=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (7, b"['a b', '-I']")


def test_a_load_test_that_is_killed_leaves_neither_its_service_nor_its_generator(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "load_tests", "smoke", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        whole = psutil.Process(run.pid)
        deadline = time.monotonic() + 60
        # The service has forked the processes that serve, and the generator sends to them.
        while not any("locust" in child.cmdline() for child in whole.children()):
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.1)
        started = whole.children(recursive=True)
        run.kill()
    assert len(started) >= 3
    assert ended(started, 60) == []
