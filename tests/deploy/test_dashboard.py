"""The dashboard and the rules ask for what there is."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml

from deploy import make_dashboard, make_rules
from tests.deploy.prometheus import query, scraping, tool
from tests.service import nvml, samples
from tests.service.process import Process, serving

DEPLOY = Path(make_rules.__file__).parent
TESTS = DEPLOY / "prometheus" / "tests" / "attention.yml"
NAME = re.compile(r"\b((?:attention|process|python)_[a-z_]+|attention:[a-z_:0-9]+[a-z0-9])\b")


def panels() -> list[dict[str, Any]]:
    return [panel for panel in make_dashboard.dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


def names(expression: str) -> set[str]:
    """The metrics that an expression reads."""
    return set(NAME.findall(re.sub(r'"[^"]*"|\bby \([^)]*\)|\bon \([^)]*\)', "", expression)))


@pytest.mark.parametrize("made", [make_rules, make_dashboard], ids=["rules", "dashboard"])
def test_what_is_committed_is_what_is_made(made: Any) -> None:
    assert made.OUT.read_text() == made.text(), "run `make deploy`"


def test_prometheus_takes_the_configuration_and_the_rules_do_what_they_promise() -> None:
    promtool = tool("promtool")
    for arguments in (("check", "config", DEPLOY / "prometheus" / "prometheus.yml"), ("test", "rules", TESTS)):
        found = subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout + found.stderr


def test_every_alert_has_a_test_and_a_runbook() -> None:
    tested, runbook = TESTS.read_text(), (DEPLOY.parent / "docs" / "operating.md").read_text().lower()
    for group in make_rules.rules()["groups"]:
        for rule in group["rules"]:
            if "alert" not in rule:
                continue
            name = rule["alert"]
            assert set(rule["annotations"]) == {"summary", "description", "runbook"}
            assert rule["annotations"]["runbook"] == f"docs/operating.md#{name.lower()}"
            assert f"\n### {name.lower()}\n" in runbook, f"docs/operating.md does not say what to do about {name}"
            # Those of slow windows are those of quick ones with other numbers.
            assert name in tested or name.endswith(("MediumBurn", "SlowBurn", "Drift"))


def test_panels_have_numbers_of_their_own_do_not_overlap_and_say_what_they_show() -> None:
    document = make_dashboard.dashboard()
    assert document["id"] is None
    assert "__inputs" not in document
    assert "DS_PROMETHEUS" not in json.dumps(document)
    every = document["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len(panels()) >= 20
    for panel in panels():
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
    for one, other in combinations((panel["gridPos"] for panel in every), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert max(panel["gridPos"]["x"] + panel["gridPos"]["w"] for panel in every) <= 24


def test_the_source_and_the_folder_are_where_grafana_looks() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape
    chosen = make_dashboard.dashboard()["templating"]["list"][0]["current"]["value"]
    assert source["uid"] == chosen
    (folder,) = yaml.safe_load((provisioning / "dashboards" / "attention.yml").read_text())["providers"]
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())
    mounts = dict(volume.split(":")[:2] for volume in compose["services"]["grafana"]["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == folder["options"]["path"]
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, httpx.Client]]:
    """A service under a little load, and the Prometheus that has watched it for some seconds."""
    serves = serving(processes="2", workers="1", before=nvml.BEFORE)
    with serves as process, scraping(process.port, tmp_path_factory.mktemp("p")) as client:
        with httpx.Client(base_url=f"http://127.0.0.1:{process.port}", timeout=20) as service:
            end = time.monotonic() + 8
            while time.monotonic() < end:
                for encoding in ("rope", "t5", "alibi"):
                    for tokens in (16, 200, 600):
                        body = samples.npy(np.ones((tokens, 8), np.float32))
                        url = f"/attention?encoding={encoding}&return=weights&rows=-1"
                        answer = service.post(url, content=body, headers={"content-type": "application/x-npy"})
                        assert answer.status_code == 200
                assert service.post("/attention", json={}).status_code == 422
                time.sleep(0.2)
        yield process, client


def test_every_metric_that_is_asked_for_exists(watched: tuple[Process, httpx.Client]) -> None:
    process, _ = watched
    text = httpx.get(f"http://127.0.0.1:{process.port}/metrics", timeout=20).text
    there = set(re.findall(r"^([a-z_]+)(?:{| )", text, re.MULTILINE))
    recorded = {rule["record"] for group in make_rules.rules()["groups"] for rule in group["rules"] if "record" in rule}
    asked = [(title, expression) for title, expression in expressions()]
    asked += [
        (rule.get("alert", ""), rule["expr"]) for group in make_rules.rules()["groups"] for rule in group["rules"]
    ]
    for title, expression in asked:
        found = names(expression)
        assert found or expression.startswith("up{"), (title, expression)  # Prometheus's own
        assert found <= there | recorded, (title, found - there - recorded)


def test_every_panel_has_data(watched: tuple[Process, httpx.Client]) -> None:
    _, client = watched
    for title, expression in expressions():
        plain = expression.replace("$__rate_interval", "10s").replace("$encoding", ".*").replace("$size", ".*")
        end = time.monotonic() + 20
        while not (found := query(client, plain)) and time.monotonic() < end:
            time.sleep(0.5)
        assert found, (title, plain)
        values = [float(series["value"][1]) for series in found]
        assert any(value == value for value in values), (title, plain, found)  # not all are NaN


def test_no_alert_fires_while_all_is_well(watched: tuple[Process, httpx.Client]) -> None:
    _, client = watched
    assert query(client, "attention_ready")[0]["value"][1] == "1"
    firing = {series["metric"]["alertname"] for series in query(client, 'ALERTS{alertstate="firing"}')}
    assert firing == set()
