"""What `/v2` takes and answers, as JSON schemas."""

from __future__ import annotations

from service.routes.schemas import COUNT, FLAG, NUMBER, TEXT, Schema, array, mapping, one_of, record
from service.wire.open_inference_tensors import DATATYPES

NAME: Schema = {"type": "string", "minLength": 1}
_SHAPE = array({"type": "integer", "minimum": -1}, description="-1 where the request decides")
_VALUE: Schema = {"anyOf": [TEXT, NUMBER, FLAG]}
_PARAMETERS = mapping(_VALUE)

ERROR: Schema = {"type": "object", "required": ["error"], "properties": {"error": TEXT}, "additionalProperties": False}
SERVER = record({"name": TEXT, "version": TEXT, "extensions": array(TEXT)})
LIVE = record({"live": FLAG})
READY = record({"live": FLAG, "ready": FLAG})
MODEL_READY = record({"name": TEXT, "ready": FLAG})

_TENSOR = record({"name": NAME, "datatype": TEXT, "shape": _SHAPE})
MODEL = record(
    {"name": NAME, "versions": array(TEXT), "platform": TEXT, "inputs": array(_TENSOR), "outputs": array(_TENSOR)}
)

_CONFIGURED = {"name": NAME, "data_type": TEXT, "dims": _SHAPE}
CONFIG = record(
    {
        "name": NAME,
        "platform": TEXT,
        "backend": TEXT,
        "version_policy": {"type": "object"},
        "max_batch_size": COUNT,
        "input": array(record({**_CONFIGURED, "optional": FLAG})),
        "output": array(record(_CONFIGURED)),
        "dynamic_batching": {"type": "object"},
        "parameters": mapping(record({"string_value": TEXT})),
    }
)

_DURATION = record({"count": COUNT, "ns": COUNT})
_COMPUTE = ("compute_input", "compute_infer", "compute_output")
_INFERENCES = ("success", "fail", "queue", *_COMPUTE, "cache_hit", "cache_miss")
STATISTICS = record(
    {
        "model_stats": array(
            record(
                {
                    "name": NAME,
                    "version": TEXT,
                    "last_inference": {**COUNT, "description": "milliseconds since 1970; 0: none"},
                    "inference_count": COUNT,
                    "execution_count": COUNT,
                    "inference_stats": record(dict.fromkeys(_INFERENCES, _DURATION)),
                    "batch_stats": array(record({"batch_size": COUNT, **dict.fromkeys(_COMPUTE, _DURATION)})),
                }
            )
        )
    }
)

ASK_INDEX = record({}, {"ready": {**FLAG, "description": "only what can be asked now"}})
INDEX = array(record({"name": NAME, "version": TEXT, "state": one_of("READY", "UNAVAILABLE"), "reason": TEXT}))
LOAD = record({}, {"parameters": record({})})
UNLOAD = record({}, {"parameters": record({}, {"unload_dependents": FLAG})})
DONE = record({})

REGION = record({"key": TEXT, "byte_size": {"type": "integer", "minimum": 1}}, {"offset": COUNT})
REGIONS = array(record({"name": TEXT, "key": TEXT, "offset": COUNT, "byte_size": COUNT}))

INFER = record(
    {
        "inputs": array(
            record(
                {
                    "name": {**NAME, "examples": ["embeddings"]},
                    "shape": array(COUNT),
                    "datatype": one_of(*DATATYPES),
                },
                {
                    "data": {"type": ["array", "number", "boolean"], "description": "flat or nested, in C order"},
                    "parameters": _PARAMETERS,
                },
            ),
            maxItems=128,
        )
    },
    {
        "id": {"type": ["string", "null"]},
        "parameters": {"anyOf": [_PARAMETERS, {"type": "null"}]},
        "outputs": {
            "anyOf": [array(record({"name": NAME}, {"parameters": _PARAMETERS}), maxItems=128), {"type": "null"}]
        },
    },
)
INFERRED = record(
    {
        "model_name": NAME,
        "model_version": TEXT,
        "outputs": array(
            record(
                {"name": NAME, "datatype": one_of("FP32", "FP16"), "shape": array(COUNT)},
                {"data": array({"type": ["number", "null"]}), "parameters": _PARAMETERS},
            )
        ),
    },
    {"id": TEXT, "parameters": _PARAMETERS},
)
