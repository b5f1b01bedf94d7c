"""Where tensors and configuration come from, and how a family asks for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from models.checkpoints.errors import CheckpointError, nearest, some
from models.checkpoints.layer import Norm, Projection, Three


class Source(Protocol):
    """A checkpoint on disk. Only the tensors that are asked for are read."""

    @property
    def name(self) -> str:
        """The file's or folder's own name, without the path to it."""

    @property
    def config(self) -> Mapping[str, Any]:
        """As `config.json` has it."""

    @property
    def names(self) -> Collection[str]:
        """Of every tensor, as the file has them."""

    def find(self, name: str) -> list[str]:
        """The names in the file of what transformers calls `name`, whatever stands before it."""

    def tensor(self, name: str) -> Tensor:
        """In float32 and the shape that transformers has; `name` is one of `find`'s."""

    def stored(self, name: str) -> Tensor:
        """The same numbers in the file's own type where that is float16 or bfloat16, else in float32."""


class Tensors:
    """Asks a source for tensors, saying what was looked for where they are not there."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def has(self, *names: str) -> bool:
        """Whether any of them is there."""
        return any(self.source.find(name) for name in names)

    def get(self, *names: str) -> Tensor:
        """The first of these that is there. Raises CheckpointError."""
        return self.source.tensor(self.place(*names))

    def maybe(self, *names: str) -> Tensor | None:
        """The first of these that is there, or None. Raises CheckpointError where one name has several places."""
        place = self._place(*names)
        return None if place is None else self.source.tensor(place)

    def place(self, *names: str) -> str:
        """What the file calls the first of these that is there. Raises CheckpointError."""
        found = self._place(*names)
        if found is None:
            near = nearest(names[0], self.source.names)
            there = f"the most like it: {some(near)}" if near else f"there are {some(self.source.names)}"
            raise CheckpointError(
                f"{self.source.name} has no tensor {' or '.join(names)} (nor one whose name ends so); {there}"
            )
        return found

    def _place(self, *names: str) -> str | None:
        for name in names:
            found = self.source.find(name)
            if len(found) > 1:
                raise CheckpointError(
                    f"{self.source.name} has {len(found)} tensors called {name}: {some(found)}; this is not one model"
                )
            if found:
                return found[0]
        return None

    def shaped(self, shape: Sequence[int], *names: str) -> Tensor:
        """`get`, of that shape. Raises CheckpointError."""
        found = self.get(*names)
        if tuple(found.shape) != tuple(shape):
            raise CheckpointError(
                f"{names[0]} of {self.source.name} has shape {list(found.shape)}, but by the configuration it is "
                f"{list(shape)}"
            )
        return found

    def linear(self, name: str, out: int, width: int) -> Projection:
        """`name.weight` [out, width], and `name.bias` where there is one."""
        weight = self.shaped((out, width), f"{name}.weight")
        return Projection(weight, self.shaped((out,), f"{name}.bias") if self.has(f"{name}.bias") else None)

    def three(self, module: str, names: tuple[str, str, str], out: int, width: int) -> Three:
        """`linear` of the queries, keys and values of a module, by their names within it."""
        query, key, value = (self.linear(f"{module}.{name}", out, width) for name in names)
        return query, key, value

    def layer_norm(self, name: str, epsilon: float) -> Norm:
        """By today's names or by TensorFlow's, which old checkpoints have."""
        return Norm(
            "layer", epsilon, self.get(f"{name}.weight", f"{name}.gamma"), self.maybe(f"{name}.bias", f"{name}.beta")
        )

    def rms_norm(self, name: str, epsilon: float, plus: float = 0.0) -> Norm:
        """`plus`: what the family adds to the weight before it multiplies."""
        weight = self.get(f"{name}.weight")
        return Norm("rms", epsilon, weight + plus if plus else weight)


class Config:
    """A configuration, asked for values under the names that checkpoints have for them."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values, self.name = values, name

    @property
    def model_type(self) -> str | None:
        value = self.values.get("model_type")
        return value if isinstance(value, str) else None

    def value(self, *names: str) -> Any:
        """Of the first name that has one, not null; else None."""
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def whole(self, *names: str, default: int | None = None) -> int:
        """Positive. Raises CheckpointError."""
        value = self.value(*names)
        value = default if value is None else value
        if value is None:
            raise self._missing(names)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(
                f"{names[0]} in the configuration of {self.name} is {value!r}, no positive whole number"
            )
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        """Raises CheckpointError."""
        value = self.value(*names)
        value = default if value is None else value
        if value is None:
            raise self._missing(names)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"{names[0]} in the configuration of {self.name} is {value!r}, no number")
        return float(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """Raises CheckpointError."""
        value = self.value(*names)
        value = default if value is None else value
        if not isinstance(value, bool | int):
            raise CheckpointError(
                f"{names[0]} in the configuration of {self.name} is {value!r}, neither true nor false"
            )
        return bool(value)

    def choice(self, layer: int, *names: str) -> Any:
        """The entry of a list that has one for each layer; None where there is no such list. Raises CheckpointError."""
        value = self.value(*names)
        if value is None:
            return None
        if not isinstance(value, list) or layer >= len(value):
            raise CheckpointError(f"{names[0]} in the configuration of {self.name} says nothing of layer {layer}")
        return value[layer]

    def _missing(self, names: Sequence[str]) -> CheckpointError:
        near = nearest(names[0], self.values)
        there = f"the most like it: {some(near)}" if near else f"it has {some(self.values)}"
        return CheckpointError(f"the configuration of {self.name} has no {' or '.join(names)}; {there}")
