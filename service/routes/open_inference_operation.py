"""`/v2` in the words of OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.errors import (
    DeadlineExceeded,
    Draining,
    Forbidden,
    InvalidInput,
    NotFound,
    NotReady,
    Overloaded,
    ServiceError,
    Unsupported,
)
from service.routes import open_inference_regions as regions
from service.routes import problems, samples
from service.routes.open_inference import INFER, LOAD, METHODS, MODEL, PREFIX, UNLOAD
from service.wire import media

TAG = "open inference protocol"
INDEX = "/v2/repository/index"
SUMMARIES = {
    PREFIX: "The server and its extensions",
    "/v2/health/live": "Is the process alive?",
    "/v2/health/ready": "Does the process take work?",
    "/v2/models/stats": "Statistics of every model",
    MODEL: "A model's inputs and outputs",
    f"{MODEL}/ready": "Can this model be asked?",
    f"{MODEL}/config": "A model's configuration, as Triton words it",
    f"{MODEL}/stats": "Statistics of a model",
    INFER: "Attention under one encoding, from tensors to tensors",
    INDEX: "Every model, and what is not served and why",
    LOAD: "Serve a model, or one of its encodings, as its files are now",
    UNLOAD: "Serve a model, or one of its encodings, no longer",
    regions.STATUS: "Shared memory: every region that is registered",
    regions.ONE_STATUS: "Shared memory: one region",
    regions.ONE_REGISTER: "Shared memory: name a part of an object",
    regions.ONE_UNREGISTER: "Shared memory: forget one region",
    regions.UNREGISTER: "Shared memory: forget every region",
}
DESCRIPTION = """
The same scoring as `POST /attention`, for clients of Triton and KServe. A model is an encoding of a model,
`identity.rope`; aliases work too, and so does `/v2/models/{model}/versions/1/...`.

**Inputs.** `embeddings` ([batch, tokens, width]; without a batch axis the outputs have none), or `queries` and `keys`;
`positions` or `query_positions` and `key_positions`, `mask`; arrays of the encoding as `parameter.<name>` (or
`t5.bias`). JSON data nested or flat; binary data as the binary tensor extension has it. FP16 and BF16 are binary only.

**Outputs.** `weights`, `scores`, `output`, `term.<name>`: all of them where none is named. Each is JSON unless its
parameter `binary_data` or the request's `binary_data_output` is true.

**Parameters.** The encoding's own of one number or word, as `theta` or `rope.theta`; `heads`; `causal`; `dtype` (`FP32`
or `FP16`, the latter binary only); `timeout` in microseconds, a deadline of the request's own; `priority`, which is
taken and changes nothing: the queue serves first what came first. Any other is refused by its name.

**Shared memory.** Where ATTENTION_SHARED_MEMORY allows it, clients on the same machine may have inputs and outputs in
regions that they register under `/v2/systemsharedmemory`: `shared_memory_region`, `shared_memory_byte_size` and
`shared_memory_offset` among a tensor's parameters, as Triton's extension has it.

Bodies may come compressed (gzip, deflate). Answers are compressed where `Accept-Encoding` asks for it, those with
binary tensors only where it names a single coding. Every failure is `{"error": "..."}`.
"""

_ERROR = {
    "default": {
        "description": "A failure.",
        "content": {
            media.JSON: {
                "schema": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
            }
        },
    }
}
_READING = tuple(failure for failure in problems.COMMON if failure is not InvalidInput)
_SHARING = (Unsupported, Forbidden)
_FAILURES: Mapping[str, tuple[type[ServiceError], ...]] = {
    INFER: (*_READING, Forbidden, NotFound, Overloaded, Draining, DeadlineExceeded),
    INDEX: _READING,
    regions.STATUS: _SHARING,
    regions.UNREGISTER: _SHARING,
    regions.ONE_STATUS: (*_SHARING, NotFound),
    regions.ONE_UNREGISTER: (*_SHARING, NotFound),
    regions.ONE_REGISTER: (*_SHARING, *_READING),
    LOAD: (*_READING, NotReady),
    UNLOAD: (*_READING, NotReady),
}
"""What is wrong with a request is 400 in this protocol, where it is 422 elsewhere."""
_REGION = {
    "schema": {
        "type": "object",
        "required": ["key", "byte_size"],
        "properties": {"key": {"type": "string"}, "offset": {"type": "integer"}, "byte_size": {"type": "integer"}},
    },
    "example": {"key": "/embeddings", "offset": 0, "byte_size": 4096},
}
_LIST = {media.JSON: {"schema": {"type": "array", "items": {"type": "object"}}}}
_JSON = {media.JSON: {"schema": {"type": "object"}}}
_BINARY = {"schema": {"type": "string", "format": "binary"}}


def paths() -> dict[str, Any]:
    """The path items."""
    return {template: {methods[0].lower(): _operation(template)} for template, methods in METHODS.items()}


def example() -> dict[str, Any]:
    """The body of a request that works under the default model."""
    shape = [1, *samples.array().shape]
    embeddings = {"name": "embeddings", "shape": shape, "datatype": "FP32", "data": [samples.EMBEDDINGS]}
    return {"inputs": [embeddings], "outputs": [{"name": "weights"}]}


def _operation(template: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "tags": [TAG],
        "summary": SUMMARIES[template],
        "responses": _responses(_LIST if template == INDEX else _JSON, *_FAILURES.get(template, ())),
    }
    if "{model}" in template:
        model = {
            "name": "model",
            "in": "path",
            "required": True,
            "schema": {"type": "string"},
            "example": "identity.rope",
        }
        operation["parameters"] = [model]
    if "{region}" in template:
        operation["parameters"] = [{"name": "region", "in": "path", "required": True, "schema": {"type": "string"}}]
    if template == regions.ONE_REGISTER:
        operation["requestBody"] = {"required": True, "content": {media.JSON: _REGION}}
    if template == INFER:
        operation["description"] = DESCRIPTION
        schema = {"type": "object", "required": ["inputs"]}
        content = {media.JSON: {"schema": schema, "example": example()}, media.OCTETS: _BINARY}
        operation["requestBody"] = {"required": True, "content": content}
        operation["responses"] = _responses({**_JSON, media.OCTETS: _BINARY}, *_FAILURES[INFER])
    return operation


def _responses(content: dict[str, Any], *failures: type[ServiceError]) -> dict[str, Any]:
    told = {
        str(failure.status): {**_ERROR["default"], "description": problems.description(failure)}
        for failure in sorted(failures, key=lambda one: one.status)
    }
    return {"200": {"description": "As the protocol has it.", "content": content}, **told, **_ERROR}
