"""The shared memory extension of the Open Inference Protocol, as far as bodies speak of it: where a tensor lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from service.errors import InvalidInput, MalformedBody

REGION, SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"
NAMES = (REGION, SIZE, OFFSET)
MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Place:
    """`size` bytes from `offset` on of a region that was registered under that name."""

    region: str
    offset: int
    size: int

    def parameters(self, size: int) -> dict[str, Any]:
        """In an answer whose tensor takes so many bytes of it."""
        said: dict[str, Any] = {REGION: self.region, SIZE: size}
        return said | {OFFSET: self.offset} if self.offset else said


class Memory(Protocol):
    """What one request may have of the regions."""

    def read(self, place: Place, alignment: int, at: str) -> memoryview:
        """The bytes there, which may change at any time. Raises InvalidInput, UnknownName, Forbidden."""

    def write(self, place: Place, size: int, alignment: int, at: str) -> memoryview:
        """So many bytes there to be written. Raises the same errors."""


def place(parameters: Mapping[str, Any], at: str) -> Place | None:
    """None where no parameter speaks of shared memory. Raises MalformedBody."""
    if not any(name in parameters for name in NAMES):
        return None
    region = parameters.get(REGION)
    if not isinstance(region, str) or not region:
        raise MalformedBody(f"{at}: {REGION} must be the name of a registered region", pointer=at)
    if SIZE not in parameters:
        raise MalformedBody(f"{at} names a {REGION}, but {SIZE} is missing", pointer=at)
    return Place(region, count(parameters, OFFSET, at), count(parameters, SIZE, at))


def count(members: Mapping[str, Any], name: str, at: str) -> int:
    """A number of bytes; 0 where it is not said."""
    value = members.get(name, 0)
    if type(value) is not int or not 0 <= value <= MOST:
        raise MalformedBody(f"{at}: {name} is {value!r:.40}; it is a number of bytes", pointer=at)
    return value


def offered(memory: Memory | None, at: str) -> Memory:
    """Raises InvalidInput where there is none."""
    if memory is None:
        raise InvalidInput(
            f"{at} lies in shared memory, but shared memory is not offered by this service "
            "(ATTENTION_SHARED_MEMORY=true switches it on); send the data",
            pointer=at,
        )
    return memory
