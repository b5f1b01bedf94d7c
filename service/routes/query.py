"""The query string of a scoring request, read by hand: a name that is unknown is an error, never ignored."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NoReturn, TypeVar
from urllib.parse import parse_qsl

from service.errors import InvalidInput, UnknownName
from service.records import MATRICES, RETURNABLE, AttentionOptions
from service.selection import Selection
from service.wire.body import DType, Form
from service.wire.media import PNG

T = TypeVar("T")

NAMES = (
    "encoding",
    "compare",
    "model",
    "heads",
    "key_heads",
    "causal",
    "return",
    "metrics",
    "rows",
    "head",
    "top_k",
    "dtype",
    "arrays",
    "zoom",
)
KIND = "query parameter"
DTYPES: tuple[DType, ...] = ("float32", "float16")
FORMS: tuple[Form, ...] = ("lists", "base64")
ZOOMS = (1, 2, 3, 4)
MAX_LENGTH = 16_384
CACHED_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Query:
    options: AttentionOptions
    dtype: DType = "float32"
    arrays: Form = "lists"
    zoom: int = 1


def parse(raw: bytes) -> Query:
    """Raises InvalidInput, or UnknownName with the nearest names. Encodings and their parameters are checked later."""
    check_length(raw)
    # Most requests of a client repeat its last query string; what a string means never changes.
    return _cached(raw) if len(raw) <= CACHED_LENGTH else _parse(raw)


def check_length(raw: bytes) -> None:
    """Raises InvalidInput."""
    if len(raw) > MAX_LENGTH:
        raise InvalidInput(
            f"the query string has {len(raw)} bytes, at most {MAX_LENGTH} are read; arrays go into the body",
            limit=MAX_LENGTH,
        )


def check_names(raw: bytes, known: tuple[str, ...]) -> None:
    """For endpoints whose values are read elsewhere. Raises UnknownName, or InvalidInput for a name that came twice."""
    seen = set()
    for name, _ in pairs(raw):
        at = f"query:{name[:80]}"
        if not known:
            raise InvalidInput(f"this takes no query parameters, but {name[:80]!r} came", pointer=at)
        if name not in known:
            raise UnknownName(KIND, name, known, pointer=at)
        if name in seen:
            twice(name)
        seen.add(name)


@lru_cache(maxsize=1024)
def _cached(raw: bytes) -> Query:
    return _parse(raw)


def pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("latin-1"), keep_blank_values=True, errors="replace", max_num_fields=256)
    except ValueError:
        raise InvalidInput("the query string has more than 256 parts; lists take commas: compare=rope,alibi") from None


def _parse(raw: bytes) -> Query:
    given: dict[str, list[str]] = {}
    scalars: dict[str, str] = {}
    for name, value in pairs(raw):
        if name in NAMES:
            given.setdefault(name, []).append(value)
        elif "." in name:
            if name in scalars:
                twice(name)
            scalars[name] = value
        else:
            raise UnknownName(KIND, name, [*NAMES, "ENCODING.PARAMETER"], pointer=f"query:{name[:80]}")
    dtype = one(given, "dtype", _dtype) or "float32"
    options = AttentionOptions(
        encoding=one(given, "encoding", nonempty),
        compare=listed(given, "compare"),
        model=one(given, "model", nonempty),
        heads=one(given, "heads", count),
        key_heads=one(given, "key_heads", count),
        causal=one(given, "causal", flag),
        returns=_returns(given),
        metrics=several(given, "metrics"),
        scalars=scalars,
        rows=_selection(given, "rows"),
        head=_selection(given, "head"),
        top_k=one(given, "top_k", count),
        half=dtype == "float16",
    )
    arrays = one(given, "arrays", form) or "lists"
    _check_matrices(options, dtype, arrays)
    return Query(options, dtype, arrays, one(given, "zoom", zoom) or 1)


def one(given: dict[str, list[str]], name: str, read: Callable[[str, str], T]) -> T | None:
    values = given.get(name)
    if values is None:
        return None
    if len(values) > 1:
        twice(name)
    return read(name, values[0].strip())


def twice(name: str) -> NoReturn:
    raise InvalidInput(
        f"{name[:80]} came more than once in the query string; send it once", pointer=f"query:{name[:80]}"
    )


def nonempty(name: str, value: str) -> str:
    if not value:
        raise InvalidInput(f"{name}= is empty; leave it out for the default", pointer=f"query:{name}")
    return value


def count(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and int(value) > 0):
        raise InvalidInput(f"{name}={value[:80]} is not a whole number from 1 on", pointer=f"query:{name}")
    return int(value)


def number(name: str, value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or "_" in value:
        raise InvalidInput(f"{name}={value[:80]} is no finite number", pointer=f"query:{name}")
    return found


def zoom(name: str, value: str) -> int:
    """Pixels of a picture to each of its points."""
    if value not in map(str, ZOOMS):
        allowed = ", ".join(map(str, ZOOMS))
        raise InvalidInput(f"{name}={value[:80]} is none of {allowed}", pointer=f"query:{name}", allowed=list(ZOOMS))
    return int(value)


def check_zoom(zoom: int, kind: str) -> None:
    """Of an answer of the media type `kind`, which is no picture. Raises InvalidInput."""
    if zoom != 1:
        raise InvalidInput(
            f"zoom={zoom} is for pictures, but Accept asks for {kind}; ask for one with Accept: {PNG}, or "
            "leave zoom out",
            pointer="query:zoom",
        )


def _check_matrices(options: AttentionOptions, dtype: DType, arrays: Form) -> None:
    """Whether there are arrays for what is said of their form: there are none in summaries. Raises InvalidInput."""
    if options.returns is None or options.top_k is not None or any(name in MATRICES for name in options.returns):
        return
    for name, value, default in (("dtype", dtype, DTYPES[0]), ("arrays", arrays, FORMS[0])):
        if value != default:
            raise InvalidInput(
                f"{name}={value} is the form of matrices, but return={','.join(options.returns)} asks for none; add "
                f"{', '.join(MATRICES[:-1])} or {MATRICES[-1]} to return, or leave {name} out",
                pointer=f"query:{name}",
            )


def flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidInput(
            f"{name}={value[:80]} is neither true nor false", pointer=f"query:{name}", allowed=["true", "false"]
        )
    return value.lower() == "true"


def _dtype(name: str, value: str) -> DType:
    for dtype in DTYPES:
        if value == dtype:
            return dtype
    raise UnknownName("dtype", value, DTYPES, pointer="query:dtype")


def form(name: str, value: str) -> Form:
    for known in FORMS:
        if value == known:
            return known
    raise UnknownName("value of arrays", value, FORMS, pointer="query:arrays")


def several(given: dict[str, list[str]], name: str) -> tuple[str, ...]:
    """Repeated, or with commas, or both; in order, without repetitions."""
    return tuple(dict.fromkeys(listed(given, name)))


def listed(given: dict[str, list[str]], name: str) -> tuple[str, ...]:
    values = given.get(name)
    if values is None:
        return ()
    parts = [part.strip() for value in values for part in value.split(",")]
    if not all(parts):
        raise InvalidInput(
            f"{name}= holds an empty name; names are separated by single commas", pointer=f"query:{name}"
        )
    return tuple(parts)


def _selection(given: dict[str, list[str]], name: Literal["rows", "head"]) -> Selection | None:
    parts = several(given, name)
    return Selection.of(name, parts) if parts else None


def _returns(given: dict[str, list[str]]) -> tuple[str, ...] | None:
    wanted = several(given, "return")
    if not wanted:
        return None
    for name in wanted:
        if name not in RETURNABLE:
            raise UnknownName("value of return", name, RETURNABLE, pointer="query:return")
    return tuple(name for name in RETURNABLE if name in wanted)
