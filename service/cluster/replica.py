"""One replica: the whole application with an engine of its own, in an actor of Ray Serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray import serve
from rich.console import Console
from starlette.types import ASGIApp

from service import logs
from service.app import Service, create_app
from service.cluster.expositions import labelled, merged
from service.cluster.passing import Passing
from service.errors import Draining, NotReady
from service.routes.metrics import exposition
from service.routes.open_inference_models import VERSION
from service.settings import Settings
from service.shelf import Shelf

logger = logging.getLogger(__name__)

ALIKE = 5.0
"""Seconds between two looks at what the others serve: one that came meanwhile was told of nothing."""
PATIENCE = 3.0
"""Seconds for all others to answer. A scrape has ten."""
TOGETHER = 10.0
"""Seconds for all others to have done what was asked of one."""


class Replica:
    """`given` are its settings where they are not those of its environment. Its share of the machine is what Ray has
    assigned to it.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        # Called by Ray Serve once it is constructed, on the event loop that requests are answered on.
        settings = share(Settings(**{**self._given, "processes": 1, "shared_memory": False}), assigned())
        logs.install(settings.log_level, settings.log_format, Console(stderr=True))
        context = serve.get_replica_context()
        self._name = context.replica_id.unique_id
        self._others = serve.get_deployment_handle(context.deployment, context.app_name)
        app = create_app(settings, peers=self)
        self._service: Service = app.state.service
        if not self._service.catalogue.models:
            problems = "; ".join(map(str, self._service.catalogue.problems))
            raise NotReady(f"no exported models in {', '.join(map(str, settings.models))}. {problems}".strip())
        await self._look()
        self._following = asyncio.create_task(self._follow())
        return Passing(app)

    async def check_health(self) -> None:
        """Asked by Ray Serve every few seconds: after three failures in a row another replica takes its place."""
        refusal = self._service.lifecycle.refusal()
        if refusal is not None and not isinstance(refusal, Draining):
            raise RuntimeError(refusal.detail)

    # What the others ask of it.

    async def exposition(self, accept: str) -> str:
        """Its own metrics."""
        text = await exposition(self._service.telemetry, accept)
        return await asyncio.to_thread(labelled, text, self._name)

    async def reports(self, models: Sequence[str]) -> list[dict[str, Any]]:
        """Its own statistics of these models."""
        return [self._service.statistics.report(model, VERSION) for model in models]

    async def shelf(self) -> Shelf:
        """What it serves."""
        return await asyncio.to_thread(self._service.reloading.shelf.read)

    async def follow(self, shelf: Shelf) -> None:
        """Serves the same, if that is newer."""
        await self._service.reloading.agree(shelf)

    # What it asks of the others, and of itself among them (`Peers`).

    async def expositions(self, accept: str) -> str:
        texts = await self._ask("exposition", accept, within=PATIENCE)
        return await asyncio.to_thread(merged, texts or [await self.exposition(accept)])

    async def statistics(self, models: Sequence[str]) -> list[list[dict[str, Any]]]:
        return await self._ask("reports", models, within=PATIENCE) or [await self.reports(models)]

    async def agree(self, shelf: Shelf) -> None:
        if await self._ask("follow", shelf, within=TOGETHER) is None:
            raise NotReady(
                f"not every replica has followed within {TOGETHER:g} s; it is done in this one, the others will follow"
            )

    async def _ask(self, method: str, *arguments: object, within: float) -> list[Any] | None:
        """What each of them answers, but for those that have gone; None where they do not within that time."""
        try:
            answers = await self._others.broadcast(method, *arguments).results_async(
                timeout_s=within, return_exceptions=True
            )
        except Exception as error:  # none is known yet, or one does not answer
            logger.debug("the other replicas do not answer: %s", error)
            return None
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _look(self) -> None:
        for shelf in await self._ask("shelf", within=PATIENCE) or ():
            await self._service.reloading.agree(shelf)

    async def _follow(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(ALIKE)
            try:
                await self._look()
            except Exception:
                logger.exception("what other replicas serve could not be followed")


def assigned() -> Mapping[str, float]:
    """What Ray has assigned to this actor: `CPU`, `GPU`."""
    found: Mapping[str, float] = ray.get_runtime_context().get_assigned_resources()
    return found


def share(settings: Settings, resources: Mapping[str, float]) -> Settings:
    """The settings of a replica that has these: a GPU is used, and nothing that is not its own. Of its CPUs each whole
    one is a worker's. What was set stays."""
    changed: dict[str, Any] = {}
    if settings.device == "auto":
        changed["device"] = "cuda" if resources.get("GPU", 0.0) > 0 else "cpu"
    if not settings.workers:
        changed["workers"] = max(1, int(resources.get("CPU", 1.0)))
    return settings.model_copy(update=changed)
