"""Who answers a command: the service at a URL, or the same application inside this process, without a port."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn, TypeVar

import typer
from pydantic import ByteSize

from service.client import AsyncClient, AttentionError, Busy, Refused, Unreachable
from service.commands.console import working
from service.settings import Settings, SettingsError

T = TypeVar("T")
Question = Callable[[AsyncClient], Awaitable[T]]

FAILED, MISUSE, REFUSED, UNREACHABLE = 1, 2, 3, 4
CODES = """
Exit codes:
  0  done
  1  the service failed on it
  2  the command was misused: options, files that cannot be read or written, settings
  3  the service refused it: unknown names, parameters out of range, shapes that do not fit
  4  no service answered at the URL, or it took no work
"""
_DAY = 86_400.0


def ask(url: str | None, api_key: str | None, question: Question[T], doing: str) -> T:
    """The answer to a question that is put to the service at `url`, None for one inside this process, which asks for
    no key. What goes wrong ends the command with one of the exit codes above. `doing` is shown meanwhile.
    """
    try:
        with working(doing):
            return asyncio.run(_answer(url, api_key, question))
    except Refused as error:
        fail(str(error), REFUSED)
    except (Busy, Unreachable) as error:
        fail(str(error), UNREACHABLE)
    except AttentionError as error:
        fail(str(error), FAILED)
    except SettingsError as error:
        fail(str(error), MISUSE)


async def _answer(url: str | None, api_key: str | None, question: Question[T]) -> T:
    try:
        there = None if url is None else AsyncClient(url, timeout=600.0, retries=2, api_key=api_key)
    except ValueError as error:
        fail(str(error), MISUSE)
    async with there or _inside() as client:
        return await question(client)


@asynccontextmanager
async def _inside() -> AsyncIterator[AsyncClient]:
    """The whole application, asked without a socket. Its limits on time and on what is sent, and its API keys,
    protect others, of whom there are none here.
    """
    import httpx

    from service.app import create_app  # only now: it loads onnxruntime
    from service.engine.device import DeviceError
    from service.errors import NotReady

    alone = {
        "deadline_seconds": _DAY,
        "max_body_bytes": ByteSize(1 << 40),
        "json_cells": 1 << 40,
        "api_keys_file": None,
    }
    settings = Settings.read().model_copy(update=alone)
    try:
        app = create_app(settings)
        async with (
            app.router.lifespan_context(app),
            AsyncClient("http://inside", timeout=_DAY, retries=0, transport=httpx.ASGITransport(app)) as client,
        ):
            yield client
    except DeviceError as error:
        fail(str(error), FAILED)
    except NotReady as error:
        fail(error.detail, FAILED)


def fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(message + "\n")
    raise typer.Exit(code)
