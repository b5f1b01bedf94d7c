"""A request's parameters: checked, completed with defaults, ready for a positions graph."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import prod
from typing import Any

import numpy as np

from service.arrays import DefaultArrays
from service.cache import Cache
from service.catalogue import Model
from service.encoding import Encoding, Initial, Order, Parameter, Size
from service.errors import InvalidInput, ParameterOutOfRange, PayloadTooLarge, UnknownName
from service.instance import Instance
from service.words import figure

TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
INTEGER_RANGE = 2**53


@dataclass(frozen=True, slots=True)
class Sizes:
    """A request's sizes that parameter shapes may name; `positions`: how many rows its largest position needs."""

    heads: int
    head_dim: int
    positions: int
    embedding: int | None = None
    """Width of the embeddings where a model projects them; else it is that of all heads."""

    @property
    def width(self) -> int:
        return self.heads * self.head_dim if self.embedding is None else self.embedding


@dataclass(slots=True)
class Given:
    """What a request says about one encoding: name -> value, and the pointer to blame for it.

    `owner` is what messages call the encoding; None: by its id.
    """

    scalars: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)
    owner: str | None = None

    def __bool__(self) -> bool:
        return bool(self.scalars or self.arrays)


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedParameters:
    """Every parameter of one encoding. Equal `digest` means equal values; `report` is JSON-able and leaves out optional
    parameters that are absent; `switches` are those of the scores graph that are on.

    Default arrays are drawn only when `feeds` is called: where the tables are known already, nobody needs them.
    `elements` is how many numbers `feeds` may have to draw. `pointers` says where the request set what it set.
    """

    digest: str
    report: Mapping[str, Any]
    elements: int
    switches: tuple[str, ...]
    pointers: Mapping[str, str]
    _values: Mapping[str, np.ndarray]
    _defaults: Mapping[str, tuple[Initial, tuple[int, ...]]]
    _arrays: DefaultArrays

    def feeds(self) -> dict[str, np.ndarray]:
        """Arrays by the positions graph's input names, `parameter.theta`; read-only."""
        drawn = {name: self._arrays.get(*default) for name, default in self._defaults.items()}
        return {f"parameter.{name}": value for name, value in {**self._values, **drawn}.items()}


def assign(
    model: Model,
    instances: Iterable[Instance],
    scalars: Mapping[str, str],
    arrays: Mapping[str, np.ndarray],
    skipped: Mapping[str, str] | None = None,
    arrays_at: str = "/parameters",
) -> dict[str, Given]:
    """Sorts dotted names by the names of encodings, `rope` or `rope@long`. Every one asked for has an entry.

    Raises UnknownName for an encoding or parameter that does not exist; InvalidInput for one given twice, or of an
    encoding that this request does not ask for or has left out (`skipped`: name -> reason).
    """
    asked = {instance.name: instance for instance in instances}
    given = {name: Given(owner=name) for name in asked}
    for source, pointer in ((scalars, "query:{}"), (arrays, arrays_at + "/{}")):
        for dotted in source:
            at = pointer.format(dotted.replace("~", "~0").replace("/", "~1") if source is arrays else dotted)
            prefix, dot, name = dotted.rpartition(".")
            if not dot:
                known = [f"{name}.{one.name}" for name in asked for one in asked[name].encoding.parameters]
                raise UnknownName("parameter", dotted, known, pointer=at)
            instance = Instance.of(model, prefix, pointer=at)
            owner, parameter = instance.name, instance.encoding.parameter(name)
            if parameter is None:
                raise _no_parameter(instance, name, dotted, asked, at)
            if owner not in asked:
                reason = (skipped or {}).get(owner)
                if reason:
                    raise InvalidInput(
                        f"{shown(dotted)} is a parameter of {owner}, which cannot serve this request: {reason}",
                        pointer=at,
                    )
                raise _not_asked(dotted, instance, name, asked, at)
            mine = given[owner]
            if parameter.name in mine.pointers:
                raise InvalidInput(f"{owner}.{parameter.name} is given twice; give it once", pointer=at)
            mine.pointers[parameter.name] = at
            if source is scalars:
                mine.scalars[parameter.name] = scalars[dotted]
            else:
                mine.arrays[parameter.name] = arrays[dotted]
    return given


def _no_parameter(
    instance: Instance, name: str, dotted: str, asked: Mapping[str, Instance], pointer: str
) -> InvalidInput:
    """Of an encoding that has no parameter of this name; one that was asked for may have it."""
    meant = [f"{other}.{name}" for other, one in asked.items() if one.encoding.parameter(name) is not None]
    owner, encoding = instance.name, instance.encoding
    if name in encoding.fixed:
        return InvalidInput(
            f"{shown(dotted)} is part of the model {encoding.model!r}, not a parameter of it; model=identity takes "
            "one that you bring",
            pointer=pointer,
        )
    known = [f"{owner}.{one.name}" for one in encoding.parameters]
    if not known:
        hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
        return InvalidInput(f"{shown(dotted)}: {owner} has no parameters{hint}", pointer=pointer)
    return UnknownName(f"parameter of {owner}", f"{owner}.{name}", known, pointer=pointer, nearest=meant)


