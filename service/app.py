"""Wiring only: settings -> catalogue -> engine -> routes."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import onnxruntime
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from service import __version__, gpu, tracing, vitals
from service.admission import Limits as RequestLimits
from service.analysis.analyst import Analyst, analysis_folder
from service.analysis.given import Studies
from service.board import Board
from service.catalogue import Catalogue
from service.cors import Cors
from service.encoding import Encoding
from service.engine.batches import Limits as QueueLimits
from service.engine.engine import Engine
from service.engine.gpu_policy import GpuPolicy
from service.engine.policy import policy_for
from service.engine.session import Sessions
from service.errors import NotReady, ServiceError
from service.express.express import Express
from service.express.shared import SharedExpress
from service.keys import Keys, KeysError
from service.large import Bounds
from service.lifecycle import Lifecycle
from service.logs import RequestLog
from service.middleware import Observed
from service.peers import Peers
from service.reclaim import Reclaim
from service.reloading import Reloading
from service.rope_resolver import RopeResolver
from service.routes import (
    compare,
    encodings,
    failures,
    health,
    metrics,
    openapi,
    playground,
    positions,
    presets,
    probe,
    problems,
    resolve,
)
from service.routes import open_inference as v2
from service.routes.attention import PATH, Attention
from service.routes.open_inference_statistics import Counted, Observers, Statistics
from service.scoring import Scoring
from service.settings import Settings
from service.shared_memory.regions import Regions
from service.shelf import SharedShelf
from service.tables import TableCache
from service.telemetry import OTHER, SessionLabels, Telemetry
from service.views.positions import Views

logger = logging.getLogger(__name__)

SPARE = 64
"""Encodings that may be added while the service runs and still have statistics of their own."""
BEAT = 1.0
"""Seconds between two looks of a process at itself."""


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of one running service; `app.state.service`."""

    settings: Settings
    catalogue: Catalogue
    sessions: Sessions
    engine: Engine
    scoring: Scoring
    lifecycle: Lifecycle
    telemetry: Telemetry
    statistics: Statistics
    reloading: Reloading
    keys: Keys | None
    """None where nobody needs one."""

    def enter(self, process: int) -> None:
        """This is now one of several processes that were forked, the one of that number."""
        self.telemetry.enter(process)
        self.statistics.enter()


def create_app(
    settings: Settings,
    *,
    sessions: Sessions | None = None,
    registry: CollectorRegistry | None = None,
    board: Board | None = None,
    regions: Regions | None = None,
    peers: Peers | None = None,
) -> FastAPI:
    """The whole application. Raises DeviceError where the device asked for cannot be had, KeysError where the file of
    API keys cannot be read. With a `board` of several processes it may be forked, and each process must then enter the
    board. Only with `regions` is memory shared with clients. `peers` are other instances that clients cannot tell from
    this one.

    What takes time, starting the engine and warming the models up, is done by the app's lifespan, which raises NotReady
    where a model fails.
    """
    if sessions is None:
        sessions = Sessions(settings.device, cuda_graphs=settings.cuda_graphs)
    service = _assemble(settings, sessions, registry or CollectorRegistry(), board or Board(), peers)
    app = openapi.Application(service.catalogue, settings, lifespan=_lifespan)
    app.state.service = service

    device = device_name(service.sessions.provider)
    routers = [
        encodings.router(service.catalogue, problems.DEFAULT),
        positions.router(Views(service.scoring), service.lifecycle, settings, problems.DEFAULT),
        resolve.router(RopeResolver(service.catalogue, service.scoring.tables), settings, problems.DEFAULT),
        presets.router(settings, problems.DEFAULT),
        probe.router(service.scoring, service.lifecycle, settings, problems.DEFAULT),
        compare.router(
            Studies(service.scoring.analyst, service.engine),
            service.scoring.limits,
            service.lifecycle,
            settings,
            problems.DEFAULT,
        ),
        health.router(
            service.lifecycle, lambda: service.engine.alive, device, service.telemetry.processes, problems.DEFAULT
        ),
        metrics.router(service.telemetry, peers),
        openapi.router(app),
        playground.router(),
    ]
    attention = Attention(service.scoring, service.engine, service.lifecycle, settings)
    open_inference = v2.OpenInference(
        service.catalogue,
        service.scoring,
        service.lifecycle,
        settings,
        service.statistics,
        lambda: service.engine.alive,
        service.reloading,
        regions,
        peers,
    )
    app.router.routes.append(Route(PATH, attention, methods=["POST"]))  # for the 405; the middleware calls it directly
    for router in routers:
        app.include_router(router)

    routes = [*app.routes, *(route for router in routers for route in router.routes)]
    paths = _Paths(route.path for route in routes if isinstance(route, Route))
    failures.install(app, paths.shown)
    service.telemetry.expect(
        (*paths.all, *v2.METHODS, OTHER),
        (PATH, v2.INFER),
        [one.id for one in service.catalogue.encodings],
        {one.graph.name: one.id for one in service.catalogue.encodings} | service.scoring.analyst.graphs,
        service.sessions.provider,
    )
    observed = partial(
        Observed,
        telemetry=service.telemetry,
        lifecycle=service.lifecycle,
        endpoint=paths.template,
        keys=service.keys,
    )
    app.add_middleware(observed)
    app.state.express = Express(
        attention,
        service.engine,
        service.lifecycle,
        service.telemetry,
        service.statistics,
        settings,
        service.keys,
        None if regions is None else SharedExpress(open_inference, regions, service.engine, service.telemetry),
    )
    if service.keys is not None:
        service.keys.changed.append(app.state.express.forget)
    service.reloading.taken += [service.scoring.forget, attention.forget, app.state.express.forget]
    if settings.cors_origins:
        app.cors = Cors(app.answer, settings.cors_origins, partial(observed, keys=None))
    app.shortcut = observed(app.router, direct={("POST", PATH): attention}, doors={v2.PREFIX: open_inference})
    return app


