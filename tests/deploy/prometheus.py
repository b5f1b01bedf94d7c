"""A real Prometheus that scrapes a service."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.make_rules import OUT as RULES
from load_tests.server import free_port

START_SECONDS = 60.0


def tool(name: str) -> str:
    """The path of a program of Debian's package prometheus. Without it a test is skipped, or fails where CI is set."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is not installed (on Debian: apt-get install prometheus)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def scraping(port: int, folder: Path) -> Iterator[httpx.Client]:
    """A client of a Prometheus that reads the service at `port` every second and evaluates the project's rules."""
    own = free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "attention", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{own}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{own}", timeout=20) as client:
            _await(client, process, folder / "log")
            yield client
    finally:
        process.terminate()
        process.wait(20)


def _await(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            if client.get("/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def query(client: httpx.Client, expression: str) -> list[dict[str, Any]]:
    """The series of an instant query."""
    answer = client.get("/api/v1/query", params={"query": expression}).json()
    assert answer["status"] == "success", (expression, answer)
    result = answer["data"]["result"]
    return result if answer["data"]["resultType"] == "vector" else [result]
