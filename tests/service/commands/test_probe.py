"""`python -m service probe`, as a shell runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from service.client import Client
from tests.service.process import command, command_here


def line(text: str, *begin: str) -> list[str]:
    """The words of the first line that begins with these."""
    return next(words for words in map(str.split, text.splitlines()) if tuple(words[: len(begin)]) == begin)


def unmeasured(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "timings"}


def test_position_only_draws_the_curve_of_every_encoding() -> None:
    done = command("probe", "position-only", "-e", "all")
    assert (done.returncode, done.stderr) == (0, "")
    words = line(done.stdout, "alibi", "0")
    assert words[2][0] == words[2][-1] == "▁"
    assert "█" in words[2]
    assert words[3:6] == ["-63", "to", "63"]
    assert float(words[6]) == pytest.approx(-63 / 256, rel=1e-3)  # the only head's slope is 2^-8
    assert float(words[7]) == 0.0
    assert line(done.stdout, "none", "0")[2] == "▁" * 48
    assert "left out: cope: " in done.stdout


@pytest.mark.parametrize("more", [(), ("--url",)])
def test_the_numbers_are_the_services(more: tuple[str, ...], file: Path, url: str) -> None:
    arguments = ["probe", "all", str(file), "-e", "rope,alibi", "--heads", "2", "--lengths", "1,2", "--offsets", "5"]
    done = command_here(*arguments, "--json", *more, *([url] if more else []))
    query = {"encoding": "rope", "compare": "alibi", "heads": "2", "lengths": "1,2", "offsets": "5"}
    asked = httpx.post(f"{url}/attention/probe", params=query, json={"embeddings": np.load(file).tolist()})
    expected = asked.json()
    assert unmeasured(json.loads(done.stdout)) == unmeasured(expected)
    with Client(url) as client:
        found = client.probe(np.load(file), "rope", compare="alibi", heads=2, lengths=[1, 2], offsets=5)
    assert unmeasured(found) == unmeasured(expected)


def test_every_probe_has_a_table(file: Path) -> None:
    done = command_here("probe", "all", str(file), "-e", "rope,sinusoidal", "--heads", "2")
    assert done.returncode == 0, done.stderr
    with_json = json.loads(
        command_here("probe", "all", str(file), "-e", "rope,sinusoidal", "--heads", "2", "--json").stdout
    )
    probes = with_json["results"][1]["probes"]
    share = line(done.stdout.partition("position-share: ")[2], "sinusoidal")
    assert float(share[1]) == pytest.approx(np.mean(probes["position_share"]["share"]), rel=1e-3)
    shift = line(done.stdout.partition("shift-gap: ")[2], "sinusoidal", "tv")
    assert float(shift[-1]) == pytest.approx(np.mean(probes["shift_gap"]["offsets"][-1]["tv"]["mean"]), rel=1e-3)
    assert set(line(done.stdout.partition("shift-gap: ")[2], "rope", "tv")[2:]) == {"0"}  # only distances count
    order = line(done.stdout.partition("order-gap: ")[2], "sinusoidal")
    assert float(order[1]) == pytest.approx(np.mean(probes["order_gap"]["jsd"]["mean"]), rel=1e-3)
    sweep = line(done.stdout.partition("length-sweep: ")[2], "sinusoidal", "entropy_norm")
    assert float(sweep[-1]) == pytest.approx(
        np.mean(probes["length_sweep"]["lengths"][-1]["entropy_norm"]["mean"]), rel=1e-3
    )


def test_what_has_no_answer_says_why(file: Path) -> None:
    done = command_here("probe", "order-gap", str(file), "-e", "rope", "--causal")
    assert done.returncode == 0, done.stderr
    assert "rope: attention is causal" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("position-onyl",), 3, "did you mean position_only"),
        (("all", "-e", "ropy"), 3, "did you mean rope"),
        (("all", "no-such-file"), 2, "no-such-file: No such file"),
        (("all", "{file}", "--preset", "random"), 2, "name one"),
        ((), 2, "PROBE"),
        (("all", "{file}", "--n", "4"), 2, "--n and --d are those of a --preset"),
        (("order-gap", "{file}", "--offsets", "4"), 3, "offsets is an argument of shift_gap"),
        (("all", "--url", "http://127.0.0.1:9"), 4, "cannot connect"),
    ],
)
def test_exit_codes(arguments: tuple[str, ...], code: int, words: str, file: Path) -> None:
    done = command_here("probe", *(argument.format(file=file) for argument in arguments))
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
