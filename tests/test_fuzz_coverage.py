"""The coverage-guided fuzzing of `tests.fuzz`, for a second on each format; and that it would see what it looks for."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from service.errors import InvalidInput, ModelFailed, ServiceError
from tests.fuzz.formats import FORMATS, refusable
from tests.fuzz.memory import growth

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this platform")
def test_no_format_fails_or_leaves_memory_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--seconds", "1", "--seed", "1", "--jobs", "2", "--folder", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        cells[0]: cells[1:] for cells in re.findall(r"^│ (\w+) +│ +([\d,]+) +│ +(\d+) +│", done.stdout, re.MULTILINE)
    }
    assert set(rows) == set(FORMATS)
    for name, (runs, reached) in rows.items():
        assert int(runs) >= len(FORMATS[name].seeds)
        assert int(reached) > 50


@pytest.mark.parametrize("name", FORMATS)
def test_most_bodies_to_begin_with_are_read_to_the_end(name: str) -> None:
    """Fuzzing that begins at refusals would not get past them."""
    refused = 0
    for body in FORMATS[name].seeds:
        try:
            FORMATS[name].read(body)
        except ServiceError:
            refused += 1
    assert refused < len(FORMATS[name].seeds) / 2


@pytest.mark.parametrize("error", [ModelFailed("no model"), ServiceError("no service"), KeyError("x"), MemoryError()])
def test_what_the_service_would_fail_on_is_a_failure(error: Exception) -> None:
    def read(_: bytes) -> None:
        raise error

    with pytest.raises((AssertionError, KeyError, MemoryError)):
        refusable(read)(b"")


def test_a_refusal_that_is_too_long_to_send_is_a_failure() -> None:
    def read(data: bytes) -> None:
        raise InvalidInput("x" * len(data))

    refusable(read)(b"short")
    with pytest.raises(AssertionError):
        refusable(read)(bytes(30_000))


def test_memory_that_stays_is_seen_and_what_goes_is_not() -> None:
    kept: list[bytes] = []
    assert not growth(lambda data: kept.append(data * 100_000), [b"a" * 10], 0.0).flat
    kept.clear()
    assert growth(lambda data: None, [b"a" * 10], 0.05).flat
