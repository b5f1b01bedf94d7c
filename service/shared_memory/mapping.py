"""One region as this process sees it: a part of a POSIX shared memory object, mapped."""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from service.errors import InvalidInput
from service.shared_memory.faults import Watched, faults

OBJECTS = Path("/dev/shm")
"""Where Linux keeps them."""
_KEY = re.compile(r"/?([^/\x00]{1,255})")


class Region(NamedTuple):
    """What a client has registered: `byte_size` bytes from `offset` on of the object `key`. `token` tells it from all
    others, earlier ones of the same name among them."""

    name: str
    key: str
    offset: int
    byte_size: int
    token: str


@dataclass(slots=True, eq=False)
class Mapping:
    """A region in this process's memory, as long as this or a view of it exists."""

    region: Region
    memory: mmap.mmap
    watched: Watched
    start: int
    """Where the region begins in `memory`."""
    object: tuple[int, int]
    """Tells the objects apart, whatever they are called."""

    @classmethod
    def of(cls, region: Region) -> Mapping:
        """Raises InvalidInput where there is no such object, or less of it."""
        found = _KEY.fullmatch(region.key)
        if found is None or found[1] in (".", ".."):
            raise InvalidInput(
                f"the key {region.key[:80]!r} names no shared memory object: that is a slash and a name without one, "
                "such as /embeddings",
                pointer="/key",
            )
        descriptor = _open(found[1])
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidInput(f"{region.key[:80]!r} is no shared memory object", pointer="/key")
            end = region.offset + region.byte_size
            if end > status.st_size:
                raise InvalidInput(
                    f"the object {region.key[:80]!r} has {status.st_size} bytes, but offset {region.offset} and "
                    f"byte_size {region.byte_size} need {end}",
                    pointer="/byte_size",
                )
            start = region.offset % mmap.ALLOCATIONGRANULARITY
            memory = mmap.mmap(descriptor, region.byte_size + start, offset=region.offset - start)
        finally:
            os.close(descriptor)
        return cls(region, memory, faults().watch(memory), start, (status.st_dev, status.st_ino))

    def view(self, offset: int, size: int, at: str) -> memoryview:
        """So many bytes of it. Raises InvalidInput where there are fewer, or have become so."""
        region = self.region
        if offset + size > region.byte_size:
            raise InvalidInput(
                f"{at} takes {size} bytes from offset {offset} on, which is {offset + size}, but the shared memory "
                f"region {region.name[:80]!r} has {region.byte_size}",
                pointer=at,
            )
        self.check()
        begin = self.start + offset
        return memoryview(self.memory)[begin : begin + size]

    @property
    def intact(self) -> bool:
        """Whether all of it is there, and has been whenever it was touched."""
        return not self.watched.lost and self.memory.size() >= self.region.offset + self.region.byte_size

    def check(self) -> None:
        """Raises InvalidInput where the object has become too small."""
        region = self.region
        due = region.offset + region.byte_size
        if not self.intact:
            raise InvalidInput(
                f"the object {region.key[:80]!r} of the shared memory region {region.name[:80]!r} had at least {due} "
                f"bytes when it was registered and has {self.memory.size()} now; unregister the region and register "
                "it again"
            )

    def extent(self, offset: int, size: int) -> tuple[tuple[int, int], int, int]:
        """The object, and where in it these bytes begin and end."""
        begin = self.region.offset + offset
        return self.object, begin, begin + size


def _open(name: str) -> int:
    try:
        # Neither a link out of the folder is followed, nor a pipe waited for.
        return os.open(OBJECTS / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise InvalidInput(f"there is no shared memory object /{name[:80]}", pointer="/key") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InvalidInput(f"/{name[:80]} is a link, and no shared memory object", pointer="/key") from None
        raise InvalidInput(
            f"the shared memory object /{name[:80]} cannot be opened for reading and writing: {error.strerror}",
            pointer="/key",
        ) from None
