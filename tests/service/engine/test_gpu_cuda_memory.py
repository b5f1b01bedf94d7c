"""Which calls of the CUDA runtime are made, on one that is ordinary memory; and the real one where there is a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.engine.assembly import assemble
from service.engine.cuda_memory import SIGNATURES, CudaError, CudaMemory
from service.engine.device import CUDA, Provider, cuda_problem
from service.engine.session import Sessions
from tests.service.engine.exports import exported, exported_job

PROBLEM = cuda_problem(Provider(CUDA))
STREAM = 0xABCD


class Runtime:
    """C functions that allocate ordinary memory; a copy is made when its stream is waited for."""

    def __init__(self, broken: str = "") -> None:
        self.calls: list[str] = []
        self.blocks: dict[int, Any] = {}
        self.begun: list[tuple[int, int, int]] = []
        self.wrong: list[str] = []
        self._text = ctypes.create_string_buffer(b"out of memory")
        bodies: dict[str, Callable[..., None]] = {
            "cudaMalloc": self._allocate,
            "cudaFree": self._free,
            "cudaHostAlloc": self._allocate,
            "cudaFreeHost": self._free,
            "cudaMemcpyAsync": self._copy,
            "cudaStreamCreateWithFlags": self._stream,
            "cudaStreamSynchronize": self._wait,
            "cudaMemGetInfo": self._information,
        }
        for name, arguments in SIGNATURES.items():
            body = self._function(name, bodies[name], 2 if name == broken else 0)
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(body))
        text = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)
        self.cudaGetErrorString = text(lambda code: ctypes.addressof(self._text))

    def _function(self, name: str, body: Callable[..., None], code: int) -> Callable[..., int]:
        def function(*arguments: Any) -> int:
            self.calls.append(name)
            if not code:
                body(*arguments)
            return code

        return function

    def _allocate(self, out: Any, size: int, flags: int = 0) -> None:
        block = ctypes.create_string_buffer(size)
        out[0] = ctypes.addressof(block)
        self.blocks[out[0]] = block

    def _free(self, address: int) -> None:
        del self.blocks[address]

    def _copy(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        if stream != STREAM or (kind == 1) != (to in self.blocks):
            self.wrong.append(f"{to:x} <- {source:x}, kind {kind}, stream {stream:x}")
        self.begun.append((to, source, size))

    def _stream(self, out: Any, flags: int) -> None:
        if flags != 1:
            self.wrong.append(f"stream flags {flags}")
        out[0] = STREAM

    def _wait(self, stream: int) -> None:
        for to, source, size in self.begun:
            ctypes.memmove(to, source, size)
        self.begun.clear()

    def _information(self, free: Any, total: Any) -> None:
        free[0], total[0] = 30, 100


def test_what_is_uploaded_can_be_downloaded() -> None:
    runtime = Runtime()
    memory = CudaMemory(runtime)
    array = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    address = memory.allocate(array.nbytes)
    memory.upload(array, address)
    memory.wait()
    back = np.empty_like(array)
    memory.download(address, back)
    np.testing.assert_array_equal(back, array)
    memory.free(address)
    assert not runtime.blocks
    assert not runtime.wrong


def test_a_download_is_over_when_it_returns_and_an_upload_when_it_was_waited_for() -> None:
    runtime = Runtime()
    memory = CudaMemory(runtime)
    address = memory.allocate(4)
    memory.upload(np.ones(1, np.float32), address)
    assert runtime.begun
    memory.wait()
    assert not runtime.begun
    memory.download(address, np.empty(1, np.float32))
    assert not runtime.begun


def test_host_memory_is_page_locked() -> None:
    runtime = Runtime()
    memory = CudaMemory(runtime)
    memory.free_host(memory.allocate_host(100))
    assert runtime.calls == ["cudaStreamCreateWithFlags", "cudaHostAlloc", "cudaFreeHost"]


def test_the_memory_in_use_is_what_is_not_free() -> None:
    assert CudaMemory(Runtime()).used() == (70, 100)


@pytest.mark.parametrize("function", ["cudaStreamCreateWithFlags", "cudaMalloc", "cudaMemcpyAsync"])
def test_a_call_that_fails_is_named_with_its_reason(function: str) -> None:
    def use() -> None:
        memory = CudaMemory(Runtime(broken=function))
        memory.upload(np.ones(1, np.float32), memory.allocate(4))

    with pytest.raises(CudaError, match=rf"{function} failed: out of memory \(CUDA error 2\)"):
        use()


@pytest.mark.skipif(PROBLEM is None, reason="this machine has a GPU that works")
def test_a_runtime_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(CudaError, match=r"the CUDA runtime is missing|without CUDA|failed"):
        CudaMemory()


@pytest.mark.skipif(PROBLEM is not None, reason=f"{PROBLEM}")
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("encoding", exported())
def test_a_gpu_gives_what_the_cpu_gives(encoding: str, graphs: bool) -> None:
    cpu, gpu = Sessions("cpu"), Sessions("cuda", cuda_graphs=graphs)
    names = ("weights", "scores", "output")
    job = exported_job(cpu, encoding, names, 37, 0)
    expected = cpu.run(job.graph, names, job.masked, assemble([job]))
    for _ in range(4):
        found = gpu.run(job.graph, names, job.masked, assemble([job]))
        for name in names:
            scale = max(1.0, float(np.abs(expected[name]).max()))
            np.testing.assert_allclose(found[name], expected[name], atol=1e-5 * scale)
