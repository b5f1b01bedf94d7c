"""The plain form: a safetensors file with `query.weight`, `key.weight`, `value.weight` and a few numbers, for layers of
any model. docs/checkpoints.md describes it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.checkpoints.errors import CheckpointError, some
from models.checkpoints.family import encoding_named
from models.checkpoints.hugging_face import in_float32
from models.checkpoints.layer import HeadNorm, Layer, Norm, Positional, Projection, Value, Window
from models.checkpoints.source import Config
from models.encodings.card import Parameter
from models.encodings.encoding import Encoding

UNBOUNDED = 1 << 30
PARTS = ("query", "key", "value")
NORMS = ("norm", "query_norm", "key_norm")
SETTINGS = (
    "heads",
    "key_heads",
    "encoding",
    "causal",
    "scale",
    "softcap",
    "clip",
    "norm",
    "norm_epsilon",
    "head_norm",
    "head_norm_epsilon",
    "window_before",
    "window_after",
)


def read_plain(path: Path) -> Layer:
    """The layer in a file. Raises CheckpointError, also for a tensor or setting that has no meaning here."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: in_float32(file.get_tensor(name), name) for name in file.keys()}  # noqa: SIM118
            settings = _settings(file.metadata() or {}, path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error
    return _layer(tensors, settings, path.name)


def _settings(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    """The file's metadata: each value is text, read as JSON where it is JSON. A file beside it of the same name ending
    in .json may hold them instead.
    """
    beside = path.with_suffix(".json")
    if beside.is_file():
        try:
            document = json.loads(beside.read_text())
        except ValueError as error:
            raise CheckpointError(f"{beside} cannot be read as JSON: {error}") from error
        if not isinstance(document, dict):
            raise CheckpointError(f"{beside} is no JSON object")
        return document
    values: dict[str, Any] = {}
    for name, text in metadata.items():
        if name == "format":  # safetensors' own
            continue
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def _layer(tensors: Mapping[str, Tensor], settings: Mapping[str, Any], name: str) -> Layer:
    config = Config(settings, name)
    encoding = encoding_named(str(config.value("encoding") or "none"))
    _check_names(tensors, settings, encoding, name)
    heads = config.whole("heads")
    key_heads = config.whole("key_heads", default=heads)
    query = _tensor(tensors, "query.weight", name)
    if query.dim() != 2 or query.shape[0] % heads:
        raise CheckpointError(
            f"query.weight of {name} has shape {list(query.shape)}; it must be [heads x head_dim, width], and "
            f"there are {heads} heads"
        )
    if heads % key_heads:
        raise CheckpointError(f"{name} has {heads} heads, which cannot share {key_heads} key heads evenly")
    head_dim, width = query.shape[0] // heads, query.shape[1]
    rows = {"query": heads * head_dim, "key": key_heads * head_dim, "value": key_heads * head_dim}
    projections = {part: _projection(tensors, part, rows[part], width, name) for part in PARTS}
    query_norm, key_norm = (
        _head_norm(tensors, part, config, count, head_dim)
        for part, count in (("query_norm", heads), ("key_norm", key_heads))
    )
    sizes = {"heads": heads, "head_dim": head_dim, "width": width}
    sinks = tensors.get("sinks")
    if sinks is not None and list(sinks.shape) != [heads]:
        raise CheckpointError(f"sinks of {name} has shape {list(sinks.shape)}; it must be [{heads}]")
    return Layer(
        width=width,
        heads=heads,
        key_heads=key_heads,
        head_dim=head_dim,
        query=projections["query"],
        key=projections["key"],
        value=projections["value"],
        positional=_positional(tensors, config, encoding, sizes),
        scale=config.number("scale", default=head_dim**-0.5),
        norm=_norm(tensors, "norm", config, "norm", "norm_epsilon", [(width,)]),
        query_norm=query_norm,
        key_norm=key_norm,
        clip=_optional(config, "clip"),
        softcap=_optional(config, "softcap"),
        sinks=sinks,
        causal=config.flag("causal", default=encoding.card.causal == "required"),
        window=_window(config),
    )


def _optional(config: Config, name: str) -> float | None:
    return None if config.value(name) is None else config.number(name)


def _window(config: Config) -> Window | None:
    """A side that is not named is not bounded."""
    if config.value("window_before", "window_after") is None:
        return None
    before, after = (
        UNBOUNDED if config.value(name) is None else int(config.number(name))
        for name in ("window_before", "window_after")
    )
    return Window(before, after)


def _check_names(tensors: Collection[str], settings: Collection[str], encoding: Encoding, name: str) -> None:
    """Nothing is passed over: a name that is not known may be one misspelt."""
    arrays = [p.name for p in encoding.card.parameters if p.kind == "array"]
    scalars = [p.name for p in encoding.card.parameters if p.kind != "array"]
    linear = [f"{part}.{kind}" for part in (*PARTS, *NORMS) for kind in ("weight", "bias")]
    for what, given, known in (
        ("a tensor", tensors, [*linear, "sinks", *(f"{encoding.card.id}.{array}" for array in arrays)]),
        ("the setting", settings, [*SETTINGS, *(f"{encoding.card.id}.{scalar}" for scalar in scalars)]),
    ):
        for one in given:
            if one not in known:
                near = get_close_matches(one, known, n=1, cutoff=0.6)
                hint = f"did you mean {near[0]}? " if near else ""
                raise CheckpointError(
                    f"{name} has {what} {one!r}, which has no meaning here; {hint}known: {', '.join(known)}"
                )


def _tensor(tensors: Mapping[str, Tensor], wanted: str, name: str) -> Tensor:
    if wanted not in tensors:
        raise CheckpointError(f"{name} has no tensor {wanted}; it has {some(sorted(tensors))}")
    return tensors[wanted]


def _projection(tensors: Mapping[str, Tensor], part: str, rows: int, width: int, name: str) -> Projection:
    weight, bias = _tensor(tensors, f"{part}.weight", name), tensors.get(f"{part}.bias")
    for tensor, shape, kind in ((weight, [rows, width], "weight"), (bias, [rows], "bias")):
        if tensor is not None and list(tensor.shape) != shape:
            raise CheckpointError(f"{part}.{kind} of {name} has shape {list(tensor.shape)}; it must be {shape}")
    return Projection(weight, bias)


def _norm(
    tensors: Mapping[str, Tensor], part: str, config: Config, kind: str, epsilon: str, shapes: Sequence[tuple[int, ...]]
) -> Norm | None:
    """Of one of these shapes; None where the file has none."""
    weight, bias = tensors.get(f"{part}.weight"), tensors.get(f"{part}.bias")
    if weight is None:
        if bias is not None:
            raise CheckpointError(f"{config.name} has {part}.bias, but no {part}.weight")
        return None
    if tuple(weight.shape) not in shapes or (bias is not None and bias.shape != weight.shape):
        allowed = " or ".join(str(list(shape)) for shape in shapes)
        raise CheckpointError(f"{part} of {config.name} has shape {list(weight.shape)}; it must be {allowed}")
    chosen = config.value(kind) or ("rms" if bias is None else "layer")
    if chosen not in ("layer", "rms"):
        raise CheckpointError(f"{kind} of {config.name} is {chosen!r}; it must be layer or rms")
    return Norm("rms" if chosen == "rms" else "layer", config.number(epsilon, default=1e-5), weight, bias)


def _head_norm(tensors: Mapping[str, Tensor], part: str, config: Config, heads: int, head_dim: int) -> HeadNorm | None:
    together = (heads * head_dim,)
    norm = _norm(tensors, part, config, "head_norm", "head_norm_epsilon", [(head_dim,), (heads, head_dim), together])
    if norm is None or norm.weight is None:
        return None
    return HeadNorm(norm, heads > 1 and tuple(norm.weight.shape) == together)


def _positional(
    tensors: Mapping[str, Tensor], config: Config, encoding: Encoding, sizes: Mapping[str, int]
) -> Positional:
    """The encoding with what the file says of it."""
    prefix = encoding.card.id
    scalars: dict[str, Value] = {}
    arrays: dict[str, Tensor] = {}
    for parameter in encoding.card.parameters:
        dotted = f"{prefix}.{parameter.name}"
        if parameter.kind == "array" and dotted in tensors:
            arrays[parameter.name] = _array(tensors[dotted], parameter, dotted, config.name, sizes)
        elif parameter.kind != "array" and config.value(dotted) is not None:
            scalars[parameter.name] = _value(config, parameter, dotted)
    return Positional(encoding, scalars, arrays)


def _array(tensor: Tensor, parameter: Parameter, dotted: str, name: str, sizes: Mapping[str, int]) -> Tensor:
    wanted = [sizes.get(axis, axis) if isinstance(axis, str) else axis for axis in parameter.shape]
    fits = tensor.dim() == len(wanted) and all(
        isinstance(size, str) or size == there for size, there in zip(wanted, tensor.shape, strict=True)
    )
    if not fits:
        shown = ", ".join(map(str, wanted))
        raise CheckpointError(f"{dotted} of {name} has shape {list(tensor.shape)}; it must be [{shown}]")
    return tensor


def _value(config: Config, parameter: Parameter, dotted: str) -> Value:
    value = config.value(dotted)
    if parameter.kind == "choice":
        if value not in parameter.choices:
            raise CheckpointError(
                f"{dotted} of {config.name} is {value!r}; it must be one of {', '.join(parameter.choices)}"
            )
        return str(value)
    if parameter.kind == "flag":
        return config.flag(dotted)
    if parameter.kind == "integer":
        return config.whole(dotted)
    if parameter.kind == "number":
        return config.number(dotted)
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in listed):
        raise CheckpointError(f"{dotted} of {config.name} is {value!r}, no list of numbers")
    return [float(number) for number in listed]
