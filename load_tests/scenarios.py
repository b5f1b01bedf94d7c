"""The scenarios: what is asked for, how often and how long. Every one is bounded in time and in requests under way.

Rates are multiples of what the service answered to a closed loop at the beginning of the same run (`Closed` named
"capacity"), or, where `Scenario.absolute`, requests a second. So a scenario means the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

IN_FLIGHT = 500
"""Most requests that an open loop has under way: what is due beyond is dropped, and counted as that."""


@dataclass(frozen=True)
class Mix:
    """What is asked for. `lengths` and `formats` are drawn by their shares, encodings by Zipf's law with `exponent`."""

    lengths: Mapping[int, float]
    """Tokens to share."""
    formats: tuple[str, ...] = ("npy",)
    """A format of `bodies.FORMATS`, and after a colon the one of the answer where it is another."""
    encodings: int | None = None
    """The first so many of those served; None: all."""
    exponent: float = 0.0
    query: str = "heads=8&return=output"
    width: int = 64
    compare: bool = False
    """Asks for all encodings at once."""
    check_every: int = 100
    """One answer in so many is read and checked in full."""


@dataclass(frozen=True)
class Closed:
    """So many connections, each with one request after the other."""

    name: str
    seconds: float
    connections: int
    mix: Mix
    judged: bool = False
    """Whether figures of this part are a result: then the generator must have had time left."""


@dataclass(frozen=True)
class Step:
    """Arrivals at one rate."""

    name: str
    seconds: float
    rate: float
    mix: Mix
    refusable: bool = False
    """Whether 429 and 503 with Retry-After are fair answers."""


@dataclass(frozen=True)
class Open:
    """Arrivals that wait for no answer, at the rate of each step in turn."""

    steps: tuple[Step, ...]
    until_slow: bool = False
    """Whether it ends after the first step that was slower than promised or dropped requests."""

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)


LEAST = 6.0
"""Seconds of a closed stage that shorter runs leave it."""


@dataclass(frozen=True)
class Scenario:
    name: str
    about: str
    stages: tuple[Closed | Open, ...]
    absolute: bool = False
    speed_decides: bool = True
    """Whether a limit of speed that is not kept fails the run. Counts and answers always decide."""
    shares: Mapping[str, float] = field(default_factory=lambda: {"attention": 1.0})
    """How the rate is divided: `attention`, `bad` input, and clients that are `leaving` before the answer."""

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def open_seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages if isinstance(stage, Open))

    def lasting(self, seconds: float) -> Scenario:
        """With its open steps, in proportion, so long all together; long stages before them are shorter too."""
        factor = seconds / self.open_seconds
        return replace(
            self,
            stages=tuple(
                replace(stage, steps=tuple(replace(step, seconds=step.seconds * factor) for step in stage.steps))
                if isinstance(stage, Open)
                else replace(stage, seconds=min(stage.seconds, max(LEAST, stage.seconds * factor)))
                for stage in self.stages
            ),
        )


EVERYDAY = Mix({16: 0.2, 64: 0.25, 128: 0.25, 256: 0.15, 512: 0.1, 1024: 0.05}, exponent=1.0)
SHORT = Mix({16: 0.3, 64: 0.3, 128: 0.2, 256: 0.2}, exponent=1.0)
EVERY_FORMAT = Mix(
    {16: 1, 32: 1, 64: 1},
    ("json", "npy:npz", "npz", "safetensors"),
    query="return=weights,scores,summary",
    check_every=20,
)
# Some 20 ms of a core, so that the service has no time left before the generator has none.
LONG = Mix({1000: 1.0}, encodings=1, width=16)


def warm(mix: Mix) -> Closed:
    """Left out of every figure but the counts."""
    return Closed("warm-up", 3, 4, mix)


def capacity(mix: Mix, *, judged: bool = False) -> Closed:
    return Closed("capacity", 6, 16, mix, judged)


def knee(name: str, mix: Mix) -> tuple[Closed | Open, ...]:
    """20 % more every 30 s, from a third of the capacity to twice it."""
    steps = (Step(f"{name}, step {number}", 30, 0.35 * 1.2**number, mix, refusable=True) for number in range(11))
    return capacity(mix), Open(tuple(steps), until_slow=True)


def overload(name: str, mix: Mix) -> Scenario:
    steps = (
        Step("filling", 4, 2.0, mix, refusable=True),
        Step("twice", 60, 2.0, mix, refusable=True),
        Step("five times", 10, 5.0, mix, refusable=True),
    )
    about = "twice the capacity for a minute, then five times that"
    return Scenario(name, about, (warm(mix), capacity(mix, judged=True), Open(steps)))


