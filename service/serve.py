"""A whole run of the service: from settings to the exit code."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from fastapi import FastAPI
from rich.console import Console
from rich.table import Table

from service import __version__, logs
from service.app import Service, create_app, device_name
from service.board import Board
from service.engine.cores import usable_cores
from service.engine.device import CPU, DeviceError
from service.engine.session import Sessions
from service.keys import KeysError
from service.protocol import Protocol
from service.server import SPREADS, PortTaken, Server, bind, descriptors, join
from service.settings import Settings
from service.shared_memory.mapping import OBJECTS
from service.shared_memory.regions import Regions
from service.siblings import Siblings
from service.supervisor import FAILED, OK, Supervisor, Ties


def run(settings: Settings, console: Console) -> int:
    """Serves until it is told to end. The exit code is 0 where every request that was taken got its answer."""
    logs.install(settings.log_level, settings.log_format, console)
    if not settings.shared_memory:
        return _run(settings, console)
    if not OBJECTS.is_dir():
        _say(console, f"ATTENTION_SHARED_MEMORY needs Linux's {OBJECTS}, which is not here", "bold red")
        return FAILED
    with TemporaryDirectory(prefix="attention-regions-") as folder:
        return _run(settings, console, Regions(Path(folder)))


def _run(settings: Settings, console: Console, regions: Regions | None = None) -> int:
    try:
        bound = bind(settings, together=settings.processes != 1)
    except PortTaken as error:
        _say(console, str(error), "bold red")
        return FAILED
    try:
        sessions = Sessions(settings.device, cuda_graphs=settings.cuda_graphs)
        processes = _processes(settings, sessions.provider)
        sessions.divide(processes)
        app = create_app(settings, sessions=sessions, board=Board(processes), regions=regions)
    except (DeviceError, KeysError) as error:
        bound.close()
        _say(console, str(error), "bold red")
        return FAILED
    service: Service = app.state.service

    def announce() -> None:
        _announce(console, service, bound)

    if processes == 1:
        return _serve(app, bound, console, announce)

    siblings = Siblings(service.telemetry) if SPREADS else None

    def work(process: int, ties: Ties) -> int:
        service.enter(process)
        return _serve(app, join(bound), console, ties.ready, ties.lifeline, siblings)

    def died(process: int) -> None:
        service.telemetry.forget(process)
        service.reloading.forget(process)
        if siblings is not None:
            siblings.forget(process)

    try:
        return Supervisor(processes, work, up=announce, died=died).run()
    finally:
        if siblings is not None:
            siblings.close()


def _processes(settings: Settings, provider: str) -> int:
    """Raises DeviceError for several on one GPU: each would take its memory."""
    if provider == CPU:
        return settings.processes or (usable_cores() if hasattr(os, "fork") else 1)
    if settings.processes > 1:
        raise DeviceError(
            f"ATTENTION_PROCESSES is {settings.processes}, but one process serves a GPU; leave it out, or start a "
            "service of its own for each GPU (CUDA_VISIBLE_DEVICES)"
        )
    return 1


def _serve(
    app: FastAPI,
    listening: socket.socket,
    console: Console,
    announce: Callable[[], None],
    lifeline: int | None = None,
    siblings: Siblings | None = None,
) -> int:
    service: Service = app.state.service
    settings = service.settings
    config = uvicorn.Config(
        app,
        http=partial(  # type: ignore[arg-type]
            Protocol,
            header_seconds=settings.header_seconds,
            stall_seconds=settings.stall_seconds,
            most=descriptors(settings.connections, 0 if siblings is None else siblings.descriptors),
            express=app.state.express,
            siblings=siblings,
        ),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=1,  # the server has waited for its requests by then
    )
    server = Server(config, service.lifecycle, settings.drain_seconds, announce, lifeline, siblings)
    try:
        server.run(sockets=[listening])
    except SystemExit:  # uvicorn's way to say that the lifespan failed; the log has the reason
        return FAILED
    if not server.drained:
        seconds = f"{settings.drain_seconds:g} s (ATTENTION_DRAIN_SECONDS)"
        _say(console, f"requests were cut off: they had not ended after {seconds}", "bold red")
        return FAILED
    return OK


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _announce(console: Console, service: Service, listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    _say(console, f"Attention scoring service {__version__} at {url}", "bold")
    _say(console, f"Documentation at {url}/docs, metrics at {url}/metrics")
    processes, threads = service.telemetry.board.processes, service.engine.workers
    _say(
        console,
        f"Computing on {device_name(service.sessions.provider)}, "
        f"{processes} process{'es' if processes > 1 else ''}, {threads} worker thread{'s' if threads > 1 else ''} each",
    )
    table = Table("model", "encodings", box=None, padding=(0, 2, 0, 0))
    for model in service.catalogue.models.values():
        table.add_row(model.name, ", ".join(model.encodings))
    if service.catalogue.models:
        console.print(table, markup=False, highlight=False)
    else:
        folders = ", ".join(map(str, service.settings.models))
        _say(console, f"no exported models in {folders} (ATTENTION_MODELS): not ready", "bold red")
    for problem in service.catalogue.problems:
        _say(console, f"not served: {problem}", "yellow")
