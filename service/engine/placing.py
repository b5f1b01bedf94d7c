"""Runs whose outputs are written where the caller wants them, by the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from service.engine.job import Into

if TYPE_CHECKING:
    from service.engine.session import Session


@dataclass(frozen=True, slots=True)
class Bound:
    """A session's inputs and outputs at the addresses of these arrays."""

    session: Session
    inputs: Sequence[np.ndarray]
    binding: Any

    @classmethod
    def of(cls, session: Session, inputs: Sequence[np.ndarray], into: Into) -> Bound:
        binding = session.native.io_binding()
        for name, array in zip(session.inputs, inputs, strict=True):
            binding.bind_cpu_input(name, array)
        for name in session.outputs:
            array = into.arrays[name]
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.__array_interface__["data"][0])
        return cls(session, inputs, binding)

    def suits(self, session: Session, inputs: Sequence[np.ndarray]) -> bool:
        return self.session is session and all(mine is theirs for mine, theirs in zip(self.inputs, inputs, strict=True))


def run(session: Session, feeds: Mapping[str, np.ndarray], into: Into) -> None:
    """Computes all outputs of the session into these arrays. Raises what `Session.run` raises.

    Binding takes as long as a small run, so it is kept for the next one. Two runs at a time have one each.
    """
    inputs = session.needed(feeds)
    bound = into.bound.pop() if into.bound else None
    if bound is None or not bound.suits(session, inputs):
        bound = Bound.of(session, inputs, into)
    session.native.run_with_iobinding(bound.binding, session.options)
    if not into.bound:
        into.bound.append(bound)
