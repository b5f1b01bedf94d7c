"""A preset: an input that has a name, so that a link or an exercise can say what it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32

from service.errors import InvalidInput, PayloadTooLarge

MOST_NUMBERS = 1 << 22
"""n x d: 16 MB of float32."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A whole number that a preset takes."""

    name: str
    description: str
    default: int
    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Embeddings and a name for each; where names are equal, so are embeddings, bit for bit."""

    embeddings: Float32[np.ndarray, "n d"]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Preset:
    """`make` takes the arguments by name."""

    name: str
    title: str
    description: str
    arguments: tuple[Argument, ...]
    make: Callable[..., Tokens]

    def complete(self, given: Mapping[str, int]) -> dict[str, int]:
        """Every argument: as given, or its default. Raises InvalidInput for one that is out of its range or that this
        preset does not take, PayloadTooLarge for more than `MOST_NUMBERS`.
        """
        known = [argument.name for argument in self.arguments]
        for name in given:
            if name not in known:
                raise InvalidInput(
                    f"the preset {self.name} takes {' and '.join(known)}, but no {name}: it is the same for every "
                    f"{name}; leave it out",
                    pointer=f"query:{name}",
                    allowed=known,
                )
        values = {argument.name: given.get(argument.name, argument.default) for argument in self.arguments}
        for argument in self.arguments:
            value = values[argument.name]
            if not argument.minimum <= value <= argument.maximum:
                raise InvalidInput(
                    f"{argument.name}={value} is out of range: the preset {self.name} takes {argument.minimum} to "
                    f"{argument.maximum}",
                    pointer=f"query:{argument.name}",
                    minimum=argument.minimum,
                    maximum=argument.maximum,
                )
        numbers = values["n"] * values["d"]
        if numbers > MOST_NUMBERS:
            raise PayloadTooLarge(
                f"n={values['n']} tokens of d={values['d']} numbers are {numbers:,}; a preset has at most "
                f"{MOST_NUMBERS:,}",
                limit=MOST_NUMBERS,
            )
        return values

    def describe(self) -> dict[str, Any]:
        """One entry of `GET /presets`."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "arguments": {
                argument.name: {
                    "description": argument.description,
                    "default": argument.default,
                    "minimum": argument.minimum,
                    "maximum": argument.maximum,
                }
                for argument in self.arguments
            },
        }
