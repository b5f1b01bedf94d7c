"""`python -m service encodings`, of the files here and of a running service."""

from __future__ import annotations

import json

import httpx

from tests.service.process import command


def test_a_running_service_is_asked_with_a_url(url: str) -> None:
    here, there = command("encodings"), command("encodings", "--url", url)
    assert here.returncode == there.returncode == 0
    assert here.stdout == there.stdout
    assert "rope (default)" in there.stdout


def test_json_is_what_the_service_says(url: str) -> None:
    expected = {**httpx.get(f"{url}/models").json(), **httpx.get(f"{url}/encodings").json()}
    for more in ((), ("--url", url)):
        assert json.loads(command("encodings", "--json", *more).stdout) == expected


def test_a_service_that_is_not_there_is_4() -> None:
    done = command("encodings", "--url", "http://127.0.0.1:9")
    assert done.returncode == 4
    assert "cannot connect" in done.stderr
