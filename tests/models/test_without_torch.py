"""`python -m models` where only what serving needs is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from models import command_line, without_torch

HIDE = "import runpy, sys; sys.modules['torch'] = None; runpy.run_module('models', run_name='__main__')"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As if there were no PyTorch: to import it fails."""
    return subprocess.run(
        [sys.executable, "-c", HIDE, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )


def test_it_has_the_same_commands() -> None:
    here, there = (typer.main.get_group(one.app) for one in (without_torch, command_line))
    assert set(here.commands) == set(there.commands)


@pytest.mark.parametrize("arguments", [["import", "model.gguf", "--layer", "3"], ["hidden-states", "x", "-o", "y"]])
def test_what_needs_torch_says_so_in_a_line(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"{arguments[0]} needs PyTorch")
    assert "make develop" in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["triton-repository", "--help"]])
def test_help_needs_none(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_a_triton_repository_needs_none(tmp_path: Path) -> None:
    done = run("triton-repository", str(tmp_path), "-e", "rope", "--model", "identity")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("config.pbtxt"))
