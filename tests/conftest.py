"""One whole service, in process, for the tests that need no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from hypothesis import settings
from pydantic import ByteSize
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings

# A time for each example would fail on a machine that is busy with something else.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def application() -> FastAPI:
    """Small limits, so that tests reach them quickly."""
    return create_app(Settings(device="cpu", workers=1, max_body_bytes=ByteSize(1 << 20), json_cells=20_000))


@pytest.fixture(scope="session")
def client(application: FastAPI) -> Iterator[TestClient]:
    """Ready: its models have been warmed up."""
    with TestClient(application, raise_server_exceptions=False) as client:
        yield client
