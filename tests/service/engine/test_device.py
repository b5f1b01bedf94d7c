from __future__ import annotations

import pytest

from service.engine.device import CPU, CUDA, DeviceError, Provider, choose, cuda_problem

PROBLEM = cuda_problem(Provider(CUDA))


def test_the_cpu_is_the_cpu() -> None:
    assert choose("cpu") == Provider(CPU)
    assert choose("cpu").chain == [CPU]


@pytest.mark.skipif(PROBLEM is None, reason="this machine has a GPU that works")
def test_cuda_that_is_not_there_fails_the_start_and_says_what_is_missing() -> None:
    with pytest.raises(DeviceError, match=r"libcuda|libcublas|no usable GPU|without CUDA"):
        choose("cuda")


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
