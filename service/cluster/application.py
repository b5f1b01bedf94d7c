"""The application for Ray Serve: `serve run service.cluster.application:build min_replicas=2`, or `import_path` in its
configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, BackpressureConfig
from ray.serve.schema import LoggingConfig

from service.cluster.options import NAME, Options
from service.cluster.replica import Replica
from service.settings import Settings

MARGIN = 5.0
"""Seconds that a replica has to end after those in which its requests may."""


def build(given: Options | Mapping[str, Any]) -> Any:
    """One deployment, whose replicas are the whole application each. Raises ValidationError where that cannot be."""
    args = Options.model_validate(given)
    settings = Settings(**args.settings)
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        num_replicas=None if args.most > args.min_replicas else args.min_replicas,
        autoscaling_config=_autoscaling(args),
        max_ongoing_requests=args.max_ongoing,
        max_queued_requests=args.max_queued,
        backpressure_config=BackpressureConfig(status_code=503, retry_after_s=1),
        ray_actor_options={"num_cpus": args.cpus, "num_gpus": args.gpus},
        health_check_period_s=5,
        health_check_timeout_s=10,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=settings.drain_seconds + MARGIN,
        # The application has a log of its own, and counts all that Serve's would have.
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    )
    return deployment.bind(args.settings)


def _autoscaling(args: Options) -> AutoscalingConfig | None:
    if args.most == args.min_replicas:
        return None
    return AutoscalingConfig(
        min_replicas=args.min_replicas,
        initial_replicas=args.min_replicas,
        max_replicas=args.most,
        target_ongoing_requests=args.target_ongoing,
        upscale_delay_s=10,
        downscale_delay_s=300,
        look_back_period_s=15,
    )
