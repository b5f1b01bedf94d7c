"""`GET /metrics`: for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


def router(registry: CollectorRegistry) -> APIRouter:
    routes = APIRouter(tags=["operation"])

    @routes.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        """In Prometheus's text format, or OpenMetrics where `Accept` asks for it."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return routes
