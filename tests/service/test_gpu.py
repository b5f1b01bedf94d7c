"""What is told of the GPU, by a library in the place of the driver's: there is no GPU where these tests run."""

from __future__ import annotations

import importlib.util
import logging
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from service import gpu
from service.board import Board
from service.engine.device import CPU, CUDA
from service.gpu import Reading, Watch, follow
from service.telemetry import Telemetry
from tests.service import counts, nvml
from tests.service.process import serving
from tests.service.test_process import metrics, until

MEMORY, BUSY = "attention_gpu_memory_used_bytes", "attention_gpu_utilization_ratio"
GPU = (("gpu", "3"),)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> nvml.Fake:
    fake = nvml.Fake()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(gpu, "bus_address", lambda: nvml.BUS)
    return fake


def told(telemetry: Telemetry) -> dict[counts.Key, float]:
    found = counts.parse(generate_latest(telemetry.registry).decode())
    return {key: value for key, value in found.items() if key[0].startswith("attention_gpu")}


def watching(told: Callable[[Reading | None], None], provider: str = CUDA) -> Watch:
    watch = follow(provider, told)
    assert watch is not None
    return watch


def test_memory_and_load_are_told_by_whichever_process_answers() -> None:
    board = Board(2)
    telemetry = Telemetry(CollectorRegistry(), board)
    assert told(telemetry) == {}
    telemetry.enter(0)
    telemetry.gpu(Reading(3, 5 << 30, 0.4))
    telemetry.enter(1)
    assert told(telemetry) == {(MEMORY, GPU): 5 << 30, (BUSY, GPU): 0.4}
    telemetry.gpu(Reading(3, 6 << 30, 0.5))
    assert told(telemetry) == {(MEMORY, GPU): 5 << 30, (BUSY, GPU): 0.4}, "two of them are not twice as much"
    telemetry.forget(0)
    assert told(telemetry) == {(MEMORY, GPU): 6 << 30, (BUSY, GPU): 0.5}
    telemetry.gpu(Reading(3, 6 << 30, None))
    assert told(telemetry) == {(MEMORY, GPU): 6 << 30}, "a device that does not tell its load is not idle"
    telemetry.gpu(None)
    assert told(telemetry) == {}


def test_what_nvml_says_is_what_is_told(fake: nvml.Fake) -> None:
    telemetry = Telemetry(CollectorRegistry())
    watch = Watch(telemetry.gpu, every=0.01)
    watch.start()
    try:
        until(lambda: told(telemetry) == {(MEMORY, GPU): 5 << 30, (BUSY, GPU): 0.4})
        fake.used, fake.load = 7 << 30, None
        until(lambda: told(telemetry) == {(MEMORY, GPU): 7 << 30})
        fake.broken = True
        until(lambda: told(telemetry) == {})
        fake.broken, fake.load = False, 100
        until(lambda: told(telemetry) == {(MEMORY, GPU): 7 << 30, (BUSY, GPU): 1.0})
    finally:
        watch.end()
        watch.join(10)
    assert not watch.is_alive()


def test_a_device_that_is_lost_is_logged_once(fake: nvml.Fake, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    readings: list[Reading | None] = []
    watch = Watch(readings.append, every=0.001)
    watch.start()
    until(lambda: len(readings) > 0)
    fake.broken = True
    until(lambda: readings.count(None) > 5)
    watch.end()
    watch.join(10)
    assert [record.getMessage() for record in caplog.records] == ["NVML does not answer: NVMLError: the GPU is lost"]


@pytest.mark.parametrize("missing", ["library", "driver", "device"])
def test_without_nvml_nothing_is_told(
    missing: str, fake: nvml.Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    if missing == "library":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    elif missing == "driver":
        fake.broken = True
    else:
        monkeypatch.undo()  # the driver itself is asked
        if Path("/dev/nvidia0").exists() and importlib.util.find_spec("pynvml"):
            pytest.skip("there is a GPU")
    readings: list[Reading | None] = []
    watch = watching(readings.append)
    watch.join(10)
    assert not watch.is_alive()
    assert readings == []
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_where_the_cpu_computes_no_gpu_is_looked_for(fake: nvml.Fake) -> None:
    readings: list[Reading | None] = []
    assert follow(CPU, readings.append) is None
    assert fake.asked == 0


def test_however_often_somebody_scrapes_the_device_is_asked_once_in_its_time(fake: nvml.Fake) -> None:
    telemetry = Telemetry(CollectorRegistry())
    watch = Watch(telemetry.gpu, every=600)
    watch.start()
    until(lambda: (MEMORY, GPU) in told(telemetry))
    for _ in range(20):
        assert told(telemetry)[MEMORY, GPU] == 5 << 30
    assert fake.asked == 1
    watch.end()
    watch.join(10)


def test_a_service_tells_from_all_its_processes() -> None:
    with serving(processes="2", before=nvml.BEFORE) as service:
        until(lambda: (MEMORY, GPU) in metrics(service))
        for _ in range(12):  # each over a connection of its own: of one process or the other
            found = metrics(service)
            assert (found[MEMORY, GPU], found[BUSY, GPU]) == (5 << 30, 0.4)
        service.child.send_signal(signal.SIGTERM)
        assert service.wait(15) == 0


def test_the_requirement_is_of_the_gpu_alone() -> None:
    requirements = Path(__file__).parents[2] / "requirements"
    assert re.search(r"^nvidia-ml-py==", (requirements / "gpu.txt").read_text(), re.MULTILINE)
    assert "nvidia-ml-py" not in (requirements / "serve.txt").read_text()
