"""The manifests are what Kubernetes takes, and agree with each other, with the image and with the service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate
import pytest
import yaml
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from service.settings import variables
from service.telemetry import Telemetry

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"


def read(name: str) -> dict[str, Any]:
    (found,) = yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture
def pod() -> dict[str, Any]:
    found: dict[str, Any] = read("deployment")["spec"]["template"]
    return found


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["spec"]["containers"]
    assert isinstance(found, dict)
    return found


OLDEST, NEWEST = "1.30", kubernetes_validate.latest_version()
"""The oldest is what docs/operating.md promises: since then a pod may sleep before it stops."""
KINDS = {
    "deployment": "Deployment",
    "service": "Service",
    "autoscaler": "HorizontalPodAutoscaler",
    "disruption-budget": "PodDisruptionBudget",
}
OTHERS = {"service-monitor", "adapter-values"}
"""The first is a custom resource, the second no manifest."""
MONITOR = {
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "ServiceMonitor"},
        "metadata": {"required": ["name"]},
        "spec": {
            "required": ["selector", "endpoints"],
            "additionalProperties": False,
            "properties": {
                "selector": {
                    "required": ["matchLabels"],
                    "additionalProperties": False,
                    "properties": {"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}},
                },
                "namespaceSelector": {"type": "object"},
                "jobLabel": {"type": "string"},
                "endpoints": {
                    "minItems": 1,
                    "items": {
                        "additionalProperties": False,
                        "required": ["port"],
                        "properties": {
                            "port": {"type": "string", "maxLength": 15},
                            "path": {"type": "string", "pattern": "^/"},
                            "scheme": {"enum": ["http", "https"]},
                            "interval": {"type": "string", "pattern": "^([0-9]+(y|w|d|h|m|s|ms))+$"},
                            "scrapeTimeout": {"type": "string", "pattern": "^([0-9]+(y|w|d|h|m|s|ms))+$"},
                        },
                    },
                },
            },
        },
    },
}
"""What the Prometheus operator's v1 takes, as far as it is used here: Kubernetes' schemas have no custom resources."""


def test_every_manifest_is_looked_at() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*KINDS, *OTHERS}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", KINDS)
def test_a_manifest_is_what_kubernetes_takes(name: str, version: str) -> None:
    """Strictly: names that Kubernetes does not know, which it would drop in silence, are wrong too."""
    manifest = read(name)
    assert manifest["kind"] == KINDS[name]
    assert kubernetes_validate.validate(manifest, version, strict=True) == version.removesuffix(".0")
    manifest["spec"]["selektor"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="selektor"):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_monitor_is_what_the_operator_takes() -> None:
    check = jsonschema.Draft202012Validator(MONITOR)
    monitor = read("service-monitor")
    check.validate(monitor)
    monitor["spec"]["endpoints"][0]["prot"] = "http"
    with pytest.raises(jsonschema.ValidationError, match="prot"):
        check.validate(monitor)


def test_every_selector_selects_the_pods_and_the_monitor_selects_the_service(pod: dict[str, Any]) -> None:
    labels = pod["metadata"]["labels"].items()
    assert read("deployment")["spec"]["selector"]["matchLabels"].items() <= labels
    assert read("service")["spec"]["selector"].items() <= labels
    assert read("disruption-budget")["spec"]["selector"]["matchLabels"].items() <= labels
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= labels
    service = read("service")
    assert read("service-monitor")["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


def test_every_port_is_the_one_that_the_image_listens_on(container: dict[str, Any]) -> None:
    (port,) = container["ports"]
    assert f"EXPOSE {port['containerPort']}\n" in (ROOT / "Dockerfile").read_text()
    (served,) = read("service")["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    (endpoint,) = read("service-monitor")["spec"]["endpoints"]
    assert endpoint["port"] == served["name"]
    assert all(
        container[f"{probe}Probe"]["httpGet"]["port"] == port["name"] for probe in ("startup", "readiness", "liveness")
    )


def test_probes_and_monitor_ask_for_routes_that_there_are(application: FastAPI, container: dict[str, Any]) -> None:
    paths = application.openapi()["paths"]
    asked = {container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")}
    (endpoint,) = read("service-monitor")["spec"]["endpoints"]
    assert asked | {endpoint["path"]} <= set(paths)


def test_every_variable_is_a_setting(container: dict[str, Any]) -> None:
    assert {entry["name"] for entry in container["env"]} <= {name for name, _, _ in variables()}


def test_a_pod_has_the_time_to_answer_what_is_under_way(pod: dict[str, Any], container: dict[str, Any]) -> None:
    drain = float({entry["name"]: entry["value"] for entry in container["env"]}["ATTENTION_DRAIN_SECONDS"])
    stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > stop + drain


def test_nothing_runs_as_root_or_writes_to_the_image(pod: dict[str, Any], container: dict[str, Any]) -> None:
    user = re.search(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())
    assert user is not None
    assert pod["spec"]["securityContext"]["runAsUser"] == int(user[1])
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_the_autoscaler_goes_by_a_metric_that_the_service_has_and_the_adapter_serves() -> None:
    autoscaler = read("autoscaler")["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == read("deployment")["metadata"]["name"]
    (metric,) = autoscaler["metrics"]
    name = metric["pods"]["metric"]["name"]
    registry = CollectorRegistry()
    Telemetry(registry)
    assert name in {family.name for family in registry.collect()}
    (rule,) = read("adapter-values")["rules"]["custom"]
    assert rule["name"]["as"] == name
    assert rule["seriesQuery"].startswith(f"{name}{{")
    assert autoscaler["minReplicas"] > read("disruption-budget")["spec"]["maxUnavailable"]
    assert "replicas" not in read("deployment")["spec"]
