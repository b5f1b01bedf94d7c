from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.settings import EXPORTED, Settings, SettingsError, variables


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("ATTENTION_"):
            monkeypatch.delenv(name)


def test_without_variables_it_serves_the_exported_models_on_the_loopback() -> None:
    settings = Settings.read()
    assert (settings.host, settings.port, settings.device, settings.workers) == ("127.0.0.1", 8000, "auto", 0)
    assert settings.models == (EXPORTED,)
    assert (EXPORTED / "identity" / "rope.onnx").is_file()


def test_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PORT": "9000",
        "DEVICE": " CPU ",
        "MODELS": os.pathsep.join(["a", "~/b", ""]),
        "MAX_BODY_BYTES": "2MiB",
        "DEADLINE_SECONDS": "0.5",
        "HOST": "",
    }.items():
        monkeypatch.setenv(f"ATTENTION_{name}", value)
    settings = Settings.read()
    assert settings.port == 9000
    assert settings.device == "cpu"
    assert settings.models == (Path("a"), Path("~/b").expanduser())
    assert settings.max_body_bytes == 2 << 20
    assert settings.deadline_seconds == 0.5
    assert settings.host == "127.0.0.1", "an empty variable is as good as none"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ATTENTION_PRT", "1", "did you mean ATTENTION_PORT?"),
        ("ATTENTION_IS_ALL_YOU_NEED", "1", "--help"),
        ("ATTENTION_PORT", "eighty", "valid integer"),
        ("ATTENTION_PORT", "70000", "65535"),
        ("ATTENTION_DEVICE", "tpu", "'auto', 'cpu' or 'cuda'"),
        ("ATTENTION_DRAIN_SECONDS", "nan", "ATTENTION_DRAIN_SECONDS=nan"),
        ("ATTENTION_DEADLINE_SECONDS", "0", "greater than 0"),
        ("ATTENTION_MAX_BODY_BYTES", "many", "ATTENTION_MAX_BODY_BYTES=many"),
        ("ATTENTION_MODELS", os.pathsep, "at least 1"),
        ("ATTENTION_QUEUE_CELLS", "10", "ATTENTION_REQUEST_CELLS"),
    ],
)
def test_what_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        Settings.read()
    assert name in str(caught.value)
    assert words in str(caught.value)


def test_everything_wrong_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENTION_PORT", "x")
    monkeypatch.setenv("ATTENTION_WORKERS", "-1")
    monkeypatch.setenv("ATTENTION_WORKER", "1")
    with pytest.raises(SettingsError) as caught:
        Settings.read()
    assert len(str(caught.value).splitlines()) == 3


def test_every_variable_is_explained() -> None:
    for name, default, meaning in variables():
        assert name.startswith("ATTENTION_")
        assert default
        assert len(meaning) > 15
