"""A GPU's memory, by the CUDA runtime that onnxruntime itself has loaded.

onnxruntime's Python API has no page-locked host memory unless an allocator of it is registered, which its CUDA provider
does not do, and no copy from the device into an array that exists. Both are two calls of the runtime.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnxruntime

TO_DEVICE, TO_HOST = 1, 2
NON_BLOCKING = 1

_pointer, _size, _int, _unsigned = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint
_out = ctypes.POINTER(ctypes.c_void_p)
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cudaMalloc": (_out, _size),
    "cudaFree": (_pointer,),
    "cudaHostAlloc": (_out, _size, _unsigned),
    "cudaFreeHost": (_pointer,),
    "cudaMemcpyAsync": (_pointer, _pointer, _size, _int, _pointer),
    "cudaStreamCreateWithFlags": (_out, _unsigned),
    "cudaStreamSynchronize": (_pointer,),
    "cudaMemGetInfo": (ctypes.POINTER(_size), ctypes.POINTER(_size)),
}


class CudaError(RuntimeError):
    """A call of the CUDA runtime failed, or the runtime is not there."""


class CudaMemory:
    """The first visible GPU. Copies have a stream of their own; each is over before the next step begins."""

    device = "cuda"

    def __init__(self, library: Any = None) -> None:
        """`library` replaces the CUDA runtime. Raises CudaError where there is none, or no GPU."""
        self._library = library if library is not None else _runtime()
        for name, arguments in SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        self._library.cudaGetErrorString.argtypes = (ctypes.c_int,)
        self._library.cudaGetErrorString.restype = ctypes.c_char_p
        self._stream = self._new("cudaStreamCreateWithFlags", NON_BLOCKING)

    def allocate(self, size: int) -> int:
        return self._new("cudaMalloc", size)

    def free(self, address: int) -> None:
        self._call("cudaFree", address)

    def upload(self, array: np.ndarray, address: int) -> None:
        self._call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, TO_DEVICE, self._stream)

    def wait(self) -> None:
        self._call("cudaStreamSynchronize", self._stream)

    def download(self, address: int, array: np.ndarray) -> None:
        self._call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, TO_HOST, self._stream)
        self.wait()

    def allocate_host(self, size: int) -> int:
        return self._new("cudaHostAlloc", size, 0)

    def free_host(self, address: int) -> None:
        self._call("cudaFreeHost", address)

    def used(self) -> tuple[int, int]:
        """Bytes of the device that are in use, by anybody, and all that it has."""
        free, total = _size(), _size()
        self._call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value, total.value

    def _new(self, function: str, *arguments: int) -> int:
        handle = ctypes.c_void_p()
        self._call(function, ctypes.byref(handle), *arguments)
        return int(handle.value or 0)

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            reason = self._library.cudaGetErrorString(code)
            raise CudaError(f"{function} failed: {reason.decode() if reason else 'unknown error'} (CUDA error {code})")


def _runtime() -> ctypes.CDLL:
    version = getattr(onnxruntime, "cuda_version", "") or ""
    if not version:
        raise CudaError("this onnxruntime was built without CUDA")
    name = f"libcudart.so.{version.partition('.')[0]}"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise CudaError(f"the CUDA runtime is missing: {error}") from error
