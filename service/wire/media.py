"""Media types: what a `Content-Type` names, what an `Accept` prefers, what bytes look like."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote

from service.errors import NotAcceptable, UnsupportedMediaType

JSON = "application/json"
NPY = "application/x-npy"
NPZ = "application/x-npz"
SAFETENSORS = "application/vnd.safetensors"
PNG = "image/png"
PROBLEM = "application/problem+json"
OCTETS = "application/octet-stream"

READ = (JSON, NPY, NPZ, SAFETENSORS)
WRITTEN = (JSON, NPZ, SAFETENSORS, PNG)
BINARY = (NPZ, SAFETENSORS)
FORMATS = {
    JSON: "json",
    NPY: "npy",
    NPZ: "npz",
    SAFETENSORS: "safetensors",
    PNG: "png",
    OCTETS: "binary",
    PROBLEM: "problem",
}
"""Their names in the metrics."""

_HINTS = {
    "application/x-www-form-urlencoded": "; curl sends this unless it is told -H 'Content-Type: application/json'",
    "application/octet-stream": "; the bytes are not guessed at, name the format",
    "multipart/form-data": "; send the array itself as the body, not a form",
}
_SIGNATURES = (
    (b"\x93NUMPY", "an npy file", NPY),
    (b"PK\x03\x04", "a zip (npz) file", NPZ),
    (b"PK\x05\x06", "an empty zip (npz) file", NPZ),
    (b"\x1f\x8b", "gzip; compressed bodies are not read", None),
    (b"\x89PNG", "a PNG image", None),
    (b"\x80\x02", "a pickle, which is never read", None),
    (b"\x80\x03", "a pickle, which is never read", None),
    (b"\x80\x04", "a pickle, which is never read", None),
    (b"\x80\x05", "a pickle, which is never read", None),
    (b"<", "HTML or XML", None),
)


def media_type(content_type: str | None) -> str:
    """The format of a request body. Raises UnsupportedMediaType."""
    if not content_type:
        raise UnsupportedMediaType(
            f"the request has no Content-Type; read here: {', '.join(READ)}",
            pointer="header:Content-Type",
            allowed=list(READ),
        )
    name, _, parameters = content_type.partition(";")
    name = name.strip().lower()
    if name not in READ:
        raise UnsupportedMediaType(
            f"{_short(name)!r} is not read here{_HINTS.get(name, '')}; read here: {', '.join(READ)}",
            pointer="header:Content-Type",
            allowed=list(READ),
        )
    if name == JSON and parameters:
        _check_charset(parameters)
    return name


def _check_charset(parameters: str) -> None:
    for parameter in parameters.split(";"):
        key, _, value = parameter.partition("=")
        charset = value.strip().strip('"').lower()
        if key.strip().lower() == "charset" and charset not in ("utf-8", "utf8", "us-ascii", "ascii"):
            raise UnsupportedMediaType(
                f"JSON is read in UTF-8 only, not in {_short(charset)!r}", pointer="header:Content-Type"
            )


@lru_cache(maxsize=512)
def negotiate(accept: str | None, written: tuple[str, ...] = WRITTEN) -> str:
    """The format of the answer, one of `written`: that of highest quality, JSON where the client does not mind.

    Each format takes the quality of the most specific range that matches it (RFC 9110, 12.5.1); between equals, one
    named in full goes before a wildcard, and then the order of the header counts. Raises NotAcceptable.
    """
    if not accept or accept.strip() == "*/*":
        return JSON
    ranges = [_range(part, order) for order, part in enumerate(accept.split(","))]
    best, chosen = (0.0, 0, -len(ranges)), None
    for candidate in written:
        matching = [found for found in ranges if _matches(found[0], candidate)]
        if not matching:
            continue
        name, quality, order = max(matching, key=lambda found: _specificity(found[0]))
        rank = (quality, _specificity(name), -order)
        if quality > 0 and rank > best:
            best, chosen = rank, candidate
    if chosen is None:
        raise NotAcceptable(
            f"Accept: {_short(accept)} names none of the formats an answer can have: {', '.join(written)}",
            pointer="header:Accept",
            allowed=list(written),
        )
    return chosen


def _range(part: str, order: int) -> tuple[str, float, int]:
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                quality = min(1.0, max(0.0, float(value)))
            except ValueError:
                quality = 0.0
    return name, quality if quality == quality else 0.0, order


def _matches(pattern: str, name: str) -> bool:
    return pattern in (name, "*/*", name.partition("/")[0] + "/*")


def _specificity(pattern: str) -> int:
    return 0 if pattern == "*/*" else 1 if pattern.endswith("/*") else 2


def looks_like(body: bytes | bytearray | memoryview) -> tuple[str, str | None] | None:
    """What these bytes seem to be, and the media type to send them under where they are read here at all."""
    head = bytes(body[:64])
    for signature, name, kind in _SIGNATURES:
        if head.startswith(signature):
            return name, kind
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < max(len(body), 1 << 20):
        return "a safetensors file", SAFETENSORS
    start = head.lstrip(b" \t\r\n\xef\xbb\xbf")[:1]
    if start in (b"{", b"["):
        return "JSON", JSON
    return None


def mismatch(body: bytes | bytearray | memoryview, claimed: str) -> str:
    """The end of a sentence that says a body is not what its `Content-Type` claims; empty where nothing is known."""
    if not len(body):
        return ": the body is empty"
    found = looks_like(body)
    if found is None or found[1] == claimed:
        return ""
    name, kind = found
    return f": it looks like {name}" + (f", which is sent as Content-Type: {kind}" if kind else "")


def not_json(body: bytes | bytearray | memoryview, error: Exception) -> str:
    """The end of a sentence that says a body is not JSON."""
    found = mismatch(body, JSON)
    if found:
        return found
    try:
        str(body, "utf-8")
    except UnicodeDecodeError as undecodable:
        at = undecodable.start
        return f": JSON is read in UTF-8 only, and the byte 0x{body[at]:02x} at offset {at} is not UTF-8"
    return f": {error}"


def in_query(name: str, value: object = None) -> str:
    """How something is said in the query string instead: `/attention?heads=8`."""
    match value:
        case bool():
            text = str(value).lower()
        case str() | int() | float():
            text = str(value)
        case list() if value and all(isinstance(part, str | int) for part in value):
            text = ",".join(map(str, value))
        case _:
            text = "..."
    text = text if len(text) <= 40 else "..."
    return f"/attention?{quote(name[:80], safe='.')}={quote(text, safe=',.-:')}"


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:100] + "..."
