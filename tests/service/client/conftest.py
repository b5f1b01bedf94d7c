"""A service of its own for the tests of the client: real sockets, real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from jaxtyping import Float32

from service.client import Client
from tests.service.process import serving


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with serving() as process:
        yield f"http://127.0.0.1:{process.port}"


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.fixture(scope="session")
def x() -> Float32[np.ndarray, "12 16"]:
    return np.random.default_rng(0).standard_normal((12, 16), dtype=np.float32)
