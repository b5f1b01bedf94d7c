"""What can be asked of a cluster, and what becomes of it there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from ray import serve
from ray.serve.schema import ServeDeploySchema

from service.cluster.application import build
from service.cluster.options import OURS, Options
from service.cluster.replica import share
from service.settings import Settings

DEPLOY = Path(__file__).parents[3] / "deploy" / "ray"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"min_replicas": 3, "max_replicas": 2}, "less than min_replicas, 3"),
        ({"settings": {"port": 1}}, "port cannot be set for replicas"),
        ({"settings": {"processes": 2}}, "processes cannot be set"),
        ({"settings": {"drain_second": 1}}, "drain_second"),
        ({"settings": {"request_cells": 2, "queue_cells": 1}}, "must be at least"),
        ({"replicas": 1}, "replicas"),
        ({"cpus": 0}, "greater than 0"),
        ({"gpus": 2}, "less than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Options(**given)


def test_the_settings_that_are_not_the_replicas_are_settings() -> None:
    assert set(Settings.model_fields) >= OURS


def deployment(**given: Any) -> Any:
    application = build(Options(**given))
    assert isinstance(application, serve.Application)
    return application._bound_deployment


def test_a_fixed_number_of_replicas_is_not_scaled() -> None:
    made = deployment(min_replicas=3, cpus=2, max_ongoing=10, max_queued=5)
    assert made.num_replicas == 3
    assert made._deployment_config.autoscaling_config is None
    assert (made.max_ongoing_requests, made.max_queued_requests) == (10, 5)
    assert made.ray_actor_options["num_cpus"] == 2


def test_replicas_are_scaled_by_what_is_under_way() -> None:
    made = deployment(min_replicas=2, max_replicas=6, target_ongoing=3, gpus=0.5)
    scaling = made._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (2, 6, 3)
    assert made.ray_actor_options["num_gpus"] == 0.5


def test_a_replica_has_longer_to_end_than_its_requests() -> None:
    made = deployment(settings={"drain_seconds": 7})
    assert made._deployment_config.graceful_shutdown_timeout_s > 7


@pytest.mark.parametrize(
    ("resources", "settings", "expected"),
    [
        ({"CPU": 1.0}, {}, ("cpu", 1)),
        ({"CPU": 0.5}, {}, ("cpu", 1)),
        ({"CPU": 4.0}, {}, ("cpu", 4)),
        ({"CPU": 1.0, "GPU": 0.5}, {}, ("cuda", 1)),
        ({"CPU": 4.0, "GPU": 1.0}, {"device": "cpu", "workers": 2}, ("cpu", 2)),
    ],
)
def test_a_replica_takes_its_share_and_no_more(
    resources: Mapping[str, float], settings: dict[str, Any], expected: tuple[str, int]
) -> None:
    found = share(Settings(**settings), resources)
    assert (found.device, found.workers) == expected


def test_the_configuration_is_one_that_ray_serve_and_the_service_read() -> None:
    read = ServeDeploySchema.model_validate(yaml.safe_load((DEPLOY / "serve.yaml").read_text()))
    (application,) = read.applications
    assert application.import_path == f"{build.__module__}:{build.__name__}"
    # Ray Serve gives what stands in the file, or in the arguments of `serve run`, as it is.
    assert build(application.args)._bound_deployment.name == "attention"
    assert build({"min_replicas": "3"})._bound_deployment.num_replicas == 3


def test_kuberay_deploys_the_same_configuration() -> None:
    manifest = yaml.safe_load((DEPLOY / "ray-service.yaml").read_text())
    assert yaml.safe_load(manifest["spec"]["serveConfigV2"]) == yaml.safe_load((DEPLOY / "serve.yaml").read_text())
    lock = (DEPLOY.parents[1] / "requirements" / "ray.txt").read_text()
    cluster = manifest["spec"]["rayClusterConfig"]
    assert f"\nray=={cluster['rayVersion']}\n" in lock
    dockerfile = (DEPLOY.parents[1] / "Dockerfile").read_text()
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        name, target = container["image"].split(":")
        assert f" AS {target}\n" in dockerfile
        assert f"docker build -t {name}:{target} --target {target} ." in dockerfile
        assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in container["env"]


def test_each_replica_is_an_instance_to_prometheus() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    renamed, dropped = job["metric_relabel_configs"]
    assert (renamed["source_labels"], renamed["target_label"]) == (["replica"], "instance")
    assert (dropped["regex"], dropped["action"]) == ("replica", "labeldrop")
