"""A whole run of the service: from settings to the exit code."""

from __future__ import annotations

import logging
import socket
from functools import partial

import uvicorn
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from service import __version__
from service.app import Service, create_app, device_name
from service.engine.device import DeviceError
from service.protocol import Protocol
from service.server import PortTaken, Server, bind
from service.settings import Settings

OK, FAILED = 0, 1


def run(settings: Settings, console: Console) -> int:
    """Serves until it is told to end. The exit code is 0 where every request that was taken got its answer."""
    _log(settings, console)
    try:
        listening = bind(settings)
        app = create_app(settings)
    except (PortTaken, DeviceError) as error:
        _say(console, str(error), "bold red")
        return FAILED
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        http=partial(Protocol, header_seconds=settings.header_seconds),  # type: ignore[arg-type]
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=1,  # the server has waited for its requests by then
    )
    server = Server(config, service.lifecycle, settings.drain_seconds, lambda: _announce(console, service, listening))
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
    _say(console, f"Computing on {device_name(service.sessions.provider)}, {service.engine.workers} worker threads")
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


def _log(settings: Settings, console: Console) -> None:
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(message)s",
        datefmt="[%X]",
        handlers=[RichHandler(console=console, show_path=False)],
        force=True,
    )
    for chatty in ("uvicorn.error", "asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger("uvicorn.error").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """A start that was given up has been explained already; uvicorn adds its traceback."""
    return not record.getMessage().rstrip().rpartition("\n")[2].startswith("service.errors.NotReady")
