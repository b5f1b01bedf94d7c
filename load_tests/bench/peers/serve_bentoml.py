# mypy: disable-error-code="import-not-found, misc, untyped-decorator, no-any-return"
"""The model behind BentoML: a `batchable` method, dispatched adaptively up to `max_batch_size` within `max_latency_ms`.

JSON is BentoML's own: the method is the endpoint. It reads no raw numbers over HTTP (its pickle is for its own
processes), so binary bodies go through an ASGI application in front, joined to the same service by `depends`.
"""

from __future__ import annotations

from typing import Annotated, Any

import bentoml
import numpy as np
from bentoml.validators import DType, Shape
from model import HEADS, TOKENS, WIDTH, Model, Settings, array
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

settings = Settings()
common: dict[str, Any] = {
    "workers": settings.workers,
    "http": {"host": "127.0.0.1", "port": settings.port},
    "traffic": {"timeout": 60},
    "logging": {"access": {"enabled": False}},
    "metrics": {"enabled": False},
}
Embeddings = Annotated[np.ndarray, DType("float32"), Shape((-1, TOKENS, WIDTH))]
Weights = Annotated[np.ndarray, DType("float32"), Shape((-1, HEADS, TOKENS, TOKENS))]


@bentoml.service(**common)
class Json:
    def __init__(self) -> None:
        self.model = Model(settings.folder)

    @bentoml.api(
        route="/weights",
        batchable=True,
        batch_dim=0,
        max_batch_size=settings.batch,
        max_latency_ms=int(settings.wait_ms),
    )
    def weights(self, embeddings: Embeddings) -> Weights:
        return self.model(embeddings)


async def weights(request: Request) -> Response:
    service = bentoml.get_current_service()
    answer = await service.batcher.to_async.weights(array(await request.body())[None])
    return Response(answer.tobytes(), media_type="application/octet-stream")


@bentoml.service(**common)
@bentoml.asgi_app(Starlette(routes=[Route("/weights", weights, methods=["POST"])]))
class Binary:
    batcher = bentoml.depends(Json)
