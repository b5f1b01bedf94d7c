"""Runs on memory that is bound beforehand: what a device computes stays there until one copy brings all of it back."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from service.engine.device import NO_GRAPH, graph_options
from service.engine.memory import Memory, Pool, Resident, Slab, aligned

if TYPE_CHECKING:
    from service.engine.session import Session

logger = logging.getLogger(__name__)

TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}

Axes = tuple[str | int, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of a graph; its axes are numbers or names."""

    name: str
    dtype: type
    axes: Axes

    @classmethod
    def of(cls, argument: Any) -> Value:
        return cls(argument.name, TYPES[argument.type], tuple(argument.shape))


@dataclass(slots=True)
class Bound:
    """One session's inputs and outputs at certain addresses. `graph` is the CUDA graph captured of its run."""

    binding: Any
    options: Any
    """Of its runs."""
    runs: int = 0
    graph: int = NO_GRAPH
    thread: int = 0
    """That captured it."""


class Signature:
    """What a session takes and gives, and what is bound for it."""

    def __init__(self, session: Session) -> None:
        self.inputs = [Value.of(argument) for argument in session.native.get_inputs()]
        self.outputs = [Value.of(argument) for argument in session.native.get_outputs()]
        self.bound: OrderedDict[Hashable, Bound] = OrderedDict()

    def shapes(self, arrays: Sequence[np.ndarray]) -> list[Shape] | None:
        """Those of the outputs; None where the inputs do not tell."""
        sizes: dict[str | int, int] = {}
        for value, array in zip(self.inputs, arrays, strict=True):
            if value.name != "visible":  # it may be 1 along any axis
                sizes.update(zip(value.axes, array.shape, strict=False))
        try:
            return [tuple(_size(axis, sizes) for axis in out.axes) for out in self.outputs]
        except KeyError:
            return None


