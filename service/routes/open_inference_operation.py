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
from service.routes import open_inference_schemas as told
from service.routes import problems, samples
from service.routes.open_inference import INFER, LOAD, METHODS, MODEL, PREFIX, UNLOAD
from service.routes.schemas import BINARY, Schema
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
        "content": {media.JSON: {"schema": told.ERROR}},
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
_BODIES: Mapping[str, Mapping[str, Any]] = {
    regions.ONE_REGISTER: {"schema": told.REGION, "example": {"key": "/embeddings", "offset": 0, "byte_size": 4096}},
    INDEX: {"schema": told.ASK_INDEX, "example": {"ready": True}},
    LOAD: {"schema": told.LOAD, "example": {}},
    UNLOAD: {"schema": told.UNLOAD, "example": {}},
}
_OPTIONAL = (INDEX, LOAD, UNLOAD)
"""Whose body may be left out."""
_ANSWERS: Mapping[str, Schema] = {
    PREFIX: told.SERVER,
    "/v2/health/live": told.LIVE,
    "/v2/health/ready": told.READY,
    "/v2/models/stats": told.STATISTICS,
    MODEL: told.MODEL,
    f"{MODEL}/ready": told.MODEL_READY,
    f"{MODEL}/config": told.CONFIG,
    f"{MODEL}/stats": told.STATISTICS,
    INFER: told.INFERRED,
    INDEX: told.INDEX,
    LOAD: told.DONE,
    UNLOAD: told.DONE,
    regions.STATUS: told.REGIONS,
    regions.ONE_STATUS: told.REGIONS,
}
"""Those that are missing have no body."""
_BINARY = {"schema": BINARY}


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
        "responses": _responses(_content(template), *_FAILURES.get(template, ())),
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
    if template in _BODIES:
        operation["requestBody"] = {
            "required": template not in _OPTIONAL,
            "content": {media.JSON: dict(_BODIES[template])},
        }
    if template == INFER:
        operation["description"] = DESCRIPTION
        content = {media.JSON: {"schema": told.INFER, "example": example()}, media.OCTETS: _BINARY}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _content(template: str) -> dict[str, Any]:
    schema = _ANSWERS.get(template)
    content = {} if schema is None else {media.JSON: {"schema": schema}}
    return {**content, media.OCTETS: _BINARY} if template == INFER else content


def _responses(content: dict[str, Any], *failures: type[ServiceError]) -> dict[str, Any]:
    failing = {
        str(failure.status): {**_ERROR["default"], "description": problems.description(failure)}
        for failure in sorted(failures, key=lambda one: one.status)
    }
    answer = {"description": "As the protocol has it.", **({"content": content} if content else {})}
    return {"200": answer, **failing, **_ERROR}
