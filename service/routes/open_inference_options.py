"""The `parameters` and `outputs` of an inference request, in the words of scoring. An unknown name is an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.errors import InvalidInput, UnknownName
from service.records import AttentionInput, AttentionOptions
from service.routes.open_inference_models import ServedModel
from service.wire.body import DType
from service.wire.open_inference import TERM, InferRequest, RequestedOutput, Value
from service.wire.pointer import pointer

REQUEST_PARAMETERS = ("heads", "causal", "timeout", "priority", "dtype", "binary_data_output")
DTYPES: dict[str, DType] = {"fp32": "float32", "float32": "float32", "fp16": "float16", "float16": "float16"}
_NOT_OFFERED = {
    "sequence_id": "sequences",
    "sequence_start": "sequences",
    "sequence_end": "sequences",
}


@dataclass(frozen=True, slots=True)
class InferOptions:
    """What scoring is asked, and how its answer is written. `timeout` is in seconds, None where there is none."""

    attention: AttentionOptions
    outputs: tuple[RequestedOutput, ...]
    binary: bool
    dtype: DType
    timeout: float | None

    def json_cells(self, input: AttentionInput, heads: int) -> int:
        """How many numbers of the answer are to be written as JSON."""
        queries = input.embeddings if input.embeddings is not None else input.queries
        keys = input.embeddings if input.embeddings is not None else input.keys
        assert queries is not None
        assert keys is not None
        batch = len(queries) if queries.ndim == 3 else 1
        rows = batch * queries.shape[-2]
        sizes = (
            rows * (queries.shape[-1] if output.name == "output" else heads * keys.shape[-2])
            for output in self.outputs
            if output.sent_in_binary(self.binary) is False
        )
        return sum(sizes)


def read(request: InferRequest, served: ServedModel) -> InferOptions:
    """Raises InvalidInput, UnknownName. Values of the encoding's own parameters are checked by scoring."""
    given = dict(request.parameters)
    heads = _heads(given.pop("heads", None))
    causal = _flag(given, "causal")
    binary = _flag(given, "binary_data_output") or False
    timeout = _count(given, "timeout", "microseconds")
    _count(given, "priority", "1 is the highest, 0 the default")
    dtype = _dtype(given.pop("dtype", "FP32"))
    outputs = _outputs(request, served)
    if dtype == "float16":
        _check_binary(outputs, binary)
    attention = AttentionOptions(
        encoding=served.encoding.id,
        model=served.model.name,
        heads=heads,
        causal=causal,
        returns=tuple(dict.fromkeys("terms" if one.name.startswith(TERM) else one.name for one in outputs)),
        scalars=_scalars(given, served),
        half=dtype == "float16",
    )
    return InferOptions(attention, outputs, binary, dtype, timeout * 1e-6 if timeout else None)


def _outputs(request: InferRequest, served: ServedModel) -> tuple[RequestedOutput, ...]:
    if not request.outputs:
        return tuple(RequestedOutput(name) for name in served.output_names)
    for output in request.outputs:
        if output.name not in served.output_names:
            at = f"/outputs{pointer(output.name[:80])}"
            raise UnknownName("output", output.name, served.output_names, pointer=at)
    return request.outputs


def _scalars(given: Mapping[str, Value], served: ServedModel) -> dict[str, str]:
    """Parameters of the encoding by dotted name: `theta` and `rope.theta` are the same."""
    encoding = served.encoding
    scalars: dict[str, str] = {}
    for name, value in given.items():
        at = f"/parameters{pointer(name[:80])}"
        if name in _NOT_OFFERED:
            raise InvalidInput(f"{name}: {_NOT_OFFERED[name]} are not offered; each request stands alone", pointer=at)
        dotted = name if "." in name else f"{encoding.id}.{name}"
        if "." not in name and encoding.parameter(name) is None:
            known = [*REQUEST_PARAMETERS, *(parameter.name for parameter in encoding.parameters)]
            raise UnknownName("request parameter", name, known, pointer=at)
        if dotted in scalars:
            raise InvalidInput(f"{dotted[:80]} is given twice; give it once", pointer=at)
        scalars[dotted] = str(value).lower() if isinstance(value, bool) else str(value)
    return scalars


def _heads(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise InvalidInput(f"heads is {value!r:.80}; it is a whole number from 1 on", pointer="/parameters/heads")
    return value


def _flag(given: dict[str, Value], name: str) -> bool | None:
    value = given.pop(name, None)
    if value is None or isinstance(value, bool):
        return value
    raise InvalidInput(f"{name} is {value!r:.80}; it is true or false", pointer=f"/parameters/{name}")


def _count(given: dict[str, Value], name: str, meaning: str) -> int:
    value = given.pop(name, 0)
    if type(value) is not int or value < 0:
        raise InvalidInput(
            f"{name} is {value!r:.80}; it is a whole number from 0 on ({meaning})", pointer=f"/parameters/{name}"
        )
    return value


def _dtype(value: Value) -> DType:
    found = DTYPES.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise UnknownName("dtype", str(value), ["FP32", "FP16"], pointer="/parameters/dtype")
    return found


def _check_binary(outputs: tuple[RequestedOutput, ...], binary: bool) -> None:
    for output in outputs:
        if output.sent_in_binary(binary) is False:
            raise InvalidInput(
                f"dtype FP16 is written as binary data only, but {output.name} is asked for as JSON; set "
                "binary_data_output (or the output's binary_data) to true",
                pointer="/parameters/dtype",
            )
