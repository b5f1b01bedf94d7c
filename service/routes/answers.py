"""Answers as Starlette takes them."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from service.routes import download


class Json(JSONResponse):
    """A small one, written by orjson."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


class Pieces(Response):
    """One that is ready, in pieces."""

    def __init__(self, kind: str, pieces: list[Any]) -> None:
        super().__init__(media_type=kind)
        self.pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await download.send(send, str(self.media_type), self.pieces)
