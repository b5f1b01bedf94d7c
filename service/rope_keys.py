"""The keys of a pasted configuration: which were used for what, and what is to be said of each that was not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, NoReturn

from service.errors import InvalidInput
from service.rope_names import KNOWN, REASONS, looks_rotary
from service.wire.pointer import pointer

Kind = Literal["contradiction", "default", "note", "unused"]
Path = tuple[str, ...]

MAX_KEYS = 512
ORDER: tuple[Kind, ...] = ("contradiction", "default", "note", "unused")


@dataclass(frozen=True, slots=True)
class Remark:
    """A warning about one key. `contradiction`: keys that do not agree; `default`: a key that is missing, and what was
    taken for it; `unused`: a key that has no part in the answer, and why; `note`: anything else worth knowing."""

    kind: Kind
    key: str
    message: str

    def rank(self) -> int:
        return ORDER.index(self.kind)


@dataclass(frozen=True, slots=True)
class Scope:
    """One object of the configuration, and where it stands. Empty for one that is not there."""

    path: Path
    values: Mapping[str, Any]

    def key(self, name: str) -> str:
        return ".".join((*self.path, name))

    @property
    def pointer(self) -> str:
        return pointer(*self.path)

    def key_pointer(self, name: str) -> str:
        return pointer(*self.path, name)


@dataclass(frozen=True, slots=True)
class Found:
    """A key that is there and not null. Its readers raise InvalidInput for a value of another kind."""

    path: Path
    value: Any

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def pointer(self) -> str:
        return pointer(*self.path)

    def number(self) -> float:
        if not _is_number(self.value):
            self.refuse("a number")
        number: float = self.value
        return number

    def numbers(self) -> list[float]:
        if not isinstance(self.value, list) or not self.value or not all(map(_is_number, self.value)):
            self.refuse("a list of numbers")
        numbers: list[float] = self.value
        return numbers

    def whole(self, largest: int) -> int:
        """From 1 on."""
        number = self.number()
        if not 1 <= number <= largest or number != int(number):
            self.refuse(f"a whole number from 1 to {largest:,}")
        return int(number)

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            self.refuse("true or false")
        return self.value

    def refuse(self, wanted: str) -> NoReturn:
        raise InvalidInput(f"{self.key} is {shown(self.value)}; it must be {wanted}", pointer=self.pointer)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Keys:
    """Keeps account of one document. The keys of an object count one by one where it was opened."""

    def __init__(self) -> None:
        self.layered = False
        """Whether layer types have settings of their own, so that one key may well differ from another."""
        self._opened: dict[Path, Scope] = {}
        self._settings: set[Path] = set()
        self._used: dict[Path, list[str]] = {}
        self._reasons: dict[Path, Remark] = {}
        self._remarks: dict[Remark, None] = {}

    def open(self, path: Path, values: Mapping[str, Any]) -> Scope:
        """Raises InvalidInput where there are too many keys to speak of each."""
        scope = self._opened[path] = Scope(path, values)
        count = sum(len(one.values) for one in self._opened.values())
        if count > MAX_KEYS:
            raise InvalidInput(f"the configuration has {count} keys; at most {MAX_KEYS} are read", limit=MAX_KEYS)
        return scope

    def settings(self, scope: Scope) -> Scope:
        """Says that this object is about rotation and nothing else, so that each of its keys is spoken of."""
        self._settings.add(scope.path)
        return scope

    def find(self, scopes: Iterable[Scope], names: Iterable[str]) -> list[Found]:
        """Every place where one of these names has a value, in order of precedence. Uses none."""
        return [
            Found((*scope.path, name), scope.values[name])
            for scope in scopes
            for name in names
            if scope.values.get(name) is not None
        ]

    def take(self, purpose: str, scopes: Iterable[Scope], *names: str) -> Found | None:
        """The first of `find`, used for `purpose`; the others are explained."""
        return self.choose(purpose, self.find(scopes, names))

    def choose(self, purpose: str, found: list[Found]) -> Found | None:
        if not found:
            return None
        first, *others = found
        self.use(first.path, purpose)
        for other in others:
            self.pass_over(other, first)
        return first

    def use(self, path: Path, purpose: str) -> None:
        purposes = self._used.setdefault(path, [])
        if purpose not in purposes:
            purposes.append(purpose)

    def pass_over(self, other: Found, chosen: Found) -> None:
        """`chosen` is used in place of `other`."""
        if other.value == chosen.value:
            self.explain(other, f"{chosen.key} says the same")
        else:
            self.explain(
                other,
                f"is {shown(other.value)}, but {chosen.key} = {shown(chosen.value)} takes its place",
                "unused" if self.layered else "contradiction",
            )

    def explain(self, found: Found, message: str, kind: Kind = "unused") -> None:
        """Why this key is not used, should nobody use it. The first explanation counts."""
        self._reasons.setdefault(found.path, Remark(kind, found.key, message))

    def explain_all(self, scopes: Iterable[Scope], names: Iterable[str], message: str) -> None:
        for found in self.find(scopes, names):
            self.explain(found, message)

    def remark(self, kind: Kind, key: str, message: str) -> None:
        self._remarks[Remark(kind, key, message)] = None

    def absent(self, scope: Scope, name: str, what: str) -> None:
        self.remark("default", scope.key(name), f"absent: {what}")

    @property
    def used(self) -> dict[str, str]:
        """Key -> what it was used for."""
        return {".".join(path): ", ".join(purposes) for path, purposes in self._used.items() if self._is_there(path)}

    @property
    def ignored(self) -> list[str]:
        """The keys that have nothing to do with positions, as far as their names tell."""
        return [".".join(path) for path, _ in self._left() if not self._spoken_of(path)]

    def _spoken_of(self, path: Path) -> bool:
        name = path[-1]
        if path in self._reasons or path[:-1] in self._settings or name in REASONS or name in KNOWN:
            return True
        return looks_rotary(name) or _nearest(name) is not None

    def remarks(self, encodings: str) -> list[Remark]:
        """All of them, contradictions first; each key that is neither used nor ignored has exactly one that explains
        it."""
        left = ((path, value) for path, value in self._left() if self._spoken_of(path))
        everything = [*self._remarks, *(self._unused(path, value, encodings) for path, value in left)]
        return sorted(everything, key=Remark.rank)

    def _is_there(self, path: Path) -> bool:
        scope = self._opened.get(path[:-1])
        return scope is not None and path[-1] in scope.values

    def _left(self) -> Iterator[tuple[Path, Any]]:
        for scope in self._opened.values():
            for name, value in scope.values.items():
                path = (*scope.path, name)
                if path not in self._used and path not in self._opened:
                    yield path, value

    def _unused(self, path: Path, value: Any, encodings: str) -> Remark:
        if path in self._reasons:
            return self._reasons[path]
        name = path[-1]
        if value is None:
            message = "null: read as absent"
        elif name in REASONS:
            message = REASONS[name]
        elif name in KNOWN:
            message = f"has no part in {encodings}"
        elif (nearest := _nearest(name)) is not None:
            message = f"not known here; did you mean {nearest}?"
        else:
            message = "not known here as a part of rotary configurations"
        return Remark("unused", ".".join(path), message)


def _nearest(name: str) -> str | None:
    """The known name that was meant, where that is likely."""
    nearest = get_close_matches(name, KNOWN, n=1, cutoff=0.8) if len(name) <= 40 else []
    return nearest[0] if nearest else None


def shown(value: Any) -> str:
    """A value in a message: short."""
    match value:
        case list():
            return f"a list of {len(value)}"
        case dict():
            return "an object"
        case str():
            return repr(value if len(value) <= 40 else value[:40] + "...")
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case _:
            return str(value).removesuffix(".0")
