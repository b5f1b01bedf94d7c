"""`/v2`: the Open Inference Protocol, version 2, as Triton's clients speak it. Plain ASGI, like `POST /attention`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from service.catalogue import Catalogue
from service.errors import (
    InvalidInput,
    MalformedBody,
    MethodNotAllowed,
    NotFound,
    NotReady,
    ServiceError,
    Unsupported,
)
from service.exchange import Exchange
from service.lifecycle import Lifecycle
from service.peers import Peers
from service.reloading import Reloading
from service.routes import open_inference_regions as regions
from service.routes import upload
from service.routes.open_inference_infer import Infer
from service.routes.open_inference_models import EXTENSIONS, VERSION, ServedModel, ServedModels, server
from service.routes.open_inference_statistics import Statistics
from service.routes.open_inference_sums import summed
from service.routes.query import check_names
from service.scoring import Scoring
from service.settings import Settings
from service.shared_memory.regions import Regions
from service.telemetry import OTHER, UNKNOWN
from service.wire import media
from service.wire import open_inference as wire

PREFIX = "/v2"
MODEL = "/v2/models/{model}"
INFER = f"{MODEL}/infer"
LOAD, UNLOAD = "/v2/repository/models/{model}/load", "/v2/repository/models/{model}/unload"
GET, POST = ("GET", "HEAD"), ("POST",)
METHODS: dict[str, tuple[str, ...]] = {
    PREFIX: GET,
    "/v2/health/live": GET,
    "/v2/health/ready": GET,
    "/v2/models/stats": GET,
    MODEL: GET,
    f"{MODEL}/ready": GET,
    f"{MODEL}/config": GET,
    f"{MODEL}/stats": GET,
    INFER: POST,
    "/v2/repository/index": POST,
    LOAD: POST,
    UNLOAD: POST,
    **regions.METHODS,
}
"""The methods of every endpoint, by its template. A version in the path makes no other endpoint."""

_OF_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]{1,20}))?(/ready|/config|/stats|/infer)?")
_OF_REPOSITORY = re.compile(r"/v2/repository/models/([^/]+)(/load|/unload)")
_EXTENSION = re.compile(r"/v2/(?:models/[^/]+/)?(trace|logging|cudasharedmemory)(?:/.*)?")


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names."""

    template: str
    model: str = ""
    version: str | None = None
    region: str = ""

    @classmethod
    def of(cls, path: str) -> Target | None:
        """None where there is nothing."""
        if path in METHODS:
            return cls(path)
        if path == f"{PREFIX}/":
            return cls(PREFIX)
        if found := _OF_MODEL.fullmatch(path):
            return cls(MODEL + (found[3] or ""), found[1], found[2])
        if found := _OF_REPOSITORY.fullmatch(path):
            return cls(LOAD if found[2] == "/load" else UNLOAD, found[1])
        if named := regions.named(path):
            return cls(named[0], region=named[1])
        return None