def device_name(provider: str) -> str:
    """`cpu`, `cuda`."""
    return provider.removesuffix("ExecutionProvider").lower()


def _assemble(
    settings: Settings, sessions: Sessions, registry: CollectorRegistry, board: Board, peers: Peers | None
) -> Service:
    began = time.perf_counter()
    keys = None
    if settings.api_keys_file is not None:
        keys = Keys(settings.api_keys_file, metrics=settings.api_keys_for_metrics)
    catalogue = Catalogue.read(settings.models)
    telemetry = Telemetry(registry, board)
    statistics = Statistics(board=board)
    analyst = Analyst(analysis_folder(settings.models))
    statistics.expect(
        [*(encoding.name for encoding in catalogue.encodings), analyst.rows.name, analyst.pairs.name], SPARE
    )
    policy = policy_for(sessions.provider)
    engine = Engine(
        sessions,
        policy=policy,
        limits=QueueLimits(settings.queue_jobs, settings.queue_cells, settings.request_cells),
        workers=settings.workers or (None if board.processes == 1 else 1),
        observer=Observers(telemetry, statistics),
    )
    scoring = Scoring(
        catalogue,
        Counted(engine, statistics),
        TableCache(sessions, settings.table_cache_bytes // board.processes),
        RequestLimits(cells=settings.request_cells),
        padding=policy if isinstance(policy, GpuPolicy) else None,
        large=Bounds(settings.request_cells, settings.queue_cells, at_once=max(2, engine.workers)),
        analyst=analyst,
    )
    lifecycle = Lifecycle(lambda: engine.health if catalogue.models else "no exported models were found")
    telemetry.describe(version=__version__, onnxruntime=onnxruntime.__version__, device=device_name(sessions.provider))

    def queues() -> dict[str, tuple[int, float]]:
        found = engine.queues()
        for name, (jobs, seconds) in scoring.large.waiting().items():
            others, longest = found.get(name, (0, 0.0))
            found[name] = others + jobs, max(longest, seconds)
        return found

    telemetry.watch(queues=queues, ready=lambda: lifecycle.ready)
    telemetry.loaded(time.perf_counter() - began)
    shelf = SharedShelf()
    reloading = Reloading(
        settings.models,
        catalogue,
        shelf,
        board,
        partial(_attempt, scoring, engine),
        lambda name, digest: sessions.drop(name, keep_digest=digest),
        settings.watch_seconds,
        peers,
    )
    service = Service(settings, catalogue, sessions, engine, scoring, lifecycle, telemetry, statistics, reloading, keys)
    reloading.taken.append(partial(_taken, service))
    return service


async def _attempt(
    scoring: Scoring, engine: Engine, catalogue: Catalogue, encodings: Sequence[Encoding]
) -> dict[str, str]:
    """Why those of these fail that do."""
    candidate, reasons = scoring.of(catalogue), {}
    for one in encodings:
        try:
            await engine.attempt(await candidate.sample(catalogue.models[one.model], one))
        except ServiceError as error:
            reasons[one.name] = f"its warm-up failed: {error.detail}"
    return reasons


def _taken(service: Service) -> None:
    """The catalogue has changed."""
    service.telemetry.know({one.graph.name: one.id for one in service.catalogue.encodings})
    service.telemetry.serve(_sessions(service))
    service.statistics.more(service.reloading.names)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    await service.engine.start()
    began = time.perf_counter()
    try:
        _read_again(service.keys)
        await service.engine.warm_up(await service.scoring.samples())
        await service.scoring.rehearse()
        await service.reloading.start()
        await service.engine.calibrate(await service.scoring.sizes())
        service.statistics.clear()
        service.telemetry.serve(_sessions(service))
        service.telemetry.loaded(time.perf_counter() - began)
        service.lifecycle.warm = True
        traces = _listen(service)
        # One process tells of the device; the others would tell the same.
        first = service.telemetry.board.process == 0
        watch = gpu.follow(service.sessions.provider, service.telemetry.gpu) if first else None
        tasks = [
            asyncio.create_task(_beat(service, app.state.express.shared)),
            asyncio.create_task(service.reloading.follow()),
        ]
        if vitals.known():
            tasks.append(asyncio.create_task(_reclaim(service)))
        if service.keys is not None:
            tasks.append(asyncio.create_task(service.keys.follow()))
        yield
        for task in tasks:
            task.cancel()
        if watch is not None:
            watch.end()
        if traces is not None:
            await asyncio.to_thread(traces.close)
    except NotReady as error:
        logger.critical("the start was given up: %s", error.detail)
        raise
    finally:
        service.lifecycle.drain()
        await service.engine.stop(service.settings.drain_seconds)


def _read_again(keys: Keys | None) -> None:
    """They may be others by now than when this process was forked. Raises NotReady."""
    if keys is None:
        return
    try:
        keys.read()
    except KeysError as error:
        raise NotReady(str(error)) from None


def _listen(service: Service) -> tracing.Tracing | None:
    """Who else is told of each request."""
    if service.settings.access_log:
        service.telemetry.listeners.append(RequestLog())
    if not tracing.wanted():
        return None
    traces = tracing.Tracing()
    service.telemetry.listeners.append(traces)
    return traces


async def _beat(service: Service, shared: SharedExpress | None) -> None:
    """Tells the other processes how this one is. Ends it where only a new one helps and there is one to start it."""
    loop = asyncio.get_running_loop()
    while True:
        service.telemetry.publish()
        if shared is not None:
            shared.sweep()
            shared.regions.sweep()
        if not service.engine.alive and service.telemetry.board.processes > 1:
            os.kill(os.getpid(), signal.SIGTERM)
        due = loop.time() + BEAT
        await asyncio.sleep(BEAT)
        service.telemetry.lagged(max(0.0, loop.time() - due))


async def _reclaim(service: Service) -> None:
    """Gives back what this process needed and needs no more."""
    engine, scoring = service.engine, service.scoring
    sweeps = (scoring.tables.cache.sweep, scoring.sweep)
    reclaim = Reclaim(engine.largest_run, lambda: engine.relieved(service.sessions.give_back), sweeps)
    while True:
        await asyncio.sleep(BEAT)
        await reclaim.look()


def _sessions(service: Service) -> Iterable[SessionLabels]:
    for encoding in service.catalogue.encodings:
        yield SessionLabels(
            encoding.model,
            encoding.id,
            service.sessions.provider,
            str(encoding.document.get("opset", "")),
            encoding.graph.digest,
        )


class _Paths:
    """The templates of all routes, and which one a path belongs to."""

    def __init__(self, templates: Iterable[str]) -> None:
        self.all = tuple(dict.fromkeys(templates))
        self._exact = {path for path in self.all if "{" not in path}
        self._open = [(*re.split(r"\{\w+\}", path, maxsplit=1), path) for path in self.all if "{" in path]

    @property
    def shown(self) -> tuple[str, ...]:
        """Those worth suggesting."""
        return tuple(path for path in self.all if not path.startswith(("/docs/", "/openapi")) and path != "/")

    def template(self, path: str) -> str:
        if path in self._exact:
            return path
        for before, after, template in self._open:
            name = path.removeprefix(before).removesuffix(after)
            if name and path == f"{before}{name}{after}" and "/" not in name:
                return template
        return OTHER
