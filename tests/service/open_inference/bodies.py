"""Requests of the Open Inference Protocol, written by hand."""

from __future__ import annotations

import http.client
from typing import Any

import numpy as np
import orjson
import safetensors.numpy

from service.wire import media
from tests.service import samples

Array = np.ndarray[Any, np.dtype[Any]]

DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
LENGTH = "inference-header-content-length"
X = np.random.default_rng(7).standard_normal((2, 5, 8)).astype(np.float32)
WIDE = np.random.default_rng(8).standard_normal((1, 5, 64)).astype(np.float32)
"""For the model tiny, which has 4 heads of 16."""


def tensor(name: str, array: Array, *, binary: bool = False, flat: bool = False) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": DATATYPES[array.dtype.name]}
    if binary:
        return {**described, "parameters": {"binary_data_size": array.nbytes}}
    return {**described, "data": (array.reshape(-1) if flat else array).tolist()}


def json_body(*inputs: dict[str, Any], **members: Any) -> bytes:
    return orjson.dumps({"inputs": inputs or [tensor("embeddings", X)], **members})


def binary_body(arrays: dict[str, Array], **members: Any) -> tuple[bytes, dict[str, str]]:
    """The body and the header that says where its JSON ends."""
    text = json_body(*(tensor(name, array, binary=True) for name, array in arrays.items()), **members)
    return text + b"".join(array.tobytes() for array in arrays.values()), {LENGTH: str(len(text))}


def read_binary(content: bytes, length: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """The JSON part of an answer, and its tensors, in whichever form they came."""
    document = orjson.loads(content[: int(length)])
    dtypes = {"FP32": np.float32, "FP16": np.float16}
    arrays, start = {}, int(length)
    for output in document["outputs"]:
        dtype = dtypes[output["datatype"]]
        if "data" in output:
            flat: Array = np.array(output["data"], dtype=dtype)
        else:
            size = output["parameters"]["binary_data_size"]
            flat = np.frombuffer(content[start : start + size], dtype=dtype)
            start += size
        arrays[output["name"]] = flat.reshape(output["shape"])
    assert start == len(content)
    return document, arrays


def attention(port: int, query: str, **arrays: Array) -> dict[str, Array]:
    """What `POST /attention` answers, by the names of this protocol's outputs."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        headers = {"content-type": media.NPZ, "accept": media.SAFETENSORS}
        everything = "return=weights,scores,terms,output"
        connection.request("POST", f"/attention?{everything}&{query}", samples.npz(**arrays), headers)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    assert answer.status == 200, content
    named = safetensors.numpy.load(content)
    return {name.partition("/")[2].replace("terms/", "term."): array for name, array in named.items()}
