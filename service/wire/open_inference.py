"""The Open Inference Protocol (version 2) with the binary tensor extension: bodies to requests, results to bodies.

A body is a JSON document, and behind it the bytes of those tensors whose `binary_data_size` it states, in its order and
with nothing between them. The header `Inference-Header-Content-Length` says where the JSON ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import orjson

from service.errors import InvalidInput, MalformedBody, PayloadTooLarge, ServiceError, UnknownName
from service.records import AttentionInput, ScoringResult
from service.wire import media
from service.wire import open_inference_places as places
from service.wire import open_inference_tensors as tensors
from service.wire.arrays import Array
from service.wire.json import BLOCK, MAX_LISTS
from service.wire.members import EMBEDDINGS, POSITIONS, Members, assemble
from service.wire.open_inference_places import Memory, Place
from service.wire.pointer import pointer

HEADER_LENGTH = "Inference-Header-Content-Length"
INPUTS = (*EMBEDDINGS, *POSITIONS, "mask")
PARAMETER = "parameter."
"""`parameter.<name>` is that parameter of the encoding the model is named by."""
MATRICES = ("weights", "scores", "output")
TERM = "term."
MAX_TENSORS = 128

Datatype = Literal["FP32", "FP16"]
Value = str | int | float | bool

_NOT_JSON = re.compile(rb"NaN|Infinity")
_MEMBERS = ("id", "parameters", "inputs", "outputs")
_INPUT_MEMBERS = ("name", "shape", "datatype", "parameters", "data")
_OUTPUT_MEMBERS = ("name", "parameters")


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """`binary` is None where the request as a whole decides. With a `place` it comes neither as JSON nor as bytes."""

    name: str
    binary: bool | None = None
    place: Place | None = None

    def sent_in_binary(self, by_default: bool) -> bool | None:
        """None where it is not sent at all."""
        if self.place is not None:
            return None
        return by_default if self.binary is None else self.binary


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A decoded body; names of inputs, outputs and parameters still unchecked. No outputs are all outputs."""

    arrays: Mapping[str, Array]
    outputs: tuple[RequestedOutput, ...] = ()
    parameters: Mapping[str, Value] = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """A body taken apart: its JSON, still unchecked, and what follows."""

    document: Any
    binary: memoryview

    @property
    def shared_bytes(self) -> int:
        """How many bytes of inputs are said to lie in shared memory."""
        try:
            sizes = [one["parameters"].get(places.SIZE, 0) for one in self.document["inputs"] if "parameters" in one]
            return sum(size for size in sizes if isinstance(size, int))
        except (AttributeError, KeyError, TypeError):
            return 0


def take_apart(body: bytes | bytearray, header_length: str | None) -> Parts:
    """Raises MalformedBody, InvalidInput, PayloadTooLarge. `header_length` is the header of that name, not 0."""
    end = _json_end(header_length, len(body))
    view = memoryview(body)
    return Parts(_document(view[:end], view[end:]), view[end:])


def read(parts: Parts, memory: Memory | None = None) -> InferRequest:
    """Raises MalformedBody, InvalidInput, and what `memory` raises; None: there is no shared memory."""
    return _request(parts.document, parts.binary, memory)


def decode(body: bytes | bytearray, header_length: str | None) -> InferRequest:
    """Both, of a body that is whole. Raises the same errors."""
    return read(take_apart(body, header_length))


def raw(body: bytes | bytearray, width: int | None, model: str) -> InferRequest:
    """A body that is nothing but the numbers of `embeddings`, [1, tokens, width]: all outputs come back, in binary.

    Raises InvalidInput where the width is the request's to choose.
    """
    if width is None:
        raise InvalidInput(
            f"{HEADER_LENGTH}: 0 announces the bare numbers of one input, but {model} takes embeddings of any width, "
            "so their shape must be said: send the JSON header",
            pointer=f"header:{HEADER_LENGTH}",
        )
    row = 4 * width
    if not body or len(body) % row:
        raise InvalidInput(
            f"{len(body)} bytes are no embeddings of {model}, which are rows of {width} FP32 numbers ({row} bytes)"
        )
    array = tensors.from_bytes(memoryview(body), "FP32", (1, len(body) // row, width), pointer("embeddings"))
    return InferRequest({"embeddings": array}, parameters={"binary_data_output": True})


def attention_input(request: InferRequest, encoding: str) -> AttentionInput:
    """The input, checked like that of every other format. Raises InvalidInput, UnknownName."""
    members = Members()
    for name, array in request.arrays.items():
        if name in INPUTS:
            members.arrays[name] = array
        elif name.startswith(PARAMETER):
            members.parameters[f"{encoding}.{name.removeprefix(PARAMETER)}"] = array
        elif "." in name:
            members.parameters[name] = array
        else:
            raise UnknownName("input", name, [*INPUTS, f"{PARAMETER}<name>"], pointer=pointer(name))
    return assemble(members)


def _json_end(header_length: str | None, size: int) -> int:
    if header_length is None:
        return size
    text = header_length.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= size):
        raise MalformedBody(
            f"{HEADER_LENGTH} is {text[:40]!r}; it is the length of the JSON part, from 0 to the body's {size} bytes",
            pointer=f"header:{HEADER_LENGTH}",
        )
    return int(text)


def _document(text: memoryview, binary: memoryview) -> Any:
    _check_lists(text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = media.not_json(text, error)
    if _NOT_JSON.search(text):
        _name_nonfinite(text, binary)
    raise MalformedBody(f"the {'body' if len(text) else 'empty body'} is not JSON{reason}")


def _name_nonfinite(text: memoryview, binary: memoryview) -> None:
    """Raises InvalidInput naming the first NaN or Infinity by its place: clients write them, JSON has none."""
    try:
        document = json.loads(bytes(text))
    except (ValueError, RecursionError):
        return
    attention_input(_request(document, binary), "")


def _check_lists(text: memoryview) -> None:
    """A list of two bytes becomes one of eighty in memory: many short ones are refused before they are made."""
    if len(text) <= MAX_LISTS:
        return
    content = bytes(text)
    if (lists := content.count(b"[") + content.count(b"{")) > MAX_LISTS:
        raise PayloadTooLarge(
            f"the JSON has {lists} lists and objects, at most {MAX_LISTS} are read; flat data needs one list, "
            "binary data none",
            limit=MAX_LISTS,
        )


def _request(document: Any, binary: memoryview, memory: Memory | None = None) -> InferRequest:
    members = _object(document, _MEMBERS, "")
    request_id = members.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise MalformedBody("id must be a string", pointer="/id")
    return InferRequest(
        _inputs(members.get("inputs"), binary, memory),
        _outputs(members.get("outputs"), memory),
        _parameters(members),
        request_id,
    )


def _inputs(listed: Any, binary: memoryview, memory: Memory | None) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    start = 0
    for one in _list(listed, "inputs"):
        members = _object(one, _INPUT_MEMBERS, "/inputs")
        name = _name(members, "inputs")
        at = pointer(name)
        if name in arrays:
            raise MalformedBody(f"the input {name[:80]!r} came twice", pointer=at)
        shape = tensors.check_shape(members.get("shape"), at)
        datatype = tensors.check_datatype(members.get("datatype"), at)
        parameters = _parameters(members, at)
        place = places.place(parameters, at)
        if place is not None:
            _check_alone(members, parameters, at)
            arrays[name] = _shared(name, place, datatype, shape, places.offered(memory, at))
            continue
        size = _binary_size(parameters, at)
        if size is None:
            if "data" not in members:
                raise MalformedBody(f"{at} has neither data nor the parameter binary_data_size", pointer=at)
            arrays[name] = tensors.from_json(members["data"], datatype, shape, at)
            continue
        if "data" in members:
            raise MalformedBody(f"{at} has both data and the parameter binary_data_size", pointer=at)
        expected = tensors.size_of(datatype, shape)
        if size != expected:
            raise MalformedBody(
                f"unexpected size for input {name[:80]!r}: binary_data_size is {size}, but {datatype} {list(shape)} "
                f"takes {expected} bytes",
                pointer=at,
            )
        if size > len(binary) - start:
            raise MalformedBody(
                f"unexpected size for input {name[:80]!r}: {size} bytes were announced, {len(binary) - start} came",
                pointer=at,
            )
        arrays[name] = tensors.from_bytes(binary[start : start + size], datatype, shape, at)
        start += size
    if start != len(binary):
        raise MalformedBody(f"unexpected additional input data: {len(binary) - start} bytes follow the last input")
    return arrays


def _shared(name: str, place: Place, datatype: str, shape: tuple[int, ...], memory: Memory) -> Array:
    """An array that lies there, or a copy of it.

    Only the numbers that a model is fed as they are may stay where the client can change them meanwhile. Whatever else
    it sends decides what is kept for others as well (tables go by positions and parameters), or is checked (masks).
    """
    at = pointer(name)
    expected = tensors.size_of(datatype, shape)
    if place.size != expected:
        raise MalformedBody(
            f"unexpected size for input {name[:80]!r}: {places.SIZE} is {place.size}, but {datatype} {list(shape)} "
            f"takes {expected} bytes",
            pointer=at,
        )
    content = memory.read(place, tensors.alignment_of(datatype), at)
    in_place = name in EMBEDDINGS and datatype == "FP32"
    return tensors.from_bytes(content if in_place else memoryview(bytes(content)), datatype, shape, at)


def _check_alone(members: Mapping[str, Any], parameters: Mapping[str, Value], at: str) -> None:
    for name in parameters:
        if name not in places.NAMES and name != "binary_data_size":
            raise UnknownName(f"parameter of {at}", name, ["binary_data_size", *places.NAMES], pointer=at)
    if "data" in members or "binary_data_size" in parameters:
        other = "data" if "data" in members else "the parameter binary_data_size"
        raise MalformedBody(f"{at} has both {other} and a {places.REGION}", pointer=at)


def _binary_size(parameters: Mapping[str, Value], at: str) -> int | None:
    size: int | None = None
    for name, value in parameters.items():
        if name != "binary_data_size":
            raise UnknownName(f"parameter of {at}", name, ["binary_data_size", *places.NAMES], pointer=at)
        if type(value) is not int or value < 0:
            raise MalformedBody(f"{at}: binary_data_size is {value!r:.40}; it is a number of bytes", pointer=at)
        size = value
    return size


def _outputs(listed: Any, memory: Memory | None) -> tuple[RequestedOutput, ...]:
    outputs: dict[str, RequestedOutput] = {}
    for one in _list([] if listed is None else listed, "outputs"):
        members = _object(one, _OUTPUT_MEMBERS, "/outputs")
        name = _name(members, "outputs")
        at = f"/outputs{pointer(name)}"
        if name in outputs:
            raise MalformedBody(f"the output {name[:80]!r} is asked for twice", pointer=at)
        binary: bool | None = None
        parameters = _parameters(members, at)
        place = places.place(parameters, at)
        if place is not None:
            places.offered(memory, at)
        for parameter, value in parameters.items():
            if parameter in places.NAMES:
                continue
            if parameter == "classification":
                raise InvalidInput(f"{at} asks for classification, which is not offered", pointer=at)
            if parameter != "binary_data":
                raise UnknownName(f"parameter of {at}", parameter, ["binary_data", *places.NAMES], pointer=at)
            if not isinstance(value, bool):
                raise MalformedBody(f"{at}: binary_data must be true or false", pointer=at)
            binary = value
        outputs[name] = RequestedOutput(name, binary, place)
    return tuple(outputs.values())


def _parameters(members: Mapping[str, Any], at: str = "") -> Mapping[str, Value]:
    given = members.get("parameters")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise MalformedBody(f"{at}/parameters must be an object", pointer=f"{at}/parameters")
    for name, value in given.items():
        if not isinstance(value, str | int | float | bool):
            raise MalformedBody(
                f"{at}/parameters{pointer(name[:80])} must be a string, a number or true or false",
                pointer=f"{at}/parameters",
            )
    return given


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedBody(f'"{name}" must be a list of tensors', pointer=f"/{name}")
    if len(value) > MAX_TENSORS:
        raise MalformedBody(f"there are {len(value)} {name}, at most {MAX_TENSORS} are taken", pointer=f"/{name}")
    return value


def _object(value: Any, known: Sequence[str], at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedBody(f"{at or 'the JSON'} must hold objects with {', '.join(known)}", pointer=at)
    for name in value:
        if name not in known:
            raise UnknownName("member", name, known, pointer=at + pointer(name[:80]))
    return value


def _name(members: Mapping[str, Any], where: str) -> str:
    name = members.get("name")
    if not isinstance(name, str) or not name:
        raise MalformedBody(f"each of the {where} needs a name", pointer=f"/{where}")
    return name


@dataclass(frozen=True, slots=True)
class Output:
    """One output of an answer, in FP32 or FP16; FP16 is never written as JSON."""

    name: str
    array: Array
    binary: bool
    place: Place | None = None
    """Where it lies, if it is not sent."""

    @property
    def datatype(self) -> Datatype:
        return "FP16" if self.array.dtype == np.float16 else "FP32"


@dataclass(frozen=True, slots=True)
class InferResponse:
    model: str
    version: str
    id: str | None
    outputs: Sequence[Output]
    nonfinite: int = 0
    """How many numbers are NaN or infinite: in JSON those are null."""

    @property
    def binary(self) -> bool:
        return any(output.binary for output in self.outputs)


def select(result: ScoringResult, outputs: Iterable[RequestedOutput], binary: bool) -> list[Output]:
    """These outputs of a result that has them. `binary` is for those that do not say."""
    (one,) = result.results
    terms = one.terms or {}
    selected = []
    for output in outputs:
        name = output.name
        array = terms[name.removeprefix(TERM)] if name.startswith(TERM) else getattr(one, name)
        kind = "<f2" if array.dtype == np.float16 else "<f4"
        as_bytes = output.sent_in_binary(binary) is True
        selected.append(Output(name, np.ascontiguousarray(array, dtype=kind), as_bytes, output.place))
    return selected


def encode_json(response: InferResponse) -> Iterator[bytes]:
    """The JSON part in pieces, so that a large one can be written between other work."""
    head: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id is not None:
        head["id"] = response.id
    if response.nonfinite:
        head["parameters"] = {"nonfinite_cells": response.nonfinite}
    yield orjson.dumps(head)[:-1] + b',"outputs":['
    for i, output in enumerate(response.outputs):
        tensor: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.array.shape}
        if output.place is not None:
            tensor["parameters"] = output.place.parameters(output.array.nbytes)
        elif output.binary:
            tensor["parameters"] = {"binary_data_size": output.array.nbytes}
        text = (b"," if i else b"") + orjson.dumps(tensor)
        if output.binary or output.place is not None:
            yield text
        else:
            yield text[:-1] + b',"data":['
            yield from _numbers(output.array.reshape(-1))
            yield b"]}"
    yield b"]}"


def encode_binary(response: InferResponse) -> list[memoryview]:
    """What follows the JSON part: views of the arrays."""
    return [output.array.reshape(-1).view(np.uint8).data for output in response.outputs if output.binary]


def _numbers(flat: Array) -> Iterator[bytes]:
    for start in range(0, len(flat), BLOCK):
        block = orjson.dumps(flat[start : start + BLOCK], option=orjson.OPT_SERIALIZE_NUMPY)
        yield (b"," if start else b"") + block[1:-1]


def encode_failure(error: ServiceError) -> tuple[int, bytes]:
    """The status and the body. What is wrong with a request is 400 here, whatever else it is elsewhere."""
    status = MalformedBody.status if isinstance(error, InvalidInput) else error.status
    document = {"error": error.detail}
    try:
        return status, orjson.dumps(document)
    except TypeError:  # a lone surrogate that the client sent: escaped, it can be sent back
        return status, json.dumps(document).encode()
