"""Where onnxruntime computes: CUDA only where it really works."""

from __future__ import annotations

import ctypes
import importlib.util
import io
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

Device = Literal["auto", "cpu", "cuda"]
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
NO_GRAPH = -1
"""onnxruntime's number for a run that neither captures a CUDA graph nor replays one."""


class DeviceError(RuntimeError):
    """CUDA was asked for and cannot be had. The message names what is missing."""


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider, its options, and what comes after it for the few nodes it has no kernel for."""

    name: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def chain(self) -> list[Any]:
        return [CPU] if self.name == CPU else [(self.name, self.options), CPU]


def choose(device: Device) -> Provider:
    """`auto` takes CUDA where it works and is silent where it does not; `cuda` raises DeviceError instead."""
    if device == "cpu":
        return Provider(CPU)
    # TF32 would round float32 products to 10 bits; it is on by default.
    cuda = Provider(CUDA, {"use_tf32": "0"})
    problem = cuda_problem(cuda)
    if problem is None:
        return cuda
    if device == "cuda":
        raise DeviceError(f"device cuda was asked for, but {problem}")
    return Provider(CPU)


def cuda_problem(cuda: Provider) -> str | None:
    """Why CUDA does not work, or None where it does.

    onnxruntime itself lists CUDA wherever its wheel was built for it, and falls back to the CPU without an exception,
    so the driver is asked, the libraries are loaded and a session is run.
    """
    if CUDA not in onnxruntime.get_available_providers():
        return "this onnxruntime was built without CUDA; onnxruntime-gpu has it"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"the NVIDIA driver is missing: {error}"
    if code := driver.cuInit(0):
        return f"the NVIDIA driver finds no usable GPU: {_cuda_error(driver, code)}"
    _load_libraries()
    try:
        session = onnxruntime.InferenceSession(smallest(), quiet_options(), cuda.chain, enable_fallback=0)
        if session.get_providers()[0] == CUDA:
            session.run(None, {"x": np.ones(1, dtype=np.float32)})
            return None
        reason = "onnxruntime falls back to the CPU"
    except Exception as error:
        reason = f"onnxruntime cannot run on the GPU: {error}"
    return _missing_library() or reason


def _load_libraries() -> None:
    """Loads CUDA's libraries from their wheels. onnxruntime looks for those beside itself only, but they may lie
    elsewhere on the path.
    """
    version = (getattr(onnxruntime, "cuda_version", None) or "").partition(".")[0]
    wheels = importlib.util.find_spec("nvidia")
    places = [Path(place) / f"cu{version}" / "lib" for place in (wheels and wheels.submodule_search_locations) or ()]
    for directory in (*(str(place) for place in places if place.is_dir()), None):
        # Prints, and does not raise, where the libraries are not installed as wheels.
        with redirect_stdout(io.StringIO()), suppress(Exception):
            onnxruntime.preload_dlls(directory=directory)


def _missing_library() -> str | None:
    try:
        ctypes.CDLL(str(Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"))
    except OSError as error:
        # Loaded alone it also lacks symbols that onnxruntime would give it: those are no reason.
        if "cannot open shared object file" in str(error):
            return f"a CUDA library is missing: {error}"
    return None


def graph_options(graph: int) -> Any:
    """Options of a run that captures or replays the CUDA graph of this number."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph))
    return options


def quiet_options(threads: int = 1) -> Any:
    """Session options that log nothing: what matters is raised. Left to itself onnxruntime makes a thread for each core
    of the machine and binds it there, whether this process may use that core or not, and they spin while they wait.
    """
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _cuda_error(driver: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorString(code, ctypes.byref(text))
    return f"{text.value.decode() if text.value else 'unknown error'} (CUDA error {code})"


def smallest() -> bytes:
    """A model that adds a number to itself."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "smallest", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return bytes(model.SerializeToString())