class OpenInference:
    """All of `/v2`. `alive` is False where only a new process helps; `shared` is None where no memory is shared."""

    def __init__(
        self,
        catalogue: Catalogue,
        scoring: Scoring,
        lifecycle: Lifecycle,
        settings: Settings,
        statistics: Statistics,
        alive: Callable[[], bool],
        reloading: Reloading,
        shared: Regions | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.reloading = reloading
        self.peers = peers
        self.models = ServedModels(catalogue)
        self.lifecycle = lifecycle
        self.settings = settings
        self.statistics = statistics
        self.alive = alive
        self.infer = Infer(scoring, lifecycle, settings, statistics, shared)
        self.shared_memory = regions.SharedMemory(shared, settings)
        self.extensions = EXTENSIONS if shared is None else (*EXTENSIONS, regions.EXTENSION)

    def endpoint(self, path: str) -> str:
        """The route template, for the metrics."""
        target = Target.of(path)
        return OTHER if target is None else target.template

    def failure(self, error: ServiceError) -> tuple[int, str, bytes]:
        """Status, content type and body of a failure: `{"error": "..."}`, whatever failed."""
        status, content = wire.encode_failure(error)
        return status, media.JSON, content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        target = Target.of(path)
        if target is None:
            raise _nothing(path, self.extensions)
        if method not in METHODS[target.template]:
            raise MethodNotAllowed(method, METHODS[target.template])
        check_names(scope["query_string"], ())
        if target.template == INFER:
            exchange = Exchange.of(scope)
            exchange.encoding = UNKNOWN
            served = self.models.find(target.model, target.version)
            exchange.encoding = served.encoding.id
            await self.infer(scope, receive, send, served)
        elif target.template in regions.METHODS:
            await _answer(send, method, await self.shared_memory(scope, receive, target.template, target.region))
        elif method == "POST":
            await _answer(send, method, await self._repository(scope, receive, target))
        else:
            await _answer(send, method, await self._described(target))

    async def _described(self, target: Target) -> Any:
        """What a GET is answered with."""
        match target.template:
            case "/v2":
                return server(self.extensions)
            case "/v2/health/live":
                if not self.alive():
                    raise NotReady("a worker thread of the engine has died; the process must be restarted")
                return {"live": True}
            case "/v2/health/ready":
                self._check_ready()
                return {"live": True, "ready": True}
            case "/v2/models/stats":
                return await self._statistics(self.models.all)
        served = self.models.find(target.model, target.version)
        match target.template.removeprefix(MODEL):
            case "/ready":
                self._check_ready()
                return {"name": served.name, "ready": True}
            case "/config":
                return served.config()
            case "/stats":
                return await self._statistics([served])
            case _:
                return served.metadata()

    def _check_ready(self) -> None:
        refusal = self.lifecycle.refusal()
        if refusal is not None:
            raise refusal

    async def _statistics(self, models: list[ServedModel]) -> dict[str, Any]:
        names = [one.name for one in models]
        if self.peers is None:
            return {"model_stats": [self.statistics.report(name, VERSION) for name in names]}
        return {"model_stats": list(map(summed, zip(*await self.peers.statistics(names), strict=True)))}

    async def _repository(self, scope: Scope, receive: Receive, target: Target) -> Any:
        body = await upload.read(scope, receive, self.settings.max_body_bytes, self.settings.body_seconds)
        if target.template in (LOAD, UNLOAD):
            _check_parameters(body, unloading=target.template == UNLOAD)
            change = self.reloading.load if target.template == LOAD else self.reloading.unload
            await change(target.model)
            return {}
        return self.models.index(self.lifecycle.refusal(), ready=_ready_only(body))


def _ready_only(body: bytes | bytearray) -> bool:
    """`{"ready": bool}`, or nothing."""
    if not body:
        return False
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedBody(f"the body is not JSON{media.not_json(body, error)}") from None
    if not isinstance(document, dict) or not set(document) <= {"ready"}:
        raise InvalidInput('the body must be empty or {"ready": true or false}')
    ready = document.get("ready", False)
    if not isinstance(ready, bool):
        raise InvalidInput("ready must be true or false", pointer="/ready")
    return ready


def _check_parameters(body: bytes | bytearray, *, unloading: bool) -> None:
    """`{"parameters": {...}}`, or nothing. Files are what is in the folders, so none are taken from a request."""
    if not body:
        return
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedBody(f"the body is not JSON{media.not_json(body, error)}") from None
    parameters = document.get("parameters", {}) if isinstance(document, dict) else None
    if not isinstance(parameters, dict) or set(document) - {"parameters"}:
        raise InvalidInput('the body must be empty or {"parameters": {...}}')
    allowed = {"unload_dependents"} if unloading else set()
    if unknown := sorted(set(parameters) - allowed):
        raise InvalidInput(
            f"the parameter {unknown[0]!r} is not taken: models are the files in the folders of ATTENTION_MODELS, "
            "as they are there",
            pointer=f"/parameters/{unknown[0]}",
        )
    for name, value in parameters.items():
        if not isinstance(value, bool):
            raise InvalidInput(f"the parameter {name} must be true or false", pointer=f"/parameters/{name}")


def _nothing(path: str, extensions: Sequence[str]) -> ServiceError:
    if found := _EXTENSION.fullmatch(path):
        why = ": no client may have a GPU's memory in common with the service" if found[1].startswith("cuda") else ""
        return Unsupported(f"the extension of {found[1]} is not offered{why}; offered: {', '.join(extensions)}")
    return NotFound(f"there is no {path[:200]!r}; there are {', '.join(METHODS)}")


async def _answer(send: Send, method: str, document: Any) -> None:
    """None: with an empty body."""
    content = b"" if document is None else orjson.dumps(document)
    headers = [(b"content-length", str(len(content)).encode()), (b"cache-control", b"no-store")]
    if document is not None:
        headers.insert(0, (b"content-type", media.JSON.encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else content})
