"""What each part of the benchmark found, as it is kept in results/bench/."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict

from load_tests.bench.job import Format
from load_tests.bench.wrk import Run

Rounds = list[float]


class Part(BaseModel):
    """One part: when and on what it was measured. `busy`: the load average of the minute before it began."""

    model_config = ConfigDict(frozen=True)
    name: ClassVar[str]

    date: str
    commit: str
    busy: float
    seconds: float

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        path = folder / f"{cls.name}.json"
        return cls.model_validate_json(path.read_bytes()) if path.exists() else None

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(self.model_dump_json(indent=1))


class Trial(BaseModel):
    """A setting tried once: 64 connections and 1, binary bodies."""

    contender: str
    setting: str
    many: Run | None
    one: Run | None
    failed: str = ""


class Sample(BaseModel):
    """One run of a round."""

    contender: str
    format: Format
    connections: int
    round: int
    run: Run
    others: float
    """Part of all cores that was used by who takes no part."""


class Peers(Part):
    """This service beside others."""

    name: ClassVar[str] = "peers"
    trials: list[Trial]
    chosen: dict[str, dict[int, str]]
    """The setting's label, by contender and connections."""
    samples: list[Sample]
    errors: dict[str, float]
    """The largest error of a weight against float64, by contender."""
    resident: dict[str, int]
    """Bytes of all its processes after the last round."""
    model_us: dict[str, list[float]]
    """Microseconds of a bare run in each environment, alone and in a batch of 16."""
    absent: dict[str, str]
    """Peers that could not be measured, and why."""
    run_seconds: int


class BareRow(BaseModel):
    """Requests a second; runs a second of the bare model in as many threads as there are cores; answers a second of a
    server that does nothing but send them."""

    tokens: int
    megabytes: float
    """Size of an answer."""
    service: Rounds
    bare: Rounds
    sending: Rounds
    others: Rounds
    """Part of all cores that was used by who takes no part, while the service was measured."""
    shared: Rounds = []
    """Requests a second of clients that have their tensors in shared memory."""
    shared_others: Rounds = []
    """As `others`, meanwhile."""
    together: int = 1
    """Sequences in a request, in the next two."""
    shared_together: Rounds = []
    """Sequences a second of such clients."""
    together_others: Rounds = []

    @property
    def best(self) -> list[float]:
        """Round by round: answers a second of one who computes like the bare model and sends like the bare server, on
        the same cores."""
        return [1 / (1 / bare + 1 / sending) for bare, sending in zip(self.bare, self.sending, strict=True)]


class Bare(Part):
    """This service beside `session.run`."""

    name: ClassVar[str] = "bare"
    rows: list[BareRow]
    connections: int
    heads: int
    width: int


class ScalingRow(BaseModel):
    """Milliseconds for one request and for one run of the bare model, by pass. `rows`: None is all."""

    tokens: int
    rows: int | None
    service: Rounds
    bare: Rounds
    others: Rounds
    """As above."""


class Scaling(Part):
    """Time against length."""

    name: ClassVar[str] = "scaling"
    points: list[ScalingRow]
    heads: int
    width: int


class Memory(Part):
    """Resident memory while every request has another shape."""

    name: ClassVar[str] = "memory"
    requests: list[int]
    resident: list[int]
    """Bytes of all processes of the service, after so many requests since the warm-up."""
    started: int
    """Before it."""
    processes: int
    largest: int
    """Tokens of the longest request."""
    connections: int
