"""`python -m service compare-matrices`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.service.process import command, command_here

UNIFORM = np.full((4, 4), 0.25, np.float32)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    np.save(tmp_path / "mine.npy", UNIFORM)
    np.save(tmp_path / "theirs.npy", np.eye(4, dtype=np.float32))
    return str(tmp_path / "mine.npy"), str(tmp_path / "theirs.npy")


def test_two_files_are_compared(files: tuple[str, str]) -> None:
    done = command("compare-matrices", *files, "--metrics", "effective_keys,tv")
    assert (done.returncode, done.stderr) == (0, "")
    words = [line.split() for line in done.stdout.splitlines()]
    assert ["effective_keys", "4", "1"] in words
    assert ["tv", "0.75"] in words
    assert "compared with mine" in done.stdout


def test_json_and_a_running_service(files: tuple[str, str], url: str) -> None:
    here = json.loads(command_here("compare-matrices", *files, "--json").stdout)
    there = json.loads(command_here("compare-matrices", *files, "--json", "--url", url).stdout)
    assert {**here, "timings": {}} == {**there, "timings": {}}
    assert here["comparison"]["reference"] == "mine"


def test_csv(files: tuple[str, str]) -> None:
    done = command_here("compare-matrices", *files, "--metrics", "tv", "--csv", "-")
    header, *rows = done.stdout.splitlines()
    assert header.startswith("encoding,reference,")
    assert any(row.startswith("theirs,mine,,0,tv,0.75") for row in rows)


def test_more_queries_than_keys(tmp_path: Path) -> None:
    np.save(tmp_path / "long.npy", np.full((5, 2), 0.5, np.float32))
    done = command_here("compare-matrices", str(tmp_path / "long.npy"), "--metrics", "all", "--json")
    profile = json.loads(done.stdout)["results"][0]["summary"]["distance_profile"]
    assert (profile["distances"], profile["weights"], profile["rows"]) == ([-1, 0, 1], [[0.25, 0.5, 0.25]], [2])


def test_exit_codes(files: tuple[str, str], tmp_path: Path) -> None:
    assert command_here("compare-matrices", files[0], files[0]).returncode == 2
    assert command_here("compare-matrices", files[0], "no-such-file").returncode == 2
    assert command_here("compare-matrices").returncode == 2
    np.save(tmp_path / "other.npy", np.eye(5))
    assert command_here("compare-matrices", files[0], str(tmp_path / "other.npy")).returncode == 3
