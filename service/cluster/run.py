"""A whole run on a cluster: from settings to the exit code."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from dataclasses import dataclass

from rich.console import Console

from service import __version__, logs
from service.cluster.options import NAME, Options
from service.settings import Settings

OK, FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where to run: on the cluster at `address`, or on one of this machine's own where that is None."""

    address: str | None = None
    detach: bool = False
    """Leave it running and end."""
    dashboard: bool = False
    """Of a cluster that is started here."""
    head_only: bool = False
    """Have one proxy, beside the head node, and not one on every node."""


def run(settings: Settings, options: Options, place: Place, console: Console) -> int:
    """Serves until it is told to end. 0 where it was served. Raises ImportError where Ray Serve is not installed."""
    logs.install(settings.log_level, settings.log_format, console)
    # Ray reads these when it is imported. It reports its use over the internet unless it is told not to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Replicas look at what they were assigned, not at what is visible.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if place.address is None:
        # Ray's own ports listen on every interface: who would use them must know the token in ~/.ray/auth_token.
        os.environ.setdefault("RAY_AUTH_MODE", "token")

    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions
    from ray.serve.schema import LoggingConfig

    from service.cluster.application import build

    logging.getLogger("ray").setLevel(logging.WARNING)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    port = settings.port or _free(settings.host)
    try:
        ray.init(
            address=place.address or "local",
            include_dashboard=None if place.address else place.dashboard,
            logging_level=logging.WARNING,
        )
    except (ConnectionError, ray.exceptions.RayError) as error:
        _say(console, f"no Ray cluster at {place.address or 'this machine'}: {error}", "bold red")
        return FAILED
    ending = _signalled()
    try:
        serve.start(
            proxy_location="HeadOnly" if place.head_only else "EveryNode",
            http_options=HTTPOptions(host=settings.host, port=port, keep_alive_timeout_s=settings.keep_alive_seconds),
            logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False),
        )
        serve.run(build(options), name=NAME, route_prefix="/")
        url = f"http://{f'[{settings.host}]' if ':' in settings.host else settings.host}:{port}"
        _say(console, f"Attention scoring service {__version__} on Ray {ray.__version__} at {url}", "bold")
        _say(console, _replicas(options))
        if place.detach:
            _say(console, f"It goes on; `serve status` shows it, `serve.delete({NAME!r})` ends it")
            return OK
        ending.wait()
        serve.delete(NAME)
    except (RuntimeError, TimeoutError, ray.exceptions.RayError) as error:
        _say(console, str(error), "bold red")
        return FAILED
    finally:
        ray.shutdown()
    return OK


def _signalled() -> threading.Event:
    """Set by SIGTERM and by Ctrl-C. After the second one nothing is waited for."""
    asked = threading.Event()

    def handle(number: int, frame: object) -> None:
        if asked.is_set():
            raise SystemExit(128 + number)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return asked


def _free(host: str) -> int:
    """A port that nobody listens on now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as asked:
        asked.bind((host, 0))
        return int(asked.getsockname()[1])


def _replicas(options: Options) -> str:
    low, high = options.min_replicas, options.most
    number = f"{low}" if low == high else f"{low} to {high}"
    plural = "replica" if high == 1 else "replicas"
    gpus = f" and {options.gpus:g} GPU" if options.gpus else ""
    return f"{number} {plural}, {options.cpus:g} CPU{gpus} each"


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