def _not_asked(dotted: str, instance: Instance, name: str, asked: Mapping[str, Instance], at: str) -> InvalidInput:
    """The nearest are the same parameter of the same encoding under other labels, or of others under this label."""
    meant = [
        other
        for other, one in asked.items()
        if one.encoding.parameter(name) is not None
        and (one.encoding.id == instance.encoding.id or (one.label is not None and one.label == instance.label))
    ]
    nearest = [f"{other}.{name}" for other in get_close_matches(instance.name, meant, n=3, cutoff=0.0)]
    hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
    return InvalidInput(
        f"{shown(dotted)} is a parameter of {instance.name}, which this request does not ask for (it asks for "
        f"{', '.join(asked)}); add compare={instance.name} or leave the parameter out.{hint}",
        pointer=at,
        nearest=nearest,
    )


class Parameters:
    """Completes what a request gives with defaults. Default arrays of more than `largest` numbers are refused."""

    def __init__(self, capacity: int = 64 << 20, largest: int = 1 << 24) -> None:
        self.largest = largest
        self._arrays = DefaultArrays(capacity)
        self._plain: Cache[tuple[str, str, Sizes], ResolvedParameters] = Cache(4096)

    def sweep(self) -> None:
        """Drops what has not been asked for since this was last called."""
        self._arrays.sweep()
        self._plain.sweep()

    def resolve(self, encoding: Encoding, given: Given, sizes: Sizes) -> ResolvedParameters:
        """Raises InvalidInput (or ParameterOutOfRange, UnknownName) naming the value that came and those allowed;
        PayloadTooLarge for a default array over the limit.
        """
        if given:
            return self._resolve(encoding, given, sizes)
        if encoding.positions.rows_of is None and not any("positions" in one.shape for one in encoding.parameters):
            sizes = replace(sizes, positions=0)
        key = (encoding.name, encoding.graph.digest, sizes)
        resolved = self._plain.get(key)
        if resolved is None:
            resolved = self._resolve(encoding, given, sizes)
            self._plain.put(key, resolved, 1)
        return resolved

    def _resolve(self, encoding: Encoding, given: Given, sizes: Sizes) -> ResolvedParameters:
        owner = given.owner or encoding.id
        axes = _axes(encoding, given, sizes)
        values: dict[str, np.ndarray] = {}
        defaults: dict[str, tuple[Initial, tuple[int, ...]]] = {}
        report: dict[str, Any] = {}
        digest = hashlib.blake2b(digest_size=16)
        for parameter in encoding.parameters:
            name, dotted = parameter.name, f"{owner}.{parameter.name}"
            at = given.pointers.get(name)
            if parameter.kind != "array":
                sent = given.scalars.get(name, given.arrays.get(name))
                value = _default(parameter) if sent is None else _scalar(parameter, dotted, sent, at)
                values[name] = _feed(parameter, value)
                if value is not None:
                    report[name] = list(value) if isinstance(value, tuple) else value
                digest.update(f"{name}={value!r};".encode())
            elif name in given.arrays:
                array = np.array(given.arrays[name], dtype=np.float32, order="C")
                array.flags.writeable = False
                values[name] = array
                report[name] = {"shape": list(array.shape), "source": "request"}
                digest.update(f"{name}={array.shape};".encode())
                digest.update(array.data)
            else:
                shape = tuple(axes[axis] if isinstance(axis, str) else axis for axis in parameter.shape)
                self._check_default(dotted, parameter, shape)
                initial = parameter.initial or Initial("zeros")
                defaults[name] = (initial, shape)
                if parameter.initial is not None:
                    report[name] = {"shape": list(shape), "source": f"default: {initial}"}
                digest.update(f"{name}={initial!r}{shape};".encode())
        for order in encoding.orders:
            _check_order(order, report, owner, given.pointers)
        report |= {name: {"shape": list(shape), "source": "model"} for name, shape in encoding.fixed.items()}
        elements = sum(prod(shape) for _, shape in defaults.values())
        switches = tuple(name for name in encoding.switches if name in report)
        return ResolvedParameters(
            digest.hexdigest(), report, elements, switches, given.pointers, values, defaults, self._arrays
        )

    def _check_default(self, dotted: str, parameter: Parameter, shape: tuple[int, ...]) -> None:
        if prod(shape) > self.largest:
            raise PayloadTooLarge(
                f"{dotted} would have {_named(parameter, shape)} = {prod(shape):,} numbers; the limit for a default is "
                f"{self.largest:,}: send narrower embeddings",
                limit=self.largest,
            )


