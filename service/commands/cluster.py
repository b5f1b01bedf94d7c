"""`python -m service ray`: serve from a Ray cluster."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from service.commands.asking import FAILED, MISUSE, fail
from service.settings import Settings, SettingsError

EPILOG = """\b
Examples:
  python -m service ray                                     one replica, on a cluster of this machine's own
  python -m service ray --min-replicas 2 --max-replicas 8   two, and up to eight while requests pile up
  ATTENTION_PORT=9000 python -m service ray --cpus 2        two worker threads in each replica
  python -m service ray --gpus 0.5 --min-replicas 4         two replicas on each of two GPUs
  ATTENTION_HOST=0.0.0.0 python -m service ray --address auto --detach
                                                            on a cluster that `ray start` has started

The same from a file: serve deploy deploy/ray/serve.yaml. What is kept and what differs: docs/ray.md.
ATTENTION_ variables are told to the replicas; ATTENTION_HOST, ATTENTION_PORT and ATTENTION_KEEP_ALIVE_SECONDS
are those of the proxies.
Ray is installed by: python -m pip install -r requirements/ray.txt"""
MISSING = (
    "Ray Serve is not installed (%s): python -m pip install -r requirements/ray.txt. "
    "On one machine `python -m service` needs none of it."
)


def cluster(
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A Ray cluster, auto or HOST:PORT. [one that is started on this machine]"),
    ] = None,
    min_replicas: Annotated[int, typer.Option(help="Replicas that there are at least.")] = 1,
    max_replicas: Annotated[
        int | None, typer.Option(help="Replicas that there are at most. [as many as at least]")
    ] = None,
    cpus: Annotated[float, typer.Option(help="CPUs of each replica, and so many worker threads.")] = 1.0,
    gpus: Annotated[float, typer.Option(help="GPU of each replica, 0.5 for two on one.")] = 0.0,
    target_ongoing: Annotated[
        float, typer.Option(help="Requests under way for each replica above which there are to be more.")
    ] = 8.0,
    max_ongoing: Annotated[int, typer.Option(help="Requests that a replica has at a time.")] = 64,
    max_queued: Annotated[
        int, typer.Option(help="Requests that wait in each proxy for a replica; above it 503 with Retry-After.")
    ] = 256,
    head_only: Annotated[bool, typer.Option("--head-only", help="One proxy, and not one on every node.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="With --address: leave it running, once it is ready.")
    ] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Without --address: start Ray's dashboard as well.")
    ] = False,
) -> None:
    """Serve from replicas on a Ray cluster until SIGTERM or Ctrl-C: beyond one machine.

    Without --address a cluster of this machine alone is started, for trying it out.
    """
    if address is None and detach:
        fail("--detach needs --address: a cluster that is started here ends with this command", MISUSE)
    if address is not None and dashboard:
        fail("--dashboard is of a cluster that is started here; that at --address has its own or none", MISUSE)
    try:
        settings = Settings.read()
    except SettingsError as error:
        fail(str(error), MISUSE)
    from service.cluster.options import OURS, Options
    from service.cluster.run import Place, run

    if settings.shared_memory:
        fail("ATTENTION_SHARED_MEMORY: replicas on a cluster share no memory with clients", MISUSE)
    if settings.processes > 1:
        fail("ATTENTION_PROCESSES: each replica is one process; --min-replicas says how many there are", MISUSE)
    try:
        options = Options(
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            cpus=cpus,
            gpus=gpus,
            target_ongoing=target_ongoing,
            max_ongoing=max_ongoing,
            max_queued=max_queued,
            settings=_told(settings, OURS),
        )
    except ValidationError as error:
        fail("\n".join(_wrong(one) for one in error.errors(include_url=False)), MISUSE)
    try:
        code = run(settings, options, Place(address, detach, dashboard, head_only), Console(stderr=True))
    except ImportError as error:
        fail(MISSING % error, FAILED)
    raise typer.Exit(code)


def _told(settings: Settings, but: frozenset[str]) -> dict[str, Any]:
    """What was set, as another process can be told it, wherever that runs."""
    told = settings.model_dump(mode="json", include=set(settings.model_fields_set) - but)
    for name in ("models", "api_keys_file"):
        if isinstance(paths := told.get(name), list):
            told[name] = [os.path.abspath(path) for path in paths]
        elif isinstance(paths, str):
            told[name] = os.path.abspath(paths)
    return told


def _wrong(one: Any) -> str:
    option = "--" + str(one["loc"][0]).replace("_", "-") + ": " if one["loc"] else ""
    return option + str(one["msg"]).removeprefix("Value error, ")
