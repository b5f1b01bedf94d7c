"""A client's shared memory, made and filled as `tritonclient` has it, and requests whose tensors lie there."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm

from tests.service.open_inference.bodies import DATATYPES

Array = np.ndarray[Any, np.dtype[Any]]
_NUMBERS = itertools.count()


class Region:
    """An object in shared memory. `name` is what it is registered under, `key` what the system knows it by."""

    def __init__(self, size: int) -> None:
        self.name = f"region {next(_NUMBERS)}"
        self.key = f"/attention-{os.getpid()}-{self.name.replace(' ', '-')}"
        self.size = size
        self.handle = shm.create_shared_memory_region(self.name, self.key, size)

    @property
    def path(self) -> str:
        return f"/dev/shm{self.key}"

    @property
    def bytes(self) -> Array:
        """All of it, to be read and written."""
        return np.frombuffer(self.handle._mpsm_handle.buf, np.uint8, self.size)

    def put(self, array: Array, offset: int = 0) -> None:
        shm.set_shared_memory_region(self.handle, [array], offset)

    def get(self, shape: Sequence[int], dtype: Any = np.float32, offset: int = 0) -> Array:
        """A copy."""
        found: Array = shm.get_contents_as_numpy(self.handle, dtype, shape, offset)
        return found.copy()


@contextmanager
def region(size: int, client: Any = None) -> Iterator[Region]:
    """Registered where a client is given, and gone afterwards."""
    made = Region(size)
    try:
        if client is not None:
            client.register_system_shared_memory(made.name, made.key, size)
        yield made
    finally:
        if client is not None and any(one["name"] == made.name for one in client.get_system_shared_memory_status()):
            client.unregister_system_shared_memory(made.name)
        shm.destroy_shared_memory_region(made.handle)


def lying(name: str, array: Array, where: Region, offset: int = 0, *, size: int | None = None) -> Any:
    """An input that has been put there."""
    where.put(array, offset)
    tensor = triton.InferInput(name, list(array.shape), DATATYPES[array.dtype.name])
    return tensor.set_shared_memory(where.name, array.nbytes if size is None else size, offset)


def wanted(name: str, where: Region, size: int, offset: int = 0) -> Any:
    """An output that is to be put there."""
    output = triton.InferRequestedOutput(name)
    output.set_shared_memory(where.name, size, offset)
    return output


def outputs(shapes: dict[str, tuple[int, ...]], where: Region, start: int = 0, itemsize: int = 4) -> list[Any]:
    """One behind the other."""
    sizes = [itemsize * int(np.prod(shape)) for shape in shapes.values()]
    offsets = [start, *(start + end for end in itertools.accumulate(sizes))]
    return [wanted(name, where, size, offset) for name, size, offset in zip(shapes, sizes, offsets, strict=False)]


def read(answer: Any, where: Region) -> dict[str, Array]:
    """What an answer says lies there."""
    found = {}
    for one in answer.get_response()["outputs"]:
        parameters = one["parameters"]
        assert parameters["shared_memory_region"] == where.name
        assert "data" not in one
        kind = {"FP32": np.float32, "FP16": np.float16}[one["datatype"]]
        array = where.get(one["shape"], kind, parameters.get("shared_memory_offset", 0))
        assert array.nbytes == parameters["shared_memory_byte_size"]
        found[one["name"]] = array
    return found
