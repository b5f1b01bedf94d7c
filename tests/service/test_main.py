"""The command line."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from service.engine.device import CUDA, Provider, cuda_problem
from service.settings import variables
from tests.service.process import command


def test_help_lists_every_variable_with_its_default_and_examples() -> None:
    done = command("--help")
    assert done.returncode == 0
    for name, default, meaning in variables():
        line = next(line for line in done.stdout.splitlines() if line.split()[:1] == [name])
        assert meaning in line
        assert f"[{default}]" in line
    assert "curl" in done.stdout


def test_encodings_lists_what_would_be_served() -> None:
    done = command("encodings")
    assert done.returncode == 0
    assert "rope (default)" in done.stdout
    assert "alibi" in done.stdout


def test_encodings_fails_where_there_are_none(tmp_path: Path) -> None:
    done = command("encodings", models=str(tmp_path))
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prt": "1"}, "did you mean ATTENTION_PORT?"),
        ({"port": "http"}, "ATTENTION_PORT=http"),
        ({"device": "tpu"}, "ATTENTION_DEVICE=tpu"),
    ],
)
def test_settings_that_are_wrong_are_named_and_the_exit_code_is_2(settings: dict[str, str], words: str) -> None:
    done = command(**settings)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(cuda_problem(Provider(CUDA)) is None, reason="this machine has a GPU that works")
def test_a_gpu_that_was_asked_for_and_is_not_there_ends_the_start_naming_what_is_missing() -> None:
    """onnxruntime#23372, #17801: it would compute on the CPU instead, and say nothing."""
    done = command(device="cuda", port="0")
    assert done.returncode == 1
    assert "device cuda was asked for" in done.stderr
    assert re.search(r"lib\w+\.so|no usable GPU|without CUDA", done.stderr)
    assert "Traceback" not in done.stderr


def test_an_unknown_command_is_misuse() -> None:
    assert command("sevre").returncode == 2


def test_a_port_in_use_is_named_and_the_exit_code_is_not_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command(device="cpu", port=str(port))
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "ATTENTION_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_service_imports_no_torch() -> None:
    code = "import sys, service.serve, service.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
