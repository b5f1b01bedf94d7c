"""The npz format: a zip of npy files. Nothing is unpacked before its size is known to be allowed."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.lib import format as npy

from service.errors import InvalidInput, MalformedBody, PayloadTooLarge
from service.records import AttentionInput, ScoringResult
from service.wire import answer, media, members
from service.wire.arrays import Array
from service.wire.members import Members, assemble, check_names
from service.wire.npy import read as read_npy
from service.wire.pointer import pointer

MAX_ENTRIES = 80
_END = b"PK\x05\x06"
_END64_LOCATOR = b"PK\x06\x07"
_DIRECTORY_ENTRY = 46 + 512
"""Bytes of one entry of a zip's directory: its fixed part, and room for its name."""


def decode(body: bytes | bytearray, limit: int) -> AttentionInput:
    """At most `limit` bytes once unpacked. Raises MalformedBody, PayloadTooLarge, InvalidInput."""
    parts = Members()
    for name, array in arrays(body, limit, dotted=True):
        if name == "tokens":
            parts.tokens = members.strings(array, pointer(name))
        elif "." in name:
            parts.parameters[name] = array
        else:
            parts.arrays[name] = array
    return assemble(parts)


def arrays(body: bytes | bytearray, limit: int, *, dotted: bool = False) -> Iterator[tuple[str, Array]]:
    """By their names, which with `dotted` must be those of members. Raises as `decode`."""
    for name, content in _entries(body, limit):
        if dotted:
            check_names([name], dotted=True)
            if name == "text":
                raise InvalidInput("'text' is read in JSON alone; npz holds arrays", pointer=pointer(name))
        yield name, read_npy(content, pointer(name), claimed=media.NPZ)


def _entries(body: bytes | bytearray, limit: int) -> Iterator[tuple[str, bytes]]:
    _check_directory(body)
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            entries = archive.infolist()
            _check_sizes(entries, limit)
            seen: set[str] = set()
            for entry in entries:
                name = entry.filename.removesuffix(".npy")
                if name in seen:
                    raise MalformedBody(f"the array {name[:80]!r} is there twice", pointer=pointer(name))
                seen.add(name)
                yield name, archive.read(entry)
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        RuntimeError,
        NotImplementedError,
        ValueError,
        struct.error,
    ) as error:
        raise _malformed(body, str(error)) from None


def _check_directory(body: bytes | bytearray) -> None:
    """A zip's directory is read whole when it is opened; one of a million entries is refused before that."""
    place = body.rfind(_END, max(0, len(body) - 65_557))
    if place < 0 or len(body) < place + 22:
        raise _malformed(body, "it has no directory at its end, as if it were cut off")
    count, size = struct.unpack_from("<HI", body, place + 10)
    if count > MAX_ENTRIES or size > MAX_ENTRIES * _DIRECTORY_ENTRY or body[place - 20 : place - 16] == _END64_LOCATOR:
        raise PayloadTooLarge(f"the npz has more than {MAX_ENTRIES} arrays", limit=MAX_ENTRIES)


def _check_sizes(entries: list[zipfile.ZipInfo], limit: int) -> None:
    total = sum(entry.file_size for entry in entries)
    if total > limit:
        raise PayloadTooLarge(
            f"the npz unpacks to {total} bytes, the limit is {limit} (ATTENTION_MAX_BODY_BYTES)",
            bytes=total,
            limit=limit,
        )


def _malformed(body: bytes | bytearray, reason: str) -> MalformedBody:
    return MalformedBody(f"the body is not an npz file{media.mismatch(body, media.NPZ) or ': ' + reason}")


def encode(result: ScoringResult, dtype: str) -> list[Any]:
    """An uncompressed npz in pieces; those of the numbers are views of the result's own arrays."""
    return pack(answer.metadata(result, dtype), answer.arrays(result))


def pack(metadata: bytes | None, arrays: Iterable[tuple[str, Array]]) -> list[Any]:
    """C-contiguous arrays by name, and (optionally) JSON about them, as an uncompressed npz in pieces."""
    parts = _Parts()
    with zipfile.ZipFile(parts, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        if metadata is not None:
            _write(archive, answer.METADATA, np.frombuffer(metadata, dtype=np.uint8))
        for name, array in arrays:
            _write(archive, name, array)
    return parts.buffers


def _write(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    header = io.BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(array))
    entry = zipfile.ZipInfo(name + ".npy")
    entry.file_size = header.tell() + array.nbytes
    with archive.open(entry, "w") as file:
        file.write(header.getbuffer())
        if array.size:
            file.write(array.reshape(-1).view(np.uint8).data)


class _Parts:
    """A file that keeps what is written as it is. `ZipFile` goes back once for each entry, to complete its header."""

    def __init__(self) -> None:
        self.buffers: list[Any] = []
        self._starts: list[int] = []
        self._end = 0
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        self._at = place
        return place

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self._at == self._end:
            self._starts.append(self._at)
            self.buffers.append(data)
            self._end += size
        else:
            self.buffers[self._starts.index(self._at)] = data
        self._at += size
        return size

    def flush(self) -> None:
        """`ZipFile` asks for it; there is nothing to do."""
