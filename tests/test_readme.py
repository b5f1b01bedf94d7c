"""The README's tables name what the code has, no more and no less."""

import re
import shlex
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from service.admission import Limits
from service.client import Calls
from service.comparisons import metrics as of_pairs
from service.errors import failures
from service.presets import sentence
from service.presets.listing import PRESETS
from service.presets.preset import MOST_NUMBERS
from service.probes.records import EXTENDS, LENGTHS, OFFSETS, PROBES
from service.probes.runs import BLOCK
from service.protocol import HEAD_BYTES, HEADERS
from service.records import RETURNABLE
from service.routes import probe_query, query
from service.settings import variables
from service.summaries import metrics as of_rows
from service.telemetry import Telemetry
from service.wire import json, matrices, members, npz
from tests.service.process import command, serving

README = (Path(__file__).parent.parent / "README.md").read_text()


def rows(heading: str) -> dict[str, str]:
    """The rows of the table whose first column has this heading: first cell to the rest of the row."""
    _, _, after = README.partition(f"\n| {heading} |")
    assert after, f"no table headed {heading!r}"
    table, _, _ = after.partition("\n\n")
    return {cell.strip(): rest for cell, rest in re.findall(r"^\| (.*?) \|(.*)$", table, re.MULTILINE)}


def names(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_every_setting_stands_in_the_readme_with_its_default() -> None:
    expected = {f"`{name}`": f"`{default}`" for name, default, _ in variables()}
    assert {name: rest.split("|")[0].strip() for name, rest in rows("variable").items()} == expected


def test_every_metric_stands_in_the_readme() -> None:
    registry = CollectorRegistry()
    Telemetry(registry)
    suffixes = {"counter": "_total", "info": "_info"}
    ours = [metric for metric in registry.collect() if metric.name.startswith("attention_")]
    expected = {metric.name + suffixes.get(metric.type, "") for metric in ours}
    assert set().union(*map(names, rows("name"))) == expected


def test_every_query_parameter_stands_in_the_readme() -> None:
    table = rows("query parameter")
    assert set().union(*map(names, table)) == {*query.NAMES, "ENCODING.NAME"}
    assert names(table["`return`"].split("|")[0]) == set(RETURNABLE)


def test_every_member_of_a_body_stands_in_the_readme() -> None:
    listed = set().union(*map(names, rows("member")))
    assert listed == set(members.NAMES)


def test_every_probe_and_its_parameters_stand_in_the_readme() -> None:
    assert list(rows("probe")) == [f"`{name}`" for name in PROBES]
    table = rows("parameter of a probe")
    assert set().union(*map(names, table)) == {*probe_query.NAMES, "ENCODING.NAME"}
    defaults = {"`offsets`": OFFSETS, "`lengths`": LENGTHS}
    for name, numbers in defaults.items():
        assert f"`{','.join(f'{number:g}' for number in numbers)}`" in table[name]
        assert f"up to {probe_query.MOST} numbers" in table[name]
    assert set(EXTENDS) < names(table["`extend`"])
    assert f"{BLOCK:,} weights" in README


def test_every_preset_stands_in_the_readme() -> None:
    table = rows("preset")
    assert list(table) == [f"`{preset.name}`" for preset in PRESETS]
    assert sentence.read().text in table["`sentence`"]
    assert f"at\nmost {MOST_NUMBERS:,}." in README


@pytest.mark.parametrize("status", sorted({failure.status for failure in failures()} - {499}))
def test_every_status_stands_in_the_readme(status: int) -> None:
    """But 499: the client has left, so nobody reads it."""
    assert any(str(status) in cell.split(", ") for cell in rows("status"))


def test_every_metric_of_matrices_stands_in_the_readme() -> None:
    for heading, metrics in (("metric of a matrix", of_rows), ("metric of two matrices", of_pairs)):
        table = rows(heading)
        assert set().union(*map(names, table)) == set(metrics.NAMES)
        default = {"yes": slice(None), "the first": slice(1), "the last two": slice(-2, None), "": slice(0)}
        shown = [
            list(re.findall(r"`(\w+)`", cell))[default[rest.split("|")[0].strip()]] for cell, rest in table.items()
        ]
        assert set().union(*shown) == set(metrics.DEFAULT)


def test_the_summary_in_the_readme_is_the_answer(client: TestClient) -> None:
    _, _, after = README.partition("#### Summaries and comparisons")
    asked = re.search(r"/attention\?([^']*)'", after)
    shown = re.search(r"^```\n(\{.*?)\n```", after, re.DOTALL | re.MULTILINE)
    assert asked is not None
    assert shown is not None
    body = (Path(__file__).parent / "data" / "sentence.npy").read_bytes()
    answer = client.post(f"/attention?{asked[1]}", content=body, headers={"content-type": "application/x-npy"}).json()
    expected = orjson.loads(shown[1])
    for result in answer["results"]:
        del result["parameters"], result["conventions"]
    del answer["timings"]
    assert list(answer) == list(expected)
    assert close(answer, expected)


def close(a: Any, b: Any) -> bool:
    """Equal but for the last digits, which are the processor's."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(close(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    return bool(a == b or (isinstance(a, float) and abs(a - b) < 1e-4 * max(1.0, abs(b))))


def test_every_limit_stands_in_the_readme() -> None:
    limits = Limits()
    table = rows("limit")
    listed = [rest.split("|")[0].strip() for rest in table.values()]
    for number in (
        limits.tokens,
        limits.width,
        limits.heads,
        limits.batch,
        limits.cells,
        limits.parameters,
        limits.summaries,
        matrices.MOST,
        int(limits.position),
        limits.text,
        members.MAX_PARAMETERS,
        npz.MAX_ENTRIES,
        json.MAX_LISTS,
        query.MAX_LENGTH,
        HEAD_BYTES,
        HEADERS,
    ):
        assert f"{number:,}" in listed, number
    settings = {name for name, _, _ in variables()}
    assert set().union(*(names(rest) for rest in table.values())) <= settings


def test_the_resolved_configuration_in_the_readme_is_the_answer(client: TestClient) -> None:
    _, _, after = README.partition("/encodings/rope/resolve?")
    asked, _, after = after.partition("'")
    sent = re.search(r"-d '(.*)'", after)
    shown = re.search(r"```\n\n```\n(.*?)\n```", after, re.DOTALL)
    assert sent is not None
    assert shown is not None
    answer = client.post(f"/encodings/rope/resolve?{asked}", json=orjson.loads(sent[1])).json()
    expected = orjson.loads(shown[1])
    for result in (*answer["results"], *expected["results"]):
        query = result.pop("query")
        assert query.startswith("encoding=rope-dynamic&rope-dynamic.factor=4&rope-dynamic.original_length=512&")
        assert result.pop("curl").startswith("curl -s ")
    assert answer == expected


NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def alike(found: str, shown: str) -> bool:
    """The same words and layout; numbers but for rounding."""

    def lines(text: str) -> list[str]:
        return [line.rstrip() for line in NUMBER.sub("#", text).splitlines() if line.strip()]

    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (found, shown)]
    return lines(found) == lines(shown) and numbers[0] == pytest.approx(numbers[1], rel=0.01, abs=0.0015)


def test_the_python_in_the_readme_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, after = README.partition("## From Python")
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", after, re.DOTALL)[:2]
    with serving() as process:
        exec(code.replace("Client()", f'Client("http://127.0.0.1:{process.port}")'), {})
    assert alike(capsys.readouterr().out, shown)


def test_the_command_in_the_readme_prints_what_it_says() -> None:
    _, _, after = README.partition("## From the terminal")
    line, shown = re.findall(r"```\n(.*?)```", after, re.DOTALL)[:2]
    program, *arguments = shlex.split(line.replace("\\\n", " "))
    assert (program, arguments[:2]) == (".venv/bin/python", ["-m", "service"])
    done = command(*arguments[2:])
    assert done.returncode == 0, done.stderr
    assert alike(done.stdout, shown)


def test_every_method_of_the_client_stands_in_the_readme() -> None:
    listed = set().union(*map(names, rows("method")))
    assert listed == {name for name in vars(Calls) if not name.startswith("_")}
