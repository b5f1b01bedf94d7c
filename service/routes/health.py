"""`GET /health/live`, `/health/ready`: for whoever restarts the process, and for whoever sends it work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from service.errors import NotReady
from service.lifecycle import Lifecycle
from service.routes import catalogue_schemas as told
from service.routes.answers import Json
from service.routes.schemas import answer


def router(
    lifecycle: Lifecycle,
    alive: Callable[[], bool],
    device: str,
    processes: Callable[[], dict[str, int]],
    responses: dict[int | str, Any],
) -> APIRouter:
    """`alive` is False where only a new process helps; `processes` says how many there are and how many are ready."""
    routes = APIRouter(tags=["operation"], default_response_class=Json, responses=responses)

    @routes.get("/health/live", summary="Is the process alive?", responses=answer(told.LIVE))
    async def live() -> Json:
        """503 where only a restart helps."""
        if not alive():
            raise NotReady("a worker thread of the engine has died; the process must be restarted")
        return Json({"status": "live"})

    @routes.get("/health/ready", summary="Does the process take work?", responses=answer(told.READY))
    async def ready() -> Json:
        """200 once every model has answered a warm-up, else 503 with the reason: no models, broken, draining."""
        refusal = lifecycle.refusal()
        if refusal is not None:
            raise refusal
        return Json({"status": "ready", "device": device, "processes": processes()})

    return routes
