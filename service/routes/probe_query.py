"""The query string of a probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.errors import InvalidInput, UnknownName
from service.probes.records import EXTENDS, LENGTHS, OFFSETS, PROBES, Extend, ProbeOptions
from service.records import AttentionOptions
from service.routes import query

SHARED = ("encoding", "compare", "model", "heads", "key_heads", "causal")
"""What it says of attention, as `POST /attention` has it."""
NAMES = ("probe", *SHARED, "offsets", "seed", "lengths", "extend")
MOST = 16
"""Offsets, or lengths."""
LARGEST_OFFSET = 1e9
SHORTEST, LONGEST = 1 / 64, 64.0


def parse(raw: bytes) -> ProbeOptions:
    """Raises InvalidInput, or UnknownName with the nearest names. Encodings and their parameters are checked later."""
    query.check_length(raw)
    given: dict[str, list[str]] = {}
    scalars: dict[str, str] = {}
    for name, value in query.pairs(raw):
        if name in NAMES:
            given.setdefault(name, []).append(value)
        elif "." in name:
            if name in scalars:
                query.twice(name)
            scalars[name] = value
        else:
            known = [*NAMES, "ENCODING.PARAMETER"]
            raise UnknownName(query.KIND, name, known, pointer=f"query:{name[:80]}")
    probes, extend = _probes(given), query.one(given, "extend", _extend)
    _check_heard(given, probes, extend)
    attention = AttentionOptions(
        encoding=query.one(given, "encoding", query.nonempty),
        compare=query.listed(given, "compare"),
        model=query.one(given, "model", query.nonempty),
        heads=query.one(given, "heads", query.count),
        key_heads=query.one(given, "key_heads", query.count),
        causal=query.one(given, "causal", query.flag),
        scalars=scalars,
    )
    return ProbeOptions(
        attention,
        probes,
        _numbers(given, "offsets", -LARGEST_OFFSET, LARGEST_OFFSET) or OFFSETS,
        query.one(given, "seed", _seed) or 0,
        _numbers(given, "lengths", SHORTEST, LONGEST) or LENGTHS,
        extend or "tiled",
    )


def _check_heard(given: Mapping[str, object], probes: Sequence[str], extend: Extend | None) -> None:
    """Whether each argument is one of a probe that is asked for. Raises InvalidInput."""
    drawing = "length_sweep" in probes and extend == "random"
    heard = {
        "offsets": ("shift_gap" in probes, "shift_gap"),
        "lengths": ("length_sweep" in probes, "length_sweep"),
        "extend": ("length_sweep" in probes, "length_sweep"),
        "seed": ("order_gap" in probes or drawing, "order_gap, and of length_sweep with extend=random"),
    }
    for name, (used, owner) in heard.items():
        if name in given and not used:
            raise InvalidInput(
                f"{name} is an argument of {owner}, which probe={','.join(probes)} does not ask for; ask for it as "
                f"well, or leave {name} out",
                pointer=f"query:{name}",
            )


def _probes(given: dict[str, list[str]]) -> tuple[str, ...]:
    names = query.several(given, "probe")
    for name in names:
        if name not in PROBES:
            raise UnknownName("probe", name, PROBES, pointer="query:probe")
    return names or PROBES


def _numbers(given: dict[str, list[str]], name: str, low: float, high: float) -> tuple[float, ...]:
    numbers = tuple(dict.fromkeys(query.number(name, value) for value in query.several(given, name)))
    for number in numbers:
        if not low <= number <= high:
            raise InvalidInput(
                f"{name}={number:g} is out of range: {low:g} to {high:g}",
                pointer=f"query:{name}",
                minimum=low,
                maximum=high,
            )
    if len(numbers) > MOST:
        raise InvalidInput(
            f"{name} has {len(numbers)} numbers, at most {MOST} are taken", pointer=f"query:{name}", limit=MOST
        )
    return numbers


def _seed(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value) < 2**32):
        raise InvalidInput(f"{name}={value[:80]} is not a whole number from 0 to {2**32 - 1}", pointer=f"query:{name}")
    return int(value)


def _extend(name: str, value: str) -> Extend:
    for known in EXTENDS:
        if value == known:
            return known
    raise UnknownName("value of extend", value, EXTENDS, pointer="query:extend")
