"""A running service, and an input in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.service.process import serving


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with serving() as process:
        yield f"http://127.0.0.1:{process.port}"


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "x.npy"
    np.save(path, np.random.default_rng(0).standard_normal((12, 16), dtype=np.float32))
    return path
