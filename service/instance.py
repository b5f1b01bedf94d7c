"""An encoding as a request names it: `rope`, and `rope@long` where it is asked for more than once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from service.catalogue import Model
from service.encoding import Encoding
from service.errors import InvalidInput

LABEL = "[A-Za-z0-9_-]{1,32}"
"""Without dots: `rope@long.theta` is a parameter."""
ALL = "all"
MOST = 64
"""Encodings that one request may name."""


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """One encoding of a request. Of two with different names each has parameters of its own."""

    encoding: Encoding
    label: str | None = None

    @property
    def name(self) -> str:
        """The encoding's id, with its label where it has one: the key of everything that belongs to it."""
        return self.encoding.id if self.label is None else f"{self.encoding.id}@{self.label}"

    @classmethod
    def of(cls, model: Model, name: str | None, *, pointer: str | None = "query:encoding") -> Instance:
        """The encoding of that id or alias, which may carry a label after '@'; the model's own where none is named.

        Raises UnknownName for an encoding that there is not, InvalidInput for a label that is none.
        """
        if name is None:
            return cls(model.encoding())
        encoding, at, label = name.strip().partition("@")
        if not at:
            return cls(model.encoding(encoding, pointer=pointer))
        if not encoding:
            raise InvalidInput(
                f"{name[:80]!r} is a label without an encoding; it follows one, as in rope@long", pointer=pointer
            )
        if encoding.strip().lower() == ALL:
            raise InvalidInput(
                f"{name[:80]!r}: all takes no label, for it stands for many encodings; label those that you name",
                pointer=pointer,
            )
        found = model.encoding(encoding, pointer=pointer)
        if not re.fullmatch(LABEL, label):
            raise InvalidInput(
                f"{label[:80]!r} in {name[:80]!r} is no label: it has 1 to 32 letters (A to Z, a to z), digits, "
                "'-' and '_'",
                pointer=pointer,
            )
        return cls(found, label)


def asked(model: Model, encoding: str | None, compare: Sequence[str]) -> tuple[list[Instance], set[str]]:
    """Those that a request asks for, the reference first; and the names of those that only `all` asks for.

    The model's own encoding is the reference where `encoding` is None, and `compare` may name it among others then.
    Raises UnknownName, and InvalidInput for a name that came twice, a label that is none, or the reference alone.
    """
    everything = any(name.strip().lower() == ALL for name in compare)
    named = [name for name in compare if name.strip().lower() != ALL]
    if len(named) >= MOST:
        raise InvalidInput(
            f"compare names {len(named)} encodings; a request may ask for {MOST} with its reference",
            pointer="query:compare",
            limit=MOST,
        )
    reference = Instance.of(model, encoding)
    found = {reference.name: reference}
    words = {} if encoding is None else {reference.name: f"encoding={encoding}"}
    for word in named:
        instance = Instance.of(model, word, pointer="query:compare")
        if instance.name in words:
            raise _twice(instance, words[instance.name], f"compare={word}", found.keys() | set(named))
        words[instance.name] = f"compare={word}"
        found.setdefault(instance.name, instance)
    if named and len(found) == 1 and not everything:
        raise InvalidInput(
            f"compare={named[0][:80]} names the reference alone, which is {reference.name} where encoding is left out; "
            "name another, or leave compare out",
            pointer="query:compare",
        )
    if not everything:
        return list(found.values()), set()
    for one in model.encodings.values():
        found.setdefault(one.id, Instance(one))
    return list(found.values()), found.keys() - words.keys()


def _twice(instance: Instance, first: str, second: str, taken: set[str]) -> InvalidInput:
    id = instance.encoding.id
    other = next(name for name in (f"{id}@{label}" for label in ("other", *range(MOST))) if name not in taken)
    scalar = next((one.name for one in instance.encoding.parameters if one.kind != "array"), None)
    own = f"&{other}.{scalar}=..." if scalar else ""
    return InvalidInput(
        f"{instance.name} is asked for twice, by {first[:80]} and by {second[:80]}: name it once, or to have it under "
        f"other parameters too, give it a label of its own after '@': compare={other}{own}",
        pointer="query:compare",
    )
