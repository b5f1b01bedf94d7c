"""docker-compose.yml is what the Compose specification allows, and agrees with the image and with what it mounts."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

compose_spec = pytest.importorskip("compose_spec")

ROOT = Path(__file__).parent.parent.parent


def read() -> dict[str, Any]:
    found = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert isinstance(found, dict)
    return found


def test_the_file_is_what_the_specification_allows() -> None:
    project = compose_spec.PyCompose.from_json(json.dumps(read()))
    assert set(project.service_names()) == {"attention", "attention-gpu", "prometheus", "grafana"}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [("prots", ["8000:8000"], "prots"), ("stop_grace_period", "40 years", "duration"), ("restart", "never", "never")],
)
def test_the_check_sees_what_is_wrong(key: str, value: object, said: str) -> None:
    wrong = copy.deepcopy(read())
    wrong["services"]["attention"][key] = value
    with pytest.raises(ValueError, match=said):
        compose_spec.PyCompose.from_json(json.dumps(wrong))


@pytest.mark.parametrize("name", ["attention", "attention-gpu"])
def test_the_service_is_the_image_as_it_is_built(name: str) -> None:
    told, dockerfile = read()["services"][name], (ROOT / "Dockerfile").read_text()
    assert re.search(rf"^FROM \S+ AS {told['build']['target']}$", dockerfile, re.MULTILINE)
    (port,) = told["ports"]
    assert f"EXPOSE {port.rpartition(':')[2]}\n" in dockerfile
    assert port.startswith("127.0.0.1:")
    assert told["read_only"] is True
    assert told["cap_drop"] == ["ALL"]
    assert float(told["stop_grace_period"].removesuffix("s")) > Settings.model_fields["drain_seconds"].default


def test_what_is_mounted_is_there() -> None:
    for name, told in read()["services"].items():
        for mount in told.get("volumes", ()):
            source = mount.split(":")[0]
            assert source in read()["volumes"] or (ROOT / source).is_dir(), (name, source)
