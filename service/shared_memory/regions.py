"""The regions that clients have registered: the same in every process behind the port."""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import orjson

from service.errors import InvalidInput, NotFound, UnknownName
from service.shared_memory.faults import faults
from service.shared_memory.mapping import Mapping, Region

MOST = 256
"""Regions at a time: each takes a file descriptor in every process that uses it."""
LONGEST = 256
"""Characters of a name."""


class _Held(NamedTuple):
    path: str
    said: str
    mapping: Mapping


class Regions:
    """A region is one symbolic link in a private folder, whose target is not a path but the region in JSON: links are
    made whole or not at all, never over another, and read in one call. So processes that are forked from this one, and
    those that are started in the place of one that died, agree without a word.

    What is mapped is this process's own. A link that has gone, or says something new, ends it.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` must be empty, and nobody else's."""
        self._folder = folder
        self._held: dict[str, _Held] = {}
        faults()

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Raises InvalidInput where the name is taken or the object is not what it is said to be."""
        if len(name) > LONGEST:
            raise InvalidInput(f"the region's name has {len(name)} characters; at most {LONGEST} are taken")
        region = Region(name, key, offset, byte_size, secrets.token_hex(8))
        taken = self.find(name)
        if taken is not None:
            raise _taken(taken)
        if len(self.all()) >= MOST:
            raise InvalidInput(f"{MOST} shared memory regions are registered, and that is the most; unregister some")
        mapping = Mapping.of(region)
        said = orjson.dumps(tuple(region)).decode()
        try:
            os.symlink(said, path := self._path(name))
        except FileExistsError:
            raise _taken(self.find(name) or region) from None
        self._held[name] = _Held(path, said, mapping)

    def unregister(self, name: str) -> None:
        """What uses it now may go on with it. Raises NotFound."""
        self._held.pop(name, None)
        try:
            os.unlink(self._path(name))
        except FileNotFoundError:
            raise NotFound(self._unknown(name).detail) from None

    def clear(self) -> None:
        """Unregisters all."""
        for region in self.all():
            with suppress(FileNotFoundError):
                os.unlink(self._path(region.name))
        self._held.clear()

    def all(self) -> list[Region]:
        """By their names."""
        return sorted(region for entry in os.scandir(self._folder) if (region := _read(entry.path)) is not None)

    def find(self, name: str) -> Region | None:
        return _read(self._path(name))

    def get(self, name: str) -> Region:
        """Raises NotFound."""
        region = self.find(name)
        if region is None:
            raise NotFound(self._unknown(name).detail)
        return region

    def mapping(self, name: str, at: str) -> Mapping:
        """Of a region that is registered now. Raises UnknownName, InvalidInput."""
        held = self._held.get(name)
        path = self._path(name) if held is None else held.path
        try:
            said = os.readlink(path)
        except FileNotFoundError:
            self._held.pop(name, None)
            raise self._unknown(name, at) from None
        if held is None or held.said != said:
            self.sweep()
            held = self._held[name] = _Held(path, said, Mapping.of(_region(said)))
        return held.mapping

    def holds(self, mapping: Mapping) -> bool:
        """Whether it is still that of its region."""
        held = self._held.get(mapping.region.name)
        if held is None or held.mapping is not mapping:
            return False
        try:
            return os.readlink(held.path) == held.said
        except FileNotFoundError:
            return False

    def sweep(self) -> None:
        """Lets go of what another process has unregistered."""
        for name, held in list(self._held.items()):
            if not self.holds(held.mapping):
                self._held.pop(name, None)

    def _path(self, name: str) -> str:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return os.path.join(self._folder, digest)

    def _unknown(self, name: str, at: str | None = None) -> InvalidInput:
        known = [region.name for region in self.all()]
        if not known:
            return InvalidInput(f"unknown shared memory region {name[:80]!r}: none is registered", pointer=at)
        return UnknownName("shared memory region", name, known, pointer=at)


def _taken(region: Region) -> InvalidInput:
    return InvalidInput(
        f"the shared memory region {region.name[:80]!r} is registered already: {region.byte_size} bytes from "
        f"{region.offset} on of {region.key[:80]!r}; unregister it first"
    )


def _read(path: str) -> Region | None:
    try:
        return _region(os.readlink(path))
    except FileNotFoundError:
        return None


def _region(said: str) -> Region:
    return Region(*orjson.loads(said))