def _fixed(tokens: int, **changes: object) -> Mix:
    return replace(Mix({tokens: 1.0}), **changes)  # type: ignore[arg-type]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "smoke",
            "every encoding in every format, 20 a second, one in ten wrong",
            (Open((Step("smoke", 16, 20, EVERY_FORMAT),)),),
            absolute=True,
            speed_decides=False,
            shares={"attention": 0.9, "bad": 0.1},
        ),
        Scenario(
            "steady",
            "half of the capacity, some encodings far more often than others, 5 % long",
            (warm(EVERYDAY), capacity(EVERYDAY), Open((Step("steady", 300, 0.5, EVERYDAY),))),
        ),
        Scenario(
            "knee",
            "20 % more every 30 s until it is too slow",
            (
                warm(EVERYDAY),
                *knee("rope, 128 tokens", _fixed(128, encodings=1)),
                *knee("rope, 512 tokens", _fixed(512, encodings=1)),
                *knee("all, 512 tokens", _fixed(512)),
            ),
            speed_decides=False,
        ),
        Scenario(
            "mix-cost",
            "what it costs that requests are for 8 encodings and not for one",
            (
                warm(_fixed(256, encodings=8)),
                Closed("1 encoding", 20, 16, _fixed(256, encodings=1), judged=True),
                Closed("8 encodings", 20, 16, _fixed(256, encodings=8), judged=True),
                capacity(_fixed(256, encodings=8)),
                Open(
                    (
                        Step("1 encoding, open", 30, 0.5, _fixed(256, encodings=1)),
                        Step("8 encodings, open", 30, 0.5, _fixed(256, encodings=8)),
                    )
                ),
            ),
        ),
        Scenario(
            "compare",
            "all encodings in one request, metrics only, beside one encoding",
            (
                warm(_fixed(128)),
                Open(
                    tuple(
                        Step(f"{label}, {tokens} tokens", 30, 1.0, _fixed(tokens, query=query, compare=many))
                        for tokens in (128, 512)
                        for label, query, many in (
                            ("single", "return=summary", False),
                            ("compare", "return=summary,comparison", True),
                        )
                    )
                ),
            ),
            absolute=True,
        ),
        Scenario(
            "spike",
            "ten times as much for 10 s",
            (
                warm(SHORT),
                capacity(SHORT),
                Open(
                    (
                        Step("before", 30, 0.3, SHORT),
                        Step("spike", 10, 3.0, SHORT, refusable=True),
                        Step("recovery", 30, 0.3, SHORT, refusable=True),
                        Step("after", 30, 0.3, SHORT),
                    )
                ),
            ),
        ),
        overload("overload", LONG),
        overload("overload-compare", replace(LONG, query=f"{LONG.query}&compare=alibi,t5,none")),
        Scenario(
            "soak",
            "60 % of the capacity for long, 1 % wrong, 5 % of the clients leave",
            (
                # What is kept for every length of every encoding is there before memory is looked at.
                Closed(
                    "filling", 180, 16, replace(EVERYDAY, lengths=dict.fromkeys(EVERYDAY.lengths, 1.0), exponent=0.0)
                ),
                capacity(EVERYDAY),
                Open(
                    (
                        Step("settling", 300, 0.6, EVERYDAY),
                        Step("first", 500, 0.6, EVERYDAY),
                        Step("middle", 500, 0.6, EVERYDAY),
                        Step("last", 500, 0.6, EVERYDAY),
                    )
                ),
            ),
            shares={"attention": 0.94, "bad": 0.01, "leaving": 0.05},
        ),
        Scenario(
            "cancel",
            "clients leave after half of the mean latency",
            (
                warm(LONG),
                capacity(LONG),
                Open((Step("cancel", 30, 0.5, LONG),)),
            ),
            shares={"attention": 0.5, "leaving": 0.5},
        ),
        Scenario(
            "formats",
            "one client, every format and length, one after the other",
            (
                Closed("warm-up", 5, 1, Mix({128: 1, 1024: 1}, ("npy", "json"), encodings=1, query="return=weights")),
                *(
                    Closed(
                        f"{tokens} tokens",
                        10,
                        1,
                        Mix({tokens: 1}, ("json", "npy:safetensors", "npy:float16", "npz"), 1, query="return=weights"),
                        judged=True,
                    )
                    for tokens in (128, 256, 512, 1024)
                ),
            ),
            speed_decides=False,
        ),
    )
}


def chosen(name: str, seconds: float) -> Scenario:
    """The scenario of this name, with open steps of so many seconds all together; 0: its own."""
    scenario = SCENARIOS[name]
    return scenario.lasting(seconds) if seconds else scenario
