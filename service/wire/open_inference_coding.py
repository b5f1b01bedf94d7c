"""Content codings, gzip and deflate (which is zlib's format): bounded on the way in, and only on request on the way
out."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from service.errors import MalformedBody, PayloadTooLarge, UnsupportedMediaType

CODINGS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
LEVEL = 1
"""The fastest: higher levels make numbers hardly any smaller."""
_OTHER_NAMES = {"x-gzip": "gzip"}
_INDIFFERENT = ("identity", "*")


def coding(content_encoding: str | None) -> str | None:
    """The coding of a request body, or None where it came as it is. Raises UnsupportedMediaType."""
    name = (content_encoding or "").strip().lower()
    name = _OTHER_NAMES.get(name, name)
    if name in ("", "identity"):
        return None
    if name not in CODINGS:
        raise UnsupportedMediaType(
            f"Content-Encoding: {name[:40]} is not read; {' and '.join(CODINGS)} are, and bodies as they are",
            pointer="header:Content-Encoding",
            allowed=["identity", *CODINGS],
        )
    return name


def inflate(body: bytes | bytearray, coding: str, limit: int) -> bytes:
    """At most `limit` bytes are ever made. Raises PayloadTooLarge, MalformedBody."""
    stream = zlib.decompressobj(CODINGS[coding])
    try:
        content = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise MalformedBody(f"the body is not {coding}: {error}") from None
    if len(content) > limit:
        raise PayloadTooLarge(
            f"the {coding} body unpacks to more than {limit} bytes (ATTENTION_MAX_BODY_BYTES)", limit=limit
        )
    if not stream.eof:
        raise MalformedBody(f"the {coding} body is cut off")
    if stream.unused_data:
        raise MalformedBody(f"{len(stream.unused_data)} bytes follow the end of the {coding} body")
    return content


def deflate(pieces: Iterable[Any], coding: str) -> bytes:
    stream = zlib.compressobj(LEVEL, zlib.DEFLATED, CODINGS[coding])
    return b"".join([*map(stream.compress, pieces), stream.flush()])


def negotiate(accept_encoding: str | None, *, binary: bool) -> str | None:
    """The coding of an answer, or None: the client's favourite of those written here.

    Float tensors take long to compress and hardly shrink, and most HTTP libraries list every coding they know unasked.
    So an answer with binary tensors is compressed only where the header names a single coding, as a client does that
    means it.
    """
    if not accept_encoding:
        return None
    named = [_quality(part, order) for order, part in enumerate(accept_encoding.split(","))]
    wanted = [found for found in named if found[0] > 0 and found[2] not in _INDIFFERENT]
    if binary and len(wanted) > 1:
        return None
    return next((name for _, _, name in sorted(wanted, reverse=True) if name in CODINGS), None)


def _quality(part: str, order: int) -> tuple[float, int, str]:
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                quality = 0.0
    return quality if quality == quality else 0.0, -order, _OTHER_NAMES.get(name, name)
