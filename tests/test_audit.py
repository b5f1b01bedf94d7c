"""The audit of the locks, with the real pip-audit and a database of vulnerabilities on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from requirements.audit import read

ROOT = Path(__file__).parent.parent


@contextmanager
def database(vulnerable: str | None) -> Iterator[str]:
    """The URL of a service with OSV's protocol that knows one package as vulnerable."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["package"]["name"]
            entry = {
                "id": "GHSA-0000-0000-0000",
                "aliases": ["CVE-2026-0001"],
                "summary": "a made-up one",
                "published": "2026-01-01T00:00:00Z",
                "affected": [
                    {
                        "package": {"name": asked, "ecosystem": "PyPI"},
                        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "9.9.9"}]}],
                    }
                ],
            }
            content = json.dumps({"vulns": [entry]} if asked == vulnerable else {}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "lock.txt"
    path.write_text("orjson==3.11.0\nnumpy==2.3.0\n")
    return path


def audit(lock: Path, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "requirements.audit", "--osv-url", url, str(lock)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_known_vulnerability_fails_and_says_which(lock: Path) -> None:
    with database("numpy") as url:
        done = audit(lock, url)
    assert done.returncode == 1, done.stdout
    assert "numpy==2.3.0: " in done.stderr
    assert "CVE-2026-0001" in done.stderr
    assert "fixed in 9.9.9" in done.stderr
    assert "orjson" not in done.stderr


def test_versions_that_are_looked_up_and_unknown_pass(lock: Path) -> None:
    with database(None) as url:
        done = audit(lock, url)
    assert done.returncode == 0
    assert done.stdout == "2 locked versions looked up in osv: none known as vulnerable\n"


def test_a_database_that_cannot_be_reached_is_said_and_does_not_fail(lock: Path) -> None:
    with database(None) as url:
        pass  # the port is free again
    done = audit(lock, url)
    assert done.returncode == 0
    assert "osv could not be asked: " in done.stdout
    assert "NOT AUDITED" in done.stdout
    assert "none known" not in done.stdout


def test_what_was_skipped_is_not_taken_for_safe() -> None:
    """pip-audit says of such a document that no vulnerabilities were found."""
    answer = read({"dependencies": [{"name": "orjson", "skip_reason": "Dependency not found"}], "fixes": []})
    assert answer.looked_up == set()
    assert answer.skipped == {"orjson": "Dependency not found"}
