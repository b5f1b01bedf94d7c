"""The query string of a scoring request, read by hand: a name that is unknown is an error, never ignored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, TypeVar
from urllib.parse import parse_qsl

from service.errors import InvalidInput, UnknownName
from service.records import DEFAULT_RETURN, RETURNABLE, AttentionOptions
from service.wire.body import DType

T = TypeVar("T")

NAMES = ("encoding", "compare", "model", "heads", "causal", "return", "dtype")
DTYPES: tuple[DType, ...] = ("float32", "float16")
MAX_LENGTH = 16_384
CACHED_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Query:
    options: AttentionOptions
    dtype: DType = "float32"


def parse(raw: bytes) -> Query:
    """Raises InvalidInput, or UnknownName with the nearest names. Encodings and their parameters are checked later."""
    if len(raw) > MAX_LENGTH:
        raise InvalidInput(
            f"the query string has {len(raw)} bytes, at most {MAX_LENGTH} are read; arrays go into the body",
            limit=MAX_LENGTH,
        )
    # Most requests of a client repeat its last query string; what a string means never changes.
    return _cached(raw) if len(raw) <= CACHED_LENGTH else _parse(raw)


def check_names(raw: bytes, known: tuple[str, ...]) -> None:
    """For endpoints whose values are read elsewhere. Raises UnknownName."""
    for name, _ in _pairs(raw):
        at = f"query:{name[:80]}"
        if not known:
            raise InvalidInput(f"this takes no query parameters, but {name[:80]!r} came", pointer=at)
        if name not in known:
            raise UnknownName("query parameter", name, known, pointer=at)


@lru_cache(maxsize=1024)
def _cached(raw: bytes) -> Query:
    return _parse(raw)


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("latin-1"), keep_blank_values=True, errors="replace", max_num_fields=256)
    except ValueError:
        raise InvalidInput("the query string has more than 256 parts; lists take commas: compare=rope,alibi") from None


def _parse(raw: bytes) -> Query:
    given: dict[str, list[str]] = {}
    scalars: dict[str, str] = {}
    for name, value in _pairs(raw):
        if name in NAMES:
            given.setdefault(name, []).append(value)
        elif "." in name:
            if name in scalars:
                _twice(name)
            scalars[name] = value
        else:
            raise UnknownName("query parameter", name, [*NAMES, "ENCODING.PARAMETER"], pointer=f"query:{name[:80]}")
    options = AttentionOptions(
        encoding=_one(given, "encoding", _name),
        compare=_list(given, "compare"),
        model=_one(given, "model", _name),
        heads=_one(given, "heads", _heads),
        causal=_one(given, "causal", _flag),
        returns=_returns(given),
        scalars=scalars,
    )
    return Query(options, _one(given, "dtype", _dtype) or "float32")


def _one(given: dict[str, list[str]], name: str, read: Callable[[str, str], T]) -> T | None:
    values = given.get(name)
    if values is None:
        return None
    if len(values) > 1:
        _twice(name)
    return read(name, values[0].strip())


def _twice(name: str) -> NoReturn:
    raise InvalidInput(
        f"{name[:80]} came more than once in the query string; send it once", pointer=f"query:{name[:80]}"
    )


def _name(name: str, value: str) -> str:
    if not value:
        raise InvalidInput(f"{name}= is empty; leave it out for the default", pointer=f"query:{name}")
    return value


def _heads(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and int(value) > 0):
        raise InvalidInput(f"heads={value[:80]} is not a whole number from 1 on", pointer="query:heads")
    return int(value)


def _flag(name: str, value: str) -> bool:
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


def _list(given: dict[str, list[str]], name: str) -> tuple[str, ...]:
    """Repeated, or with commas, or both; in order, without repetitions."""
    values = given.get(name)
    if values is None:
        return ()
    parts = [part.strip() for value in values for part in value.split(",")]
    if not all(parts):
        raise InvalidInput(
            f"{name}= holds an empty name; names are separated by single commas", pointer=f"query:{name}"
        )
    return tuple(dict.fromkeys(parts))


def _returns(given: dict[str, list[str]]) -> tuple[str, ...]:
    wanted = _list(given, "return") or DEFAULT_RETURN
    for name in wanted:
        if name not in RETURNABLE:
            raise UnknownName("value of return", name, RETURNABLE, pointer="query:return")
    return tuple(name for name in RETURNABLE if name in wanted)