def _axes(encoding: Encoding, given: Given, sizes: Sizes) -> dict[str, int]:
    """The size of every named axis: the request's, then its arrays', then defaults. Checks the arrays' shapes."""
    fixed = {"heads": sizes.heads, "head_dim": sizes.head_dim, "width": sizes.width}
    own: dict[str, int] = {}
    setter: dict[str, str] = {}
    owner = given.owner or encoding.id
    for parameter in encoding.parameters:
        if parameter.kind != "array":
            continue
        dotted, at = f"{owner}.{parameter.name}", given.pointers.get(parameter.name)
        if parameter.name in given.scalars:
            raise InvalidInput(
                f"{dotted} is an array [{', '.join(map(str, parameter.shape))}]; send it in the body, as "
                f'"parameters": {{"{dotted}": ...}} or as an array of that name',
                pointer=at,
            )
        array = given.arrays.get(parameter.name)
        if array is None:
            continue
        expected = {axis: fixed.get(axis, own.get(axis)) if isinstance(axis, str) else axis for axis in parameter.shape}
        fits = array.ndim == len(parameter.shape) and all(
            expected[axis] is None or expected[axis] == size
            for axis, size in zip(parameter.shape, array.shape, strict=True)
        )
        if not fits:
            raise InvalidInput(
                f"{dotted} must be {_expected(parameter, expected, setter)}, but has shape {list(array.shape)}",
                pointer=at,
            )
        for axis, size in zip(parameter.shape, array.shape, strict=True):
            if not isinstance(axis, str) or axis in fixed:
                continue
            if own.get(axis, size) != size:
                raise InvalidInput(f"{dotted} has {own[axis]} and {size} {axis}; they must be equal", pointer=at)
            rule = parameter.sizes.get(axis, Size())
            if not rule.allows(size):
                raise ParameterOutOfRange(f"{dotted} has {size} {axis}; allowed: {rule}", pointer=at)
            own[axis], setter[axis] = size, dotted
    return fixed | _own_axes(encoding, owner, sizes, own, setter)


def _own_axes(
    encoding: Encoding, owner: str, sizes: Sizes, own: dict[str, int], setter: Mapping[str, str]
) -> dict[str, int]:
    """Adds the sizes that nothing sent decides. Raises InvalidInput where the largest position has no row."""
    for parameter in encoding.parameters:
        for axis in parameter.shape:
            if not isinstance(axis, str) or axis in own or axis in ("heads", "head_dim", "width"):
                continue
            rule = parameter.sizes.get(axis, Size())
            own[axis] = (max(sizes.positions, rule.minimum) if axis == "positions" else rule.default) or rule.minimum
            if axis == "positions" and rule.maximum is not None:
                own[axis] = min(own[axis], rule.maximum)
    rows_of = encoding.positions.rows_of
    table = encoding.parameter(rows_of) if rows_of is not None else None
    if table is not None:
        axis = table.shape[0]
        rows = own.get(axis, 0) if isinstance(axis, str) else axis
        if sizes.positions > rows:
            source = "brought by the request" if axis in setter else "the most it may have"
            raise InvalidInput(
                f"position {sizes.positions - 1} has no row in {owner}.{table.name}, which has {rows} rows "
                f"({source}): positions go from 0 to {rows - 1}; send smaller positions or fewer tokens"
                + (", or more rows" if axis in setter else ""),
                pointer="/positions",
                limit=rows - 1,
            )
    return own


def _named(parameter: Parameter, shape: tuple[int, ...]) -> str:
    return " x ".join(
        f"{axis} {size}" if isinstance(axis, str) else str(size)
        for axis, size in zip(parameter.shape, shape, strict=True)
    )


def _expected(parameter: Parameter, expected: Mapping[int | str, int | None], setter: Mapping[str, str]) -> str:
    axes = []
    for axis in parameter.shape:
        size = expected[axis]
        if not isinstance(axis, str):
            axes.append(str(axis))
        elif size is not None:
            axes.append(f"{axis} = {size}" + (f" as in {setter[axis]}" if axis in setter else ""))
        else:
            axes.append(f"{axis}: {parameter.sizes.get(axis, Size())}")
    return f"[{', '.join(axes)}]"


