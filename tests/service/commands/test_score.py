"""`python -m service score`, as a shell runs it."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from service.client import Attention, Client
from tests.service.client.scripted import answering, problem
from tests.service.process import command, command_here, environment
from tests.service.samples import npy

ESCAPE = "\x1b["


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def sent(content: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """With bytes on standard input."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "service", "score", "-", *arguments],
        env=environment(),
        input=content,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_a_pipe_gets_plain_text_with_metrics_comparisons_and_maps(file: Path) -> None:
    done = command("score", str(file), "-e", "rope", "--compare", "alibi,t5", "--heads", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert ESCAPE not in done.stdout
    assert "identity: heads 4, queries 12, keys 12" in done.stdout
    assert "effective_keys" in done.stdout
    assert "compared with rope" in done.stdout
    assert "jsd" in done.stdout
    assert done.stdout.count("\n        11 ") == 3 or done.stdout.count("\n11 ") == 3  # the last line of each map
    assert "█" in done.stdout


def test_the_numbers_are_the_services(file: Path, url: str) -> None:
    """In this process and in a running service: the same rows, which are those of the JSON answer."""
    arguments = ("score", str(file), "-e", "rope", "-c", "alibi", "--heads", "2", "--causal", "--csv", "-")
    inside, asked = command_here(*arguments), command_here(*arguments, "--url", url)
    assert inside.returncode == asked.returncode == 0
    assert inside.stdout == asked.stdout
    x = np.load(file)
    answer = httpx.post(
        f"{url}/attention?encoding=rope&compare=alibi&heads=2&causal=true&return=summary,comparison",
        json={"embeddings": x.tolist()},
    ).json()
    found = rows(asked.stdout)
    for result in answer["results"]:
        for head in range(2):
            row = next(
                r
                for r in found
                if (r["encoding"], r["reference"], r["head"], r["metric"])
                == (result["name"], "", str(head), "effective_keys")
            )
            assert float(row["value"]) == _head(result["summary"]["effective_keys"]["mean"], head)
            assert int(row["rows_counted"]) == _head(result["summary"]["effective_keys"]["rows"], head)
    pair = next(
        r for r in found if (r["encoding"], r["reference"], r["head"], r["metric"]) == ("alibi", "rope", "1", "jsd")
    )
    assert float(pair["value"]) == _head(answer["comparison"]["against"]["alibi"]["jsd"]["mean"], 1)


def _head(values: Any, head: int) -> Any:
    return values[0][head] if isinstance(values[0], list) else values[head]


def test_files_hold_metrics_a_picture_and_arrays(file: Path, url: str, tmp_path: Path) -> None:
    paths = {name: tmp_path / f"file.{name}" for name in ("csv", "png", "npz")}
    done = command_here(
        "score", str(file), "-e", "alibi", "-c", "none", "--heads", "4", "--zoom", "2",
        *(part for name, path in paths.items() for part in (f"--{name}", str(path))),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with Client(url) as client:
        answer = client.attention(np.load(file), "alibi", compare="none", heads=4, returns="weights,scores")
        picture = client.picture(np.load(file), "alibi", compare="none", heads=4, zoom=2, returns="weights")
    loaded = Attention.load(paths["npz"])
    for name in ("alibi", "none"):
        assert np.array_equal(loaded[name].weights, answer[name].weights)  # type: ignore[arg-type]
        assert np.array_equal(loaded[name].scores, answer[name].scores)  # type: ignore[arg-type]
    with Image.open(paths["png"]) as written, Image.open(io.BytesIO(picture)) as expected:
        assert np.array_equal(np.asarray(written), np.asarray(expected))
    assert {row["encoding"] for row in rows(paths["csv"].read_text())} == {"alibi", "none"}


def test_json_is_the_services_own_answer(file: Path) -> None:
    done = command_here("score", str(file), "-e", "rope", "-c", "alibi", "--json")
    answer = json.loads(done.stdout)
    assert [one["name"] for one in answer["results"]] == ["rope", "alibi"]
    assert "summary" in answer["results"][0]
    assert "weights" not in answer["results"][0]
    assert answer["comparison"]["reference"] == "rope"
    done = command_here("score", str(file), "--json", "--return", "weights")
    assert np.shape(json.loads(done.stdout)["results"][0]["weights"]) == (1, 12, 12)


@pytest.mark.parametrize("kind", ["npy", "list", "object"])
def test_standard_input(kind: str, file: Path) -> None:
    x = np.load(file)
    content = {
        "npy": npy(x),
        "list": json.dumps(x.tolist()).encode(),
        "object": json.dumps({"embeddings": x.tolist(), "tokens": [f"w{i}" for i in range(12)]}).encode(),
    }[kind]
    done = command_here("score", "-", "-e", "alibi", "--csv", "-", input=content)
    assert done.returncode == 0, done.stderr
    assert done.stdout == command_here("score", str(file), "-e", "alibi", "--csv", "-").stdout


def test_bytes_come_through_a_pipe(file: Path) -> None:
    done = sent(file.read_bytes(), "-e", "alibi", "--csv", "-")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == command_here("score", str(file), "-e", "alibi", "--csv", "-").stdout


def test_a_preset_takes_the_place_of_a_file() -> None:
    done = command_here("score", "--preset", "sentence", "-e", "none", "-c", "alibi", "--heads", "8")
    assert done.returncode == 0, done.stderr
    assert "nurse" in done.stdout
    done = command_here("score", "--preset", "repeat", "--n", "8", "--d", "4", "--seed", "1", "-e", "none", "--no-map")
    assert "queries 8" in done.stdout
    assert "█" not in done.stdout


def test_parameters_are_scalars_or_arrays_in_files(file: Path, url: str, tmp_path: Path) -> None:
    bias = np.random.default_rng(3).standard_normal((32, 2)).astype(np.float32)
    np.save(tmp_path / "bias.npy", bias)
    done = command_here(
        "score", str(file), "-e", "rope", "-c", "rope@long", "-c", "t5", "--heads", "2", "--no-map",
        "--npz", str(tmp_path / "a.npz"), "-p", "rope@long.theta=500000", "-p", f"t5.bias=@{tmp_path / 'bias.npy'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with Client(url) as client:
        expected = client.attention(
            np.load(file),
            "rope",
            compare=["rope@long", "t5"],
            heads=2,
            parameters={"rope@long.theta": 5e5, "t5.bias": bias},
        )
    loaded = Attention.load(tmp_path / "a.npz")
    for name in expected:
        assert np.array_equal(loaded[name].weights, expected[name].weights)  # type: ignore[arg-type]


def test_heads_have_columns_of_their_own_where_they_are_asked_for(file: Path) -> None:
    done = command_here("score", str(file), "-e", "alibi", "--heads", "4", "--by-head", "--no-map")
    header = next(line for line in done.stdout.splitlines() if "by head" in line)
    assert header.split()[-4:] == ["0", "1", "2", "3"]


def test_large_inputs_have_maps_that_fit(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((700, 8), dtype=np.float32))
    done = command_here("score", str(tmp_path / "x.npy"), "-e", "alibi", "--heads", "2", "--head", "1")
    assert done.returncode == 0, done.stderr
    assert "weights of head 1" in done.stdout
    _, _, drawn = done.stdout.partition("\nalibi\n")
    lines = drawn.splitlines()[:32]
    assert all(set(line) <= set(" ░▒▓█") for line in lines)
    assert max(map(len, lines)) == 64
    assert drawn.splitlines()[32] == ""


def on_a_terminal(*arguments: str, **variables: str) -> tuple[int, str]:
    """What a terminal of 256 colours is sent."""
    primary, secondary = pty.openpty()
    plain = {name: value for name, value in environment().items() if name not in ("NO_COLOR", "COLORTERM")}
    child = subprocess.Popen(
        [sys.executable, "-m", "service", "score", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=secondary,
        stderr=subprocess.DEVNULL,
        env={**plain, "TERM": "xterm-256color", **variables},
    )
    os.close(secondary)
    received = b""
    while True:
        try:
            part = os.read(primary, 65_536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        received += part
    os.close(primary)
    return child.wait(60), received.decode()


def test_a_terminal_gets_colours_unless_no_color_is_set(file: Path) -> None:
    code, text = on_a_terminal(str(file), "-e", "alibi")
    assert code == 0
    assert f"{ESCAPE}48;5;" in text
    code, text = on_a_terminal(str(file), "-e", "alibi", NO_COLOR="1")
    assert code == 0
    assert f"{ESCAPE}48;" not in text
    assert "█" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to score"),
        (("no-such-file.npy",), "no-such-file.npy: No such file"),
        (("{file}", "--preset", "sentence"), "name one:"),
        (("{file}", "--n", "3"), "--preset"),
        (("{file}", "-p", "theta"), "ENCODING.NAME=VALUE"),
        (("{file}", "--heads", "0"), "heads"),
        (("{file}", "--headds", "2"), "--head"),
        (("{file}", "--png", "/no/such/folder/map.png"), "/no/such/folder/map.png"),
        (("{file}", "--csv", "/no/such/folder/m.csv"), "/no/such/folder/m.csv"),
    ],
)
def test_misuse_is_2(arguments: tuple[str, ...], words: str, file: Path) -> None:
    done = command_here("score", *(argument.format(file=file) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-e", "ropy"), "did you mean rope"),
        (("--heads", "5"), "heads"),
        (("-p", "rope.theta=-1"), "rope.theta"),
        (("--model", "no-such-model"), "no-such-model"),
    ],
)
def test_a_refusal_is_3_and_says_what_is_allowed(
    arguments: tuple[str, ...], words: str, remote: bool, file: Path, url: str
) -> None:
    done = command_here("score", str(file), *arguments, *(("--url", url) if remote else ()))
    assert (done.returncode, done.stdout) == (3, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_body_that_is_no_array_is_misuse() -> None:
    done = sent(b"hello", "-e", "rope")
    assert done.returncode == 2
    assert b"standard input: it is neither npy, npz, safetensors nor JSON" in done.stderr
    assert command_here("score", "-", input=b"").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--zoom", "2"), 2, "--png"),
        (("--return", "weights"), 2, "--json and --npz"),
        (("--metrics", "jsd"), 3, "jsd is of the comparison"),
        (("--json", "--return", "weights", "--metrics", "entropy"), 3, "neither of which this request returns"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    arguments: tuple[str, ...], code: int, words: str, file: Path
) -> None:
    done = command_here("score", str(file), *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr


def test_an_unreachable_service_is_4(file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = command("score", str(file), "--url", f"http://127.0.0.1:{port}")
    assert done.returncode == 4
    assert f"cannot connect to http://127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("reply", "code"), [(problem(503, retry_after=3600), 4), (problem(500), 1), (problem(422), 3)])
def test_what_a_service_says_decides_the_exit_code(reply: Any, code: int, file: Path) -> None:
    with answering(reply) as server:
        done = command_here("score", str(file), "--url", server.url)
    assert done.returncode == code
    assert "What went wrong" in done.stderr


def test_settings_that_are_wrong_are_misuse(file: Path) -> None:
    done = command("score", str(file), device="tpu")
    assert done.returncode == 2
    assert "ATTENTION_DEVICE=tpu" in done.stderr


def test_help_has_examples_and_exit_codes() -> None:
    done = command("score", "--help")
    assert done.returncode == 0
    for words in ("Examples:", "--compare", "Exit codes:", "  3  the service refused it", "python -m service score - "):
        assert words in done.stdout


def test_text_is_for_models_with_a_tokenizer() -> None:
    done = command_here("score", "--text", "abba", "--model", "identity")
    assert done.returncode == 3
    assert "has no tokenizer" in done.stderr
