"""`POST /attention/probe`: what an encoding does, found out by changing the input."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from service.deadline import Deadline
from service.errors import UnknownName
from service.exchange import Exchange, header
from service.lifecycle import Lifecycle
from service.probes.probes import Probes
from service.probes.records import ProbeOptions
from service.records import Timings
from service.routes import download, meant, probe_operation, probe_query, upload
from service.routes.answers import Pieces
from service.routes.attention import THREADED
from service.routes.leaving import Leaving
from service.scoring import Scoring
from service.settings import Settings
from service.wire import body, media
from service.wire.probes import encode

PATH = "/attention/probe"


class Probe:
    """Answers one request."""

    def __init__(self, scoring: Scoring, lifecycle: Lifecycle, settings: Settings) -> None:
        self.scoring = scoring
        self.probes = Probes(scoring, settings.json_cells)
        self.lifecycle = lifecycle
        self.settings = settings

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        exchange = Exchange.of(scope)
        deadline = Deadline.after(self.settings.deadline_seconds)
        self.lifecycle.check_open()
        asked = self._parse(scope["query_string"])
        media.negotiate(header(scope, b"accept"), (media.JSON,))
        kind = media.media_type(header(scope, b"content-type"))
        limit = self.settings.max_body_bytes
        content = await upload.read(scope, receive, limit, self.settings.body_seconds)
        exchange.took(kind, len(content))
        if len(content) < THREADED:
            input = body.decode(kind, content, limit)
        else:
            input = await asyncio.to_thread(body.decode, kind, content, limit)
        exchange.asks(input)
        timings = Timings(decode=time.perf_counter() - exchange.began)
        with Leaving(receive):
            result = await self.probes.answer(input, asked, timings, deadline)
        computed = time.perf_counter()
        pieces = await download.in_turns(encode(result))
        timings.serialize = time.perf_counter() - computed
        exchange.timings = timings
        return Pieces(media.JSON, pieces)

    def _parse(self, raw: bytes) -> ProbeOptions:
        try:
            return probe_query.parse(raw)
        except UnknownName as error:
            raise meant.dotted(self.scoring.catalogue, raw, error) from None


def router(scoring: Scoring, lifecycle: Lifecycle, settings: Settings, responses: dict[int | str, Any]) -> APIRouter:
    routes = APIRouter(tags=["attention"], responses=responses)
    probe = Probe(scoring, lifecycle, settings)

    @routes.post(
        PATH,
        summary="What position does, by changing the input",
        description=probe_operation.DESCRIPTION,
        response_class=Response,
        responses=probe_operation.responses(),
    )
    async def show(request: Request) -> Response:
        return await probe.answer(request.scope, request.receive)

    return routes
