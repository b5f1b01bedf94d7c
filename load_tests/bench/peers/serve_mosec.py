# mypy: disable-error-code="import-not-found, misc, no-any-return"
"""The model behind mosec: `append_worker(num, max_batch_size, max_wait_time)`, `deserialize` and `serialize`.

mosec's own JSON is the standard library's; orjson in its place is what its documentation calls customisation.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import orjson
from model import Model, Settings, array
from mosec import Server, Worker

settings = Settings()


class Binary(Worker):
    """float32 in, float32 out."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(settings.folder)

    def deserialize(self, data: bytes) -> np.ndarray[Any, Any]:
        return array(data)

    def forward(self, data: Any) -> Any:
        """A list of embeddings, or one where batches are of 1."""
        return self.model(data[None])[0] if settings.batch == 1 else list(self.model(np.stack(data)))

    def serialize(self, data: np.ndarray[Any, Any]) -> bytes:
        return data.tobytes()


class Json(Binary):
    """The same with numbers as text."""

    resp_mime_type = "application/json"

    def deserialize(self, data: bytes) -> np.ndarray[Any, Any]:
        return np.array(orjson.loads(data)["embeddings"], dtype=np.float32)

    def serialize(self, data: np.ndarray[Any, Any]) -> bytes:
        return orjson.dumps({"weights": data}, option=orjson.OPT_SERIALIZE_NUMPY)


if __name__ == "__main__":
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", str(settings.port), "--log-level", "error"]
    server = Server()
    server.append_worker(
        Json if settings.format == "json" else Binary,
        num=settings.workers,
        max_batch_size=settings.batch,
        max_wait_time=int(settings.wait_ms),
        route="/weights",
    )
    server.run()
