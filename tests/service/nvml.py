"""A module in the place of nvidia-ml-py, for machines without a GPU: as much of its face as the service asks."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

BUS = "0000:18:00.0"


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):  # noqa: N801 - its name there
    pass


class Fake(ModuleType):
    """A device of number 3 whose `used` bytes and `load` in percent may be changed. `broken`: nothing is answered;
    `load` None: it does not say. `asked` counts readings.
    """

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.used = 5 << 30
        self.load: int | None = 40
        self.broken = False
        self.asked = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise NVMLError("the driver's library is not there")

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> str:  # noqa: N802
        assert bus == BUS
        return bus

    def nvmlDeviceGetIndex(self, device: str) -> int:  # noqa: N802
        assert device == BUS
        return 3

    def nvmlDeviceGetMemoryInfo(self, device: str) -> SimpleNamespace:  # noqa: N802
        assert device == BUS
        self.asked += 1
        if self.broken:
            raise NVMLError("the GPU is lost")
        return SimpleNamespace(used=self.used)

    def nvmlDeviceGetUtilizationRates(self, device: str) -> SimpleNamespace:  # noqa: N802
        assert device == BUS
        if self.load is None:
            raise NVMLError_NotSupported
        return SimpleNamespace(gpu=self.load, memory=1)


BEFORE = """
import sys
from service import gpu
from tests.service import nvml
sys.modules["pynvml"] = nvml.Fake()
gpu.bus_address = lambda: nvml.BUS
gpu.CUDA = "CPUExecutionProvider"
"""
"""Makes a service on the CPU take it for the library of a GPU on which it computes."""
