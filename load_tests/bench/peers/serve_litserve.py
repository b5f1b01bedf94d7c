# mypy: disable-error-code="import-not-found, misc, no-any-return, override"
"""The model behind LitServe: `max_batch_size` and `batch_timeout` of the LitAPI, `workers_per_device` of the server.

A LitAPI reads JSON or a form unless its `decode_request` declares another type, here the body's bytes. Its answers are
made by FastAPI's encoder unless it returns a response of its own, as here: the encoder takes many times as long.
"""

from __future__ import annotations

from typing import Annotated, Any

import litserve
import numpy as np
import orjson
from fastapi import Body, Request, Response
from model import Model, Settings, array

settings = Settings()


class Binary(litserve.LitAPI):
    """float32 in, float32 out."""

    def setup(self, device: str) -> None:
        self.model = Model(settings.folder)

    def decode_request(self, request: Annotated[bytes, Body()]) -> np.ndarray[Any, Any]:
        return array(request)

    def batch(self, inputs: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        return np.stack(inputs)

    def predict(self, batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Of a batch, or of one where batches are of 1."""
        return self.model(batch[None])[0] if settings.batch == 1 else self.model(batch)

    def unbatch(self, output: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        return list(output)

    def encode_response(self, output: np.ndarray[Any, Any]) -> Response:
        return Response(output.tobytes(), media_type="application/octet-stream")


class Json(Binary):
    """The same with numbers as text."""

    def decode_request(self, request: Request) -> np.ndarray[Any, Any]:
        return np.array(request["embeddings"], dtype=np.float32)

    def encode_response(self, output: np.ndarray[Any, Any]) -> Response:
        body = orjson.dumps({"weights": output}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")


# `decode_request` is read by FastAPI, which needs types and not their names.
Binary.decode_request.__annotations__["request"] = Annotated[bytes, Body()]
Json.decode_request.__annotations__["request"] = Request

if __name__ == "__main__":
    api = Json if settings.format == "json" else Binary
    server = litserve.LitServer(
        api(max_batch_size=settings.batch, batch_timeout=settings.wait_ms / 1e3, api_path="/weights"),
        accelerator="cpu",
        workers_per_device=settings.workers,
        fast_queue=True,
    )
    server.run(host="127.0.0.1", port=settings.port, log_level="error", generate_client_file=False, access_log=False)
