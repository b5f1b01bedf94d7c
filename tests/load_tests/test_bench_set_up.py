"""Peers, their pins and their processes."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from load_tests.bench import environments, machine
from load_tests.bench.contenders import CORES
from load_tests.bench.job import Post
from load_tests.bench.others import watching
from load_tests.bench.processes import StartFailed, running
from load_tests.server import free_port

SERVER = """
import subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.parametrize("package", ["onnxruntime", "numpy"])
def test_every_peer_has_the_same_version_and_it_is_ours(package: str) -> None:
    ours = [found.version for found in distributions() if found.name in (package, f"{package}-gpu")]
    assert ours == [machine.pinned_of(package)]


def test_versions_come_from_the_locks() -> None:
    assert environments.version("mosec").count(".") == 2
    assert environments.version("ray").count(".") == 2


def test_the_cpu_is_named_or_else_its_architecture() -> None:
    assert machine.cpu_model("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\n") == "Fast CPU @ 3 GHz"
    assert machine.cpu_model("") != ""


def test_a_server_is_ended_with_children_that_ignore_sigterm(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-c", SERVER, str(port)]
    with running(command, {}, tmp_path / "log", f"http://127.0.0.1:{port}", Post("/", b"")) as server:
        pids = [process.pid for process in server.processes()]
        assert len(pids) == 2
        assert server.resident_bytes() > 1_000_000
    time.sleep(0.1)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_server_that_ends_is_reported_with_what_it_printed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    with (
        pytest.raises(StartFailed, match=r"exit code 3\nno such model"),
        running(command, {}, tmp_path / "log", "http://127.0.0.1:9", Post("/", b"")),
    ):
        pass


def test_work_of_others_is_told_from_work_of_the_server(tmp_path: Path) -> None:
    busy = SERVER.replace("time.sleep(60)", "[0 for _ in iter(int, 1)]")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with running([sys.executable, "-c", busy, str(port)], {}, tmp_path / "log", address, Post("/", b"")) as server:
        stranger = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            before = psutil.Process(stranger.pid).cpu_times().user
            with watching(server) as others:
                time.sleep(1)
            used = psutil.Process(stranger.pid).cpu_times().user - before
        finally:
            stranger.kill()
            stranger.wait()
    assert others.value * CORES >= used - 0.1