def _scalar(
    parameter: Parameter, dotted: str, sent: str | np.ndarray, pointer: str | None
) -> float | int | bool | str | tuple[float, ...]:
    text = sent if isinstance(sent, str) else _text(parameter, dotted, sent, pointer)
    match parameter.kind:
        case "number":
            number = _number(text)
            if number is None:
                raise InvalidInput(f"{dotted} must be a finite number, but is {shown(text)}", pointer=pointer)
            _check_range(parameter, dotted, number, pointer)
            return number
        case "integer":
            number = _number(text)
            if number is None or not number.is_integer() or abs(number) > INTEGER_RANGE:
                raise InvalidInput(f"{dotted} must be a whole number, but is {shown(text)}", pointer=pointer)
            _check_range(parameter, dotted, int(number), pointer)
            return int(number)
        case "flag":
            word = text.strip().lower()
            if word not in TRUE + FALSE:
                raise InvalidInput(f"{dotted} must be true or false, but is {shown(text)}", pointer=pointer)
            return word in TRUE
        case "choice":
            word = text.strip().lower()
            choice = next((choice for choice in parameter.choices if choice.lower() == word), None)
            if choice is None:
                raise UnknownName(f"value of {dotted}", text, parameter.choices, pointer=pointer)
            return choice
        case _:
            parts = [part for part in text.split(",") if part.strip()] if text.strip() else []
            numbers = []
            for part in parts:
                number = _number(part)
                if number is None:
                    raise InvalidInput(
                        f"{dotted} must be finite numbers separated by commas, but holds {shown(part)}", pointer=pointer
                    )
                _check_range(parameter, dotted, number, pointer)
                numbers.append(number)
            if not numbers:
                raise InvalidInput(f"{dotted} must be at least one number", pointer=pointer)
            return tuple(numbers)


def _text(parameter: Parameter, dotted: str, array: np.ndarray, pointer: str | None) -> str:
    """A scalar or list that came as float32, in the digits its sender meant: 0.1, not the 0.10000000149 it became."""
    wanted, kind = (1, "a list of numbers") if parameter.kind == "numbers" else (0, f"one {parameter.kind}")
    if array.ndim == 1 and array.size == 1 and wanted == 0:
        array = array.reshape(())
    if array.ndim != wanted:
        raise InvalidInput(f"{dotted} must be {kind}, but is an array of shape {list(array.shape)}", pointer=pointer)
    if parameter.kind == "choice":
        allowed = ", ".join(parameter.choices)
        raise InvalidInput(f"{dotted} must be one of {allowed}; send it in the query string", pointer=pointer)
    if parameter.kind == "flag":
        return str(int(array)) if array in (0, 1) else str(array)
    return ",".join(str(number) for number in np.atleast_1d(array))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _check_range(parameter: Parameter, dotted: str, number: float, pointer: str | None) -> None:
    low, high = parameter.minimum, parameter.maximum
    if (low is None or number >= low) and (high is None or number <= high):
        return
    allowed = (
        f"{figure(low)} to {figure(high)}"
        if low is not None and high is not None
        else f"at least {figure(low)}"
        if low is not None
        else f"at most {figure(high or 0)}"
    )
    raise ParameterOutOfRange(
        f"{dotted} is {figure(number)}; allowed: {allowed}", pointer=pointer, minimum=low, maximum=high
    )


def _check_order(order: Order, values: Mapping[str, Any], owner: str, pointers: Mapping[str, str]) -> None:
    less, more = values[order.less], values[order.more]
    if less < more or (less == more and not order.strict):
        return
    blamed, other, allowed = order.more, order.less, "more than" if order.strict else "at least"
    if pointers.get(order.less) and not pointers.get(order.more):
        blamed, other, allowed = order.less, order.more, "less than" if order.strict else "at most"
    raise ParameterOutOfRange(
        f"{owner}.{blamed} is {figure(values[blamed])}; allowed: {allowed} {owner}.{other}, which is "
        f"{figure(values[other])}" + ("" if pointers.get(other) else " by default"),
        pointer=pointers.get(blamed),
    )


def _default(parameter: Parameter) -> float | int | bool | str | tuple[float, ...] | None:
    if parameter.kind == "numbers":
        return tuple(map(float, parameter.default)) if isinstance(parameter.default, tuple) else ()
    if parameter.default is None:
        return None
    assert not isinstance(parameter.default, tuple)
    return float(parameter.default) if parameter.kind == "number" else parameter.default


def _feed(parameter: Parameter, value: Any) -> np.ndarray:
    match parameter.kind:
        case "number":
            feed = np.array(math.nan if value is None else value, dtype=np.float64)
        case "integer":
            feed = np.array(value, dtype=np.int64)
        case "flag":
            feed = np.array(value, dtype=np.bool_)
        case "choice":
            feed = np.array(parameter.choices.index(value), dtype=np.int64)
        case _:
            feed = np.array(value, dtype=np.float64)
    feed.flags.writeable = False
    return feed


def shown(text: str) -> str:
    """Someone else's text in a message: quoted, cut to a bearable length."""
    return repr(text if len(text) <= 80 else text[:80] + "...")
