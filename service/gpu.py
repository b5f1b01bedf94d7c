"""What NVML tells of the GPU that the service computes on: how much of its memory is in use, and how busy it is.

NVML comes with the driver, and the package nvidia-ml-py, which asks it, with requirements/gpu.txt. Where either is
missing nothing is told, and nothing else is different.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from service.engine.device import CUDA

logger = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two looks, however often somebody scrapes. NVML's own means are over a sixth of a second to one."""


@dataclass(frozen=True, slots=True)
class Reading:
    """`gpu` is its number as nvidia-smi has it. `used`: bytes of its memory, whoever uses them. `busy`: the part of the
    last moment in which a kernel ran, None where the device does not say (a slice of one: MIG).
    """

    gpu: int
    used: int
    busy: float | None


class Gpu:
    """One device. It and its readings raise what NVML raises."""

    def __init__(self, nvml: Any, bus: str) -> None:
        """`bus` is the device's address on the PCI bus: CUDA and NVML number devices each in their own way."""
        nvml.nvmlInit()
        self._nvml = nvml
        self._device = nvml.nvmlDeviceGetHandleByPciBusId(bus)
        self.number = int(nvml.nvmlDeviceGetIndex(self._device))

    def read(self) -> Reading:
        used = int(self._nvml.nvmlDeviceGetMemoryInfo(self._device).used)
        try:
            busy = self._nvml.nvmlDeviceGetUtilizationRates(self._device).gpu / 100
        except self._nvml.NVMLError_NotSupported:
            busy = None
        return Reading(self.number, used, busy)


def find() -> Gpu:
    """The device that CUDA takes first, on which onnxruntime computes. Raises whatever stands in the way."""
    return Gpu(importlib.import_module("pynvml"), bus_address())


def bus_address() -> str:
    """Of CUDA's first device, by the driver. Raises OSError."""
    driver, device, text = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.create_string_buffer(32)
    for code in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuDeviceGetPCIBusId(text, len(text), device),
    ):
        if code:
            raise OSError(f"CUDA error {code}")
    return text.value.decode()


class Watch(threading.Thread):
    """Tells of the GPU once in so many seconds, from a thread of its own: a device that answers late or never holds
    nobody up. Told None where there is nothing to tell any more.
    """

    def __init__(self, told: Callable[[Reading | None], None], every: float = EVERY) -> None:
        super().__init__(name="attention-gpu", daemon=True)
        self._told = told
        self._every = every
        self._over = threading.Event()

    def run(self) -> None:
        try:
            gpu = find()
        except Exception as error:
            logger.info("the GPU's memory and load are not told: %s: %s", type(error).__name__, error)
            return
        failed = False
        while not self._over.is_set():
            try:
                self._told(gpu.read())
                failed = False
            except Exception as error:
                self._told(None)
                if not failed:
                    logger.warning("NVML does not answer: %s: %s", type(error).__name__, error)
                failed = True
            self._over.wait(self._every)

    def end(self) -> None:
        self._over.set()


def follow(provider: str, told: Callable[[Reading | None], None]) -> Watch | None:
    """Begins to tell of the GPU where one computes."""
    if provider != CUDA:
        return None
    watch = Watch(told)
    watch.start()
    return watch
