"""One service in a process of its own, for clients written by others; and bodies for those written here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.process import Process, serving


@pytest.fixture(scope="session")
def process() -> Iterator[Process]:
    with serving(json_cells="20000", max_body_bytes="1MiB") as process:
        yield process


@pytest.fixture(scope="session")
def address(process: Process) -> str:
    return f"127.0.0.1:{process.port}"
