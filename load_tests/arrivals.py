"""When requests are due: a Poisson process, whose rate changes from step to step, and that waits for no answer."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator


def due_times(steps: Iterable[tuple[float, float]], chance: random.Random) -> Iterator[tuple[float, int]]:
    """Seconds since the beginning, and the index of the step, of every arrival.

    `steps` are (arrivals a second, seconds). Exponential gaps have no memory, so it changes
    nothing of the process that a new one starts where the rate changes.
    """
    began = 0.0
    for index, (rate, seconds) in enumerate(steps):
        due = began
        while rate > 0 and (due := due + chance.expovariate(rate)) < began + seconds:
            yield due, index
        began += seconds
