"""`GET /metrics`: for Prometheus."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from service.peers import Peers
from service.routes.schemas import TEXT
from service.telemetry import Telemetry

_RESPONSES: dict[int | str, Any] = {
    200: {
        "description": "The metrics.",
        "content": {kind: {"schema": TEXT} for kind in ("text/plain", "application/openmetrics-text")},
    }
}


def router(telemetry: Telemetry, peers: Peers | None) -> APIRouter:
    routes = APIRouter(tags=["operation"])

    @routes.get("/metrics", summary="Prometheus metrics", response_class=Response, responses=_RESPONSES)
    async def metrics(request: Request) -> Response:
        """In Prometheus's text format, or OpenMetrics where `Accept` asks for it."""
        accept = request.headers.get("accept", "")
        _, content_type = choose_encoder(accept)
        text = await exposition(telemetry, accept) if peers is None else await peers.expositions(accept)
        return Response(text, headers={"content-type": content_type})

    return routes


async def exposition(telemetry: Telemetry, accept: str) -> str:
    """What this instance has, in the format that the header asks for."""
    encode, _ = choose_encoder(accept)
    snapshot: Any = telemetry.snapshot()  # all that is asked of a registry here
    # Thousands of lines: written on the event loop they would hold it up for tens of milliseconds.
    return (await asyncio.to_thread(encode, snapshot)).decode()
