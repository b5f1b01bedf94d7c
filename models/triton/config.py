"""What Triton has to be told about a model: its `config.pbtxt`, a `ModelConfig` in protobuf's text format."""

from __future__ import annotations

import json
from collections.abc import Mapping

import onnx

from models.triton.composed import Composed, Tensor

TYPES: Mapping[int, str] = {onnx.TensorProto.FLOAT: "TYPE_FP32", onnx.TensorProto.BOOL: "TYPE_BOOL"}


def config(name: str, composed: Composed, max_batch: int, about: Mapping[str, str]) -> str:
    """The text of a `config.pbtxt`. Sizes leave out the batch, which Triton adds, and are -1 where a request decides.

    `about` become parameters, which Triton shows with the configuration and makes no use of.
    """
    return (
        f"name: {_quoted(name)}\n"
        'backend: "onnxruntime"\n'
        f"max_batch_size: {max_batch}\n"
        + _tensors("input", composed.inputs)
        + _tensors("output", composed.outputs)
        + "# Requests that wait together share a run where they have as many tokens: shapes are never padded here.\n"
        "dynamic_batching { }\n"
        + "".join(
            f"parameters {{\n  key: {_quoted(key)}\n  value {{ string_value: {_quoted(value)} }}\n}}\n"
            for key, value in about.items()
        )
    )


def _tensors(kind: str, tensors: tuple[Tensor, ...]) -> str:
    entries = [
        f"  {{\n    name: {_quoted(tensor.name)}\n    data_type: {TYPES[tensor.kind]}\n"
        f"    dims: [ {', '.join(str(size) if isinstance(size, int) else '-1' for size in tensor.shape[1:])} ]\n  }}"
        for tensor in tensors
    ]
    return f"{kind} [\n" + ",\n".join(entries) + "\n]\n"


def _quoted(text: str) -> str:
    """As JSON has it, which protobuf's text format reads too."""
    return json.dumps(text)
