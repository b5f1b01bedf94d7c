"""The service with a GPU's policy, bound memory and the numbers of CUDA graphs, on the CPU; and as it is there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from service.catalogue import Catalogue
from service.engine.assembly import Empty
from service.engine.engine import Engine
from service.engine.gpu_policy import GpuPolicy
from service.engine.job import Graph, Into, Job
from service.engine.memory import HostMemory
from service.engine.session import Sessions
from service.records import AttentionInput, AttentionOptions, ScoringResult, Timings
from service.scoring import Scoring
from service.tables import TableCache

CATALOGUE = Catalogue.read([Path(__file__).parents[3] / "exported"])
IDENTITY = CATALOGUE.model("identity")
ENCODINGS = sorted(IDENTITY.encodings)
CAUSAL_ONLY = {encoding.id for encoding in CATALOGUE.encodings if encoding.causal == "required"}
LEFT_ALONE = {"rope-dynamic", "rope-longrope"}
"""Their tables depend on how long the request is."""
TOLERANCE = 1e-6
"""Of weights; of the rest in proportion to its largest number, if that is over 1."""

Request = tuple[AttentionInput, AttentionOptions]
BUSY: Request = AttentionInput(embeddings=np.zeros((1, 2), np.float32)), AttentionOptions(encoding="none")


@dataclass
class Held:
    """The CPU, as a device of its own that is busy until `free` is set: so that what is sent meanwhile is queued."""

    sessions: Sessions
    free: threading.Event = field(default_factory=threading.Event)

    @property
    def provider(self) -> str:
        return self.sessions.provider

    @property
    def empty(self) -> Empty:
        return self.sessions.empty

    def ready(self, job: Job) -> bool:
        return True

    def run(
        self,
        graph: Graph,
        outputs: tuple[str, ...],
        masked: bool,
        feeds: Mapping[str, np.ndarray],
        switches: tuple[str, ...] = (),
        into: Into | None = None,
    ) -> Mapping[str, np.ndarray]:
        assert self.free.wait(60)
        return self.sessions.run(graph, outputs, masked, feeds, switches, into)


@dataclass
class Served:
    """The service as on the CPU (`alone`) and with a GPU's policy (`padded`), on one event loop."""

    runner: asyncio.Runner
    device: Held
    engine: Engine
    alone: Scoring
    padded: Scoring

    def one_by_one(self, requests: Sequence[Request]) -> list[ScoringResult]:
        return [self.runner.run(self.alone.score(*request, Timings())) for request in requests]

    def together(self, requests: Sequence[Request]) -> list[ScoringResult]:
        """All queued while the device is busy, and then computed."""

        async def main() -> list[ScoringResult]:
            self.device.free.clear()
            first = asyncio.ensure_future(self.padded.score(*BUSY, Timings()))
            while not self.engine.running_jobs:
                await asyncio.sleep(0.001)
            tasks = [asyncio.ensure_future(self.padded.score(*request, Timings())) for request in requests]
            while self.engine.waiting_requests < 1 + len(tasks) and not any(task.done() for task in tasks):
                await asyncio.sleep(0.001)
            self.device.free.set()
            await first
            return await asyncio.gather(*tasks)

        return self.runner.run(main())


@contextmanager
def serving() -> Iterator[Served]:
    sessions, policy = Sessions("cpu"), GpuPolicy()
    with asyncio.Runner() as runner:
        device = Held(Sessions("cpu", memory=HostMemory(), cuda_graphs=True))
        engine = Engine(device, policy=policy, workers=1)
        plain = Engine(sessions, workers=1)
        runner.run(engine.start())
        runner.run(plain.start())
        yield Served(
            runner,
            device,
            engine,
            Scoring(CATALOGUE, plain, TableCache(sessions)),
            Scoring(CATALOGUE, engine, TableCache(sessions), padding=policy),
        )
        runner.run(engine.stop())
        runner.run(plain.stop())


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
