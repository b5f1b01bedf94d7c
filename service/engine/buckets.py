"""The lengths that a device of its own pads to: few, so that requests of nearby lengths share a run."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Ladder:
    """`shortest` times 1, 1.5, 2, 3, 4, 6, 8, ..., up to `longest`: 16, 24, 32, 48, 64, 96, 128, 192, 256, ...

    Above `shortest`, a length becomes less than 1.5 times as long, so a matrix less than 2.25 times as large; over
    lengths whose logarithms are spread evenly, a length becomes 1.2 times and a matrix 1.4 times as large on average.
    Below it the waste in proportion is larger, but `shortest` squared is nothing to a device.
    """

    shortest: int = 16
    longest: int = 1024
    steps: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.shortest < 2 or self.shortest % 2 or self.longest < self.shortest:
            raise ValueError(
                f"a ladder from {self.shortest} to {self.longest}: it must begin with an even number and not end below"
            )
        steps, step = [], self.shortest
        while step <= self.longest:
            steps += [step, step * 3 // 2]
            step *= 2
        object.__setattr__(self, "steps", tuple(one for one in steps if one <= self.longest))

    def bucket(self, length: int) -> int | None:
        """The shortest step that holds so many tokens; None where all are too short."""
        at = bisect_left(self.steps, length)
        return self.steps[at] if at < len(self.steps) else None
