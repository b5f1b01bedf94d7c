"""The machine during a run: processor time of the service and of the generator, the service's memory and files."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import psutil  # type: ignore[import-untyped]

from load_tests.metrics import Metrics

SECOND = 1.0
SCRAPE = 2


@dataclass(frozen=True)
class Sample:
    """`at` by the monotonic clock; processor time in seconds since the start. Of all processes of the service."""

    at: float
    service_cpu: float
    generator_cpu: float
    resident_bytes: int


class Watch(threading.Thread):
    """Samples once a second and scrapes every other one, until `end`."""

    def __init__(self, address: str, service: int, generator: int) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.service, self.generator = psutil.Process(service), psutil.Process(generator)
        self.samples: list[Sample] = []
        self.scrapes: list[tuple[float, Metrics]] = []
        """Condensed: the whole of each would come to gigabytes in half an hour."""
        self._over = threading.Event()

    def run(self) -> None:
        turn = 0
        while not self._over.wait(SECOND):
            with suppress(psutil.NoSuchProcess):
                self.samples.append(self.sample())
            if turn % SCRAPE == 0:
                with suppress(OSError):
                    self.scrapes.append((time.monotonic(), Metrics.read(self.address).condensed()))
            turn += 1

    def end(self) -> None:
        self._over.set()
        self.join()

    def open_files(self) -> int:
        """Of the service: files, sockets, pipes."""
        return sum(process.num_fds() for process in self._processes())

    def _processes(self) -> list[psutil.Process]:
        return [self.service, *self.service.children(recursive=True)]

    def sample(self) -> Sample:
        cpu, resident = 0.0, 0
        for process in self._processes():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                times = process.cpu_times()
                cpu += times.user + times.system
                resident += _resident(process)
        times = self.generator.cpu_times()
        return Sample(time.monotonic(), cpu, times.user + times.system, resident)


class Resident:
    """The memory of a service, all of its processes together."""

    def __init__(self, service: int) -> None:
        self._supervisor = psutil.Process(service)

    def megabytes(self) -> float:
        total = 0
        for process in (self._supervisor, *self._supervisor.children()):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += _resident(process)
        return round(total / 1e6, 1)


def _resident(process: psutil.Process) -> int:
    """Of a page that several processes share each has its part, so that it counts once."""
    memory = process.memory_full_info()
    return int(getattr(memory, "pss", memory.uss))


def within(samples: Sequence[Sample], began: float, ended: float) -> list[Sample]:
    return [sample for sample in samples if began <= sample.at <= ended]


def cores(samples: Sequence[Sample]) -> tuple[float, float] | None:
    """Cores that the service and the generator used; None where there are fewer than three samples."""
    if len(samples) < 3:
        return None
    first, last = samples[0], samples[-1]
    seconds = last.at - first.at
    return (
        round((last.service_cpu - first.service_cpu) / seconds, 3),
        round((last.generator_cpu - first.generator_cpu) / seconds, 3),
    )


def spent(samples: Sequence[Sample], began: float) -> float | None:
    """Seconds of the processors that the service had since then; None where there are fewer than three samples."""
    since = within(samples, began, float("inf"))
    return round(since[-1].service_cpu - since[0].service_cpu, 2) if len(since) > 2 else None


def slope(samples: Sequence[Sample]) -> float | None:
    """MB of resident memory a minute, the straight line of least squares; None where there are fewer than three."""
    if len(samples) < 3:
        return None
    at = np.array([sample.at for sample in samples]) - samples[0].at
    resident = np.array([sample.resident_bytes for sample in samples]) / 1e6
    return round(float(np.polyfit(at / 60, resident, 1)[0]), 2)
