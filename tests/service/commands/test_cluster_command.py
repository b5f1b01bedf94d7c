"""`python -m service ray`, as far as it goes without a cluster."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.service.process import command_here, environment


def test_its_help_has_examples() -> None:
    done = command_here("ray", "--help")
    assert done.returncode == 0
    assert "python -m service ray --min-replicas 2 --max-replicas 8" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--detach",), "--detach needs --address"),
        (("--address", "auto", "--dashboard"), "--dashboard is of a cluster that is started here"),
        (("--min-replicas", "3", "--max-replicas", "2"), "less than min_replicas, 3"),
        (("--gpus", "1.5"), "--gpus: "),
        (("--max-ongoing", "0"), "--max-ongoing: "),
    ],
)
def test_misuse_is_told_by_option(arguments: tuple[str, ...], said: str) -> None:
    done = command_here("ray", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(("name", "value"), [("PROCESSES", "2"), ("SHARED_MEMORY", "1"), ("PROT", "1")])
def test_settings_that_make_no_sense_there_are_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"ATTENTION_{name}", value)
    done = command_here("ray")
    assert done.returncode == 2
    assert f"ATTENTION_{name}" in done.stderr


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_where_ray_is_missing_it_says_how_to_install_it() -> None:
    done = python(
        "import sys; sys.modules['ray'] = None; sys.argv = ['service', 'ray']\n"
        "from service.__main__ import main\nmain()"
    )
    assert done.returncode == 1
    assert "Ray Serve is not installed" in done.stderr
    assert "requirements/ray.txt" in done.stderr
    assert "Traceback" not in done.stderr


def test_serving_without_it_imports_no_ray() -> None:
    done = python(
        "import sys, service.__main__, service.serve, service.cluster.run, service.cluster.options\n"
        "assert 'ray' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr
