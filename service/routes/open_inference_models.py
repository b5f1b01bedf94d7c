"""What the Open Inference Protocol calls models: one for each encoding of each model, `identity.rope`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from service import __version__
from service.catalogue import Catalogue, Model
from service.encoding import Axis, Encoding
from service.errors import NotFound, ServiceError, UnknownName
from service.wire.members import EMBEDDINGS, POSITIONS
from service.wire.open_inference import MATRICES, PARAMETER

VERSION = "1"
PLATFORM = "onnxruntime_onnx"
NAME = "attention-scoring-service"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "statistics", "parameters")
DYNAMIC = -1
READY, UNAVAILABLE = "READY", "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output as it is described. Sizes that the request decides are -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`inputs` are those worth describing; one-number parameters may come as tensors too."""

    model: Model
    encoding: Encoding
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @classmethod
    def of(cls, model: Model, encoding: Encoding) -> ServedModel:
        width, heads = model.width or DYNAMIC, model.heads or DYNAMIC
        stack = (DYNAMIC, DYNAMIC, width)
        inputs = [
            *(Tensor(name, "FP32", stack) for name in EMBEDDINGS),
            *(Tensor(name, "FP64", (DYNAMIC,)) for name in POSITIONS),
            Tensor("mask", "BOOL", (DYNAMIC,) * 4),
            *_parameters(model, encoding),
        ]
        matrix = (DYNAMIC, heads, DYNAMIC, DYNAMIC)
        shapes = {"output": (DYNAMIC, DYNAMIC, heads, model.head_dim or DYNAMIC)}
        outputs = [Tensor(name, "FP32", shapes.get(name, matrix)) for name in (*MATRICES, *encoding.term_outputs)]
        return cls(model, encoding, tuple(inputs), tuple(outputs))

    @property
    def name(self) -> str:
        return self.encoding.name

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(output.name for output in self.outputs)

    def metadata(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": PLATFORM,
            "inputs": [_described(tensor) for tensor in self.inputs],
            "outputs": [_described(tensor) for tensor in self.outputs],
        }

    def config(self) -> dict[str, Any]:
        """Triton's configuration, as far as it says something here.

        `max_batch_size` is 0: shapes stand as they are, batch axis included (positions have none). Requests are batched
        together all the same, which `dynamic_batching` says. Every input is optional: embeddings may be left out for
        queries and keys. `parameters` are those of one number or word, by default.
        """
        return {
            "name": self.name,
            "platform": PLATFORM,
            "backend": "onnxruntime",
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": 0,
            "input": [{**_configured(tensor), "optional": True} for tensor in self.inputs],
            "output": [_configured(tensor) for tensor in self.outputs],
            "dynamic_batching": {},
            "parameters": {
                parameter.name: {"string_value": _text(parameter.default)}
                for parameter in self.encoding.parameters
                if parameter.kind != "array"
            },
        }


class ServedModels:
    """Every model by its name, aliases included."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._read()

    def _read(self) -> None:
        self._version = self._catalogue.version
        self._all = [
            ServedModel.of(model, encoding)
            for model in self._catalogue.models.values()
            for encoding in model.encodings.values()
        ]
        self._by_name = {
            f"{one.model.name}.{name}".lower(): one
            for one in self._all
            for name in (one.encoding.id, *one.encoding.aliases)
        }

    @property
    def all(self) -> list[ServedModel]:
        """As the catalogue is now."""
        if self._version != self._catalogue.version:
            self._read()
        return self._all

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """Raises NotFound with the nearest names."""
        by_name = self._by_name if self.all else {}
        found = by_name.get(name.strip().lower())
        if found is None:
            if name.strip() in self._catalogue.unloaded:
                raise NotFound(f"{name.strip()} has been unloaded; POST /v2/repository/models/{name.strip()}/load")
            raise NotFound(UnknownName("model", name, by_name).detail)
        if version not in (None, VERSION):
            raise NotFound(f"{found.name} has the version {VERSION} only, not {version:.20}")
        return found

    def index(self, refusal: ServiceError | None, *, ready: bool) -> list[dict[str, str]]:
        """What is served, and what is not and why; with `ready` only what can be asked now."""
        state, reason = (READY, "") if refusal is None else (UNAVAILABLE, refusal.detail)
        entries = [*((one.name, state, reason) for one in self.all), *self._broken()]
        return [
            {"name": name, "version": VERSION, "state": state, "reason": reason}
            for name, state, reason in entries
            if not ready or state == READY
        ]

    def _broken(self) -> Iterator[tuple[str, str, str]]:
        for problem in self._catalogue.problems:
            if problem.path.suffix == ".onnx":
                yield problem.served_as, UNAVAILABLE, problem.reason
        for name in self._catalogue.unloaded:
            yield name, UNAVAILABLE, "unloaded"


def server(extensions: Sequence[str]) -> dict[str, Any]:
    return {"name": NAME, "version": __version__, "extensions": list(extensions)}


def _parameters(model: Model, encoding: Encoding) -> Iterator[Tensor]:
    sizes: dict[Axis, int | None] = {"heads": model.heads, "head_dim": model.head_dim, "width": model.width}
    for parameter in encoding.parameters:
        name = PARAMETER + parameter.name
        if parameter.kind == "array":
            shape = (axis if isinstance(axis, int) else sizes.get(axis) or DYNAMIC for axis in parameter.shape)
            yield Tensor(name, "FP32", tuple(shape))
        elif parameter.kind == "numbers":
            yield Tensor(name, "FP64", (DYNAMIC,))


def _described(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}


def _configured(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "data_type": f"TYPE_{tensor.datatype}", "dims": tensor.shape}


def _text(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return "" if default is None else str(default)
