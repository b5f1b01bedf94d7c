"""wrk's figures are read exactly, and a run in which anything went wrong is no measurement."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from load_tests.bench import wrk
from load_tests.bench.job import Post
from load_tests.bench.wrk import Run, RunFailed

OUTPUT = """Running 1s test @ http://127.0.0.1:8000/weights
  1 threads and 64 connections
  Latency Distribution
     50%    5.75ms
     99%   18.01ms
  9570 requests in 1.00s, 150.20MB read

{"requests": 9570, "microseconds": 1002345, "bytes": 157499392, "p50_us": 5748, "p99_us": 18005, "max_us": 21000, \
"status": 0, "connect": 0, "read": 0, "write": 0, "timeout": 0}
"""
GOOD = Run(9570, 1002345, 157499392, 5748, 18005, 21000, status=0, connect=0, read=0, write=0, timeout=0)


def test_the_line_of_the_script_is_read() -> None:
    assert wrk.parse(OUTPUT) == GOOD


def test_requests_a_second_are_of_the_time_it_really_took() -> None:
    assert replace(GOOD, requests=100, microseconds=500_000).per_second == 200


def test_output_without_that_line_is_a_failed_run() -> None:
    with pytest.raises(RunFailed, match="unable to connect"):
        wrk.parse("unable to connect to 127.0.0.1:1 Connection refused")


def test_a_good_run_is_passed_on() -> None:
    assert GOOD.check() is GOOD


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"status": 3}, "of 9570 requests: 3 answers that were not 2xx"),
        ({"timeout": 2, "read": 1}, "of 9570 requests: 1 failed reads, 2 timeouts"),
        ({"requests": 0}, "of 0 requests: no answer at all"),
    ],
)
def test_anything_but_answers_of_2xx_fails_the_run(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(RunFailed, match=said):
        replace(GOOD, **wrong).check()


class Handler(BaseHTTPRequestHandler):
    """200 to the body it was promised under its header, else 400."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        right = body == b"\x00\nbody" and self.headers["Content-Type"] == "application/x-npy"
        self.send_response(200 if right else 400)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()


@pytest.mark.skipif(shutil.which("wrk") is None, reason=wrk.INSTALL)
def test_wrk_itself_posts_the_bytes_and_the_headers_and_counts_refusals() -> None:
    with server() as address:
        good = Post("/", b"\x00\nbody", {"Content-Type": "application/x-npy"})
        assert wrk.load(address, good, 2, 1).requests > 10
        with pytest.raises(RunFailed, match="not 2xx"):
            wrk.load(address, Post("/", b"other"), 2, 1)


def test_a_missing_wrk_is_reported_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(wrk.WrkMissing, match="apt-get install wrk"):
        wrk.version()
