"""Arrays of the caller's in which outputs are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from service.engine.job import Into
from service.engine.pruning import HALF, whole
from service.plan import Picked, Plan


class Places(Protocol):
    """Where outputs are wanted."""

    def __call__(self, output: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> np.ndarray | None:
        """An array of this shape and type for an output; None where it may be anywhere."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The outputs of a plan of one part, by the names that its job gives them. `shapes` has them all, `arrays` those
    that are wanted somewhere.
    """

    shapes: Mapping[str, tuple[int, ...]]
    arrays: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, plan: Plan, places: Places) -> Placed:
        """Raises what `places` raises."""
        layout, (part,) = plan.layout, plan.parts
        rows, queries = layout.batch or 1, len(layout.query_positions)
        matrix = (rows, layout.heads, queries, len(layout.key_positions))
        shapes, arrays = {}, {}
        for output in part.outputs:
            shape = (rows, queries, layout.heads, layout.head_dim) if whole(output) == "output" else matrix
            array = places(whole(output), shape, _kind(output))
            shapes[output] = shape
            if array is not None:
                arrays[output] = array
        return cls(shapes, arrays)

    def array(self, name: str) -> np.ndarray:
        """Of one that is wanted somewhere, by the name that the graph gives it."""
        return next(array for output, array in self.arrays.items() if whole(output) == name)

    def into(self) -> Into:
        """Arrays for all of them."""
        empty = {name: np.empty(shape, _kind(name)) for name, shape in self.shapes.items() if name not in self.arrays}
        return Into({**self.arrays, **empty})

    def copy(self, picked: Picked) -> None:
        """Puts what was computed elsewhere where it is wanted."""
        outputs = dict(picked.outputs)
        for name, array in self.arrays.items():
            array[...] = outputs[whole(name)]
            outputs[whole(name)] = array
        picked.outputs = outputs


def _kind(output: str) -> np.dtype[Any]:
    return np.dtype(np.float16 if output.startswith(HALF) else np.float32)
