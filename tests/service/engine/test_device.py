from __future__ import annotations

import ctypes
from typing import Any

import pytest

from service.engine import device
from service.engine.device import CPU, CUDA, DeviceError, Provider, choose, cuda_problem

PROBLEM = cuda_problem(Provider(CUDA))


def test_the_cpu_is_the_cpu() -> None:
    assert choose("cpu") == Provider(CPU)
    assert choose("cpu").chain == [CPU]


@pytest.mark.skipif(PROBLEM is None, reason="this machine has a GPU that works")
def test_cuda_that_is_not_there_fails_the_start_and_says_what_is_missing() -> None:
    with pytest.raises(DeviceError, match=r"libcuda|libcublas|no usable GPU|without CUDA"):
        choose("cuda")


class Driver:
    """One that finds a GPU."""

    def cuInit(self, _: int) -> int:  # noqa: N802
        return 0


@pytest.mark.skipif(device._missing_library() is None, reason="CUDA's libraries are all here")
def test_a_library_of_cuda_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime#23372: where one is missing it computes on the CPU, and nobody is told."""
    load = ctypes.CDLL

    def loaded(name: Any, *arguments: Any, **more: Any) -> Any:
        return Driver() if name == "libcuda.so.1" else load(name, *arguments, **more)

    monkeypatch.setattr(ctypes, "CDLL", loaded)
    with pytest.raises(DeviceError, match=r"a CUDA library is missing: lib\w+\.so"):
        choose("cuda")
    assert choose("auto") == Provider(CPU)


@pytest.mark.skipif(PROBLEM is None, reason="this machine has a GPU that works")
def test_auto_takes_the_cpu_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    assert choose("auto") == Provider(CPU)
    assert capfd.readouterr() == ("", "")


def test_cuda_is_always_asked_for_without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime#19288: it is on by default, and rounds float32 products to 10 bits."""
    asked: list[Provider] = []
    monkeypatch.setattr("service.engine.device.cuda_problem", asked.append)  # and finds none
    assert choose("auto") == choose("cuda") == Provider(CUDA, {"use_tf32": "0"})
    assert asked == [Provider(CUDA, {"use_tf32": "0"})] * 2


@pytest.mark.skipif(PROBLEM is not None, reason=f"{PROBLEM}")
def test_cuda_that_works_is_taken_without_tf32() -> None:
    assert choose("auto") == choose("cuda") == Provider(CUDA, {"use_tf32": "0"})
