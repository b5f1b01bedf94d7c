# mypy: disable-error-code="import-not-found, misc, untyped-decorator, attr-defined, no-untyped-call"
"""The model behind Ray Serve: `@serve.batch` in a deployment of as many replicas as there are cores.

`max_ongoing_requests` is above the load, or Serve would hold requests back before they can be batched. The variables
its performance guide recommends (`RAY_SERVE_*`) are set by whoever starts this.
"""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import ray
from model import Model, Settings, array
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

settings = Settings()


@serve.deployment(
    num_replicas=settings.workers,
    max_ongoing_requests=256,
    ray_actor_options={"num_cpus": 0},
    logging_config={"enable_access_log": False},
)
class Weights:
    def __init__(self, folder: Path) -> None:
        self.model = Model(folder)

    @serve.batch(max_batch_size=settings.batch, batch_wait_timeout_s=settings.wait_ms / 1e3)
    async def weights(self, embeddings: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        return list(self.model(np.stack(embeddings)))

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        if request.headers["content-type"] == "application/json":
            weights = await self.weights(np.array(orjson.loads(body)["embeddings"], dtype=np.float32))
            text = orjson.dumps({"weights": weights}, option=orjson.OPT_SERIALIZE_NUMPY)
            return Response(text, media_type="application/json")
        weights = await self.weights(array(body))
        return Response(weights.tobytes(), media_type="application/octet-stream")


if __name__ == "__main__":
    ray.init(
        num_cpus=settings.workers,
        include_dashboard=False,
        object_store_memory=200 << 20,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": settings.port})
    serve.run(Weights.bind(settings.folder), route_prefix="/weights")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()