class Binding:
    """Runs sessions of one device, one run at a time.

    Inputs are copied into one slab of the device's memory and outputs computed into another, whose whole content comes
    back in one copy. Both serve all sessions and shapes, for what they hold is needed for one run only. Read-only
    tables and masks stay on the device. Results are arrays of page-locked memory, which is used again when they are
    gone.

    A session may allow CUDA graphs. Then a run whose shapes and addresses have been seen `warm` times is captured, at
    most `captured` of them for a session, and from then on replayed. A graph reads and writes the addresses that it was
    captured with, so the addresses are a part of what is looked up. It belongs to the thread that captured it: others
    run without. A session of which a run cannot be captured is run without from then on.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        warm: int = 2,
        captured: int = 16,
        resident_bytes: int = 1 << 30,
        host_bytes: int = 1 << 30,
        kept: int = 64,
    ) -> None:
        self._memory = memory
        self._warm = warm
        self._captured = captured
        self._kept = kept
        self._lock = threading.Lock()
        self._signatures: WeakKeyDictionary[Session, Signature] = WeakKeyDictionary()
        self._resident = Resident(memory, resident_bytes)
        self._inputs, self._outputs = Slab(memory, self._forget), Slab(memory, self._forget)
        self._last_graph = 0
        self.pool = Pool(memory, host_bytes)

    def run(self, session: Session, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """All outputs of the session, in its order. Raises ValueError where an input is missing or of another type."""
        arrays = session.needed(feeds)
        with self._lock:
            signature = self._signature(session)
            shapes = signature.shapes(arrays)
            if shapes is None:
                return session.run(session.outputs, feeds)
            arrays = [_checked(value, array) for value, array in zip(signature.inputs, arrays, strict=True)]
            offsets, size = _layout(signature.outputs, shapes)
            self._outputs.reserve(size)
            addresses = self._upload(signature.inputs, arrays)
            bound = self._bind(session, signature, arrays, addresses, shapes, offsets)
            self._run(session, signature, bound)
            results = self.pool.empty((size,), np.uint8)
            self._memory.download(self._outputs.address, results)
        return [
            results[offset : offset + prod(shape) * np.dtype(value.dtype).itemsize].view(value.dtype).reshape(shape)
            for value, shape, offset in zip(signature.outputs, shapes, offsets, strict=True)
        ]

    def graphs(self, session: Session) -> int:
        """How many CUDA graphs of this session were captured."""
        signature = self._signatures.get(session)
        return 0 if signature is None else sum(bound.graph != NO_GRAPH for bound in signature.bound.values())

    def _signature(self, session: Session) -> Signature:
        signature = self._signatures.get(session)
        if signature is None:
            signature = self._signatures[session] = Signature(session)
        return signature

    def _upload(self, values: Sequence[Value], arrays: Sequence[np.ndarray]) -> list[int]:
        """Copies what the device does not have, an array that is several inputs once; gives each input's address."""
        places: dict[int, int] = {}
        passing: dict[int, tuple[int, np.ndarray]] = {}
        size = 0
        self._resident.begin()
        for value, array in zip(values, arrays, strict=True):
            if id(array) in places or id(array) in passing:
                continue
            stays = not array.flags.writeable and value.name not in ("queries", "keys")
            address = self._resident.address(array) if stays else None
            if address is not None:
                places[id(array)] = address
            else:
                passing[id(array)] = size, array
                size += aligned(array.nbytes)
        start = self._inputs.reserve(size)
        for name, (offset, array) in passing.items():
            places[name] = start + offset
            self._memory.upload(array, start + offset)
        self._memory.wait()
        return [places[id(array)] for array in arrays]

    def _bind(
        self,
        session: Session,
        signature: Signature,
        arrays: Sequence[np.ndarray],
        addresses: Sequence[int],
        shapes: Sequence[Shape],
        offsets: Sequence[int],
    ) -> Bound:
        key = tuple((address, array.shape) for address, array in zip(addresses, arrays, strict=True))
        bound = signature.bound.get(key)
        if bound is not None:
            signature.bound.move_to_end(key)
            return bound
        binding, device = session.native.io_binding(), self._memory.device
        for value, array, address in zip(signature.inputs, arrays, addresses, strict=True):
            binding.bind_input(value.name, device, 0, value.dtype, array.shape, address)
        for value, shape, offset in zip(signature.outputs, shapes, offsets, strict=True):
            binding.bind_output(value.name, device, 0, value.dtype, shape, self._outputs.address + offset)
        bound = signature.bound[key] = Bound(binding, session.options)
        while len(signature.bound) > self._kept:
            _, oldest = signature.bound.popitem(last=False)
            self._release(session, oldest)
        return bound

    def _run(self, session: Session, signature: Signature, bound: Bound) -> None:
        bound.runs += 1
        capture = (
            session.graphs
            and bound.graph == NO_GRAPH
            and bound.runs > self._warm
            and self.graphs(session) < self._captured
        )
        if capture:
            self._last_graph += 1
            bound.graph, bound.thread = self._last_graph, threading.get_ident()
            bound.options = graph_options(bound.graph)
        mine = bound.graph == NO_GRAPH or bound.thread == threading.get_ident()
        try:
            session.native.run_with_iobinding(bound.binding, bound.options if mine else session.options)
        except Exception as error:  # onnxruntime's errors share no other base
            if not capture:
                raise
            logger.warning("a graph is run without CUDA graphs from now on, for it could not be captured: %s", error)
            session.graphs = False
            bound.graph, bound.options = NO_GRAPH, session.options
            session.native.run_with_iobinding(bound.binding, bound.options)
        # It has waited for the device already unless somebody set it not to; where it has, this costs nothing.
        bound.binding.synchronize_outputs()

    def _release(self, session: Session, bound: Bound) -> None:
        if bound.graph != NO_GRAPH:
            session.native.release_captured_graph(bound.graph)

    def _forget(self) -> None:
        """Everything that holds an address of the slabs."""
        for session, signature in self._signatures.items():
            for bound in signature.bound.values():
                self._release(session, bound)
            signature.bound.clear()


def _size(axis: str | int, sizes: Mapping[str | int, int]) -> int:
    """That of an axis which is a number, a name, or a sum of these. Raises KeyError for a name that is not known."""
    if isinstance(axis, int):
        return axis
    return sum(int(term) if term.isdigit() else sizes[term] for term in axis.split(" + "))


def _layout(values: Sequence[Value], shapes: Sequence[Shape]) -> tuple[list[int], int]:
    """Where each output begins, one after the other, and how long they are together."""
    offsets, size = [], 0
    for value, shape in zip(values, shapes, strict=True):
        offsets.append(size)
        size += aligned(prod(shape) * np.dtype(value.dtype).itemsize)
    return offsets, size


def _checked(value: Value, array: np.ndarray) -> np.ndarray:
    """What is bound by its address is read as it lies there, whatever it is."""
    if array.dtype != value.dtype:
        raise ValueError(f"input {value.name!r} is {array.dtype}, but the graph takes {np.dtype(value.dtype)}")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
