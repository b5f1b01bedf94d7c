"""Commands that ask a service which lets in only who has a key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.service.process import command_here, serving

KEY = "a-key-of-many-letters"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(KEY)
    with serving(api_keys_file=str(keys)) as process:
        yield f"http://127.0.0.1:{process.port}"


@pytest.fixture(scope="module")
def matrices(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    home = tmp_path_factory.mktemp("matrices")
    for name, rows in (("a", [[1, 0], [0.5, 0.5]]), ("b", [[1, 0], [0.4, 0.6]])):
        np.save(home / f"{name}.npy", np.array(rows))
    return [str(home / "a.npy"), str(home / "b.npy")]


@pytest.mark.parametrize("name", ["score", "probe", "compare-matrices", "encodings"])
def test_a_key_is_sent_from_the_option_or_the_environment(
    name: str, guarded: str, matrices: list[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "score": [str(file), "--no-map"],
        "probe": ["position-only", str(file)],
        "compare-matrices": matrices,
        "encodings": [],
    }[name]
    monkeypatch.delenv("API_KEY", raising=False)
    without = command_here(name, *given, "--url", guarded)
    assert without.returncode == 3
    assert "API key" in without.stderr
    assert command_here(name, *given, "--url", guarded, "--api-key", "some-other-key-here").returncode == 3
    done = command_here(name, *given, "--url", guarded, "--api-key", KEY)
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.setenv("API_KEY", KEY)
    assert command_here(name, *given, "--url", guarded).stdout == done.stdout
    assert KEY not in command_here(name, "--help").stdout


def test_without_a_url_a_key_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", KEY)
    assert command_here("score", str(file), "--no-map").returncode == 0


@pytest.mark.parametrize("key", ["a-key-of-many-letters\n", "ключ-из-многих-букв"])
def test_a_key_that_no_header_can_hold_is_refused_before_anything_is_sent(key: str, guarded: str) -> None:
    done = command_here("encodings", "--url", guarded, "--api-key", key)
    assert done.returncode == 2
    assert "API key" in done.stderr
    assert key.strip() not in done.stderr
