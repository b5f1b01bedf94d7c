"""Nothing here reports to anybody: onnxruntime's own telemetry is off before it is first imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("package", ["service", "models"])
def test_onnxruntime_writes_no_telemetry(package: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / ".cache")}
    graph = Path(__file__).parents[1] / "exported" / "identity" / "none.onnx"
    code = f"import {package}, onnxruntime as o; o.InferenceSession({str(graph)!r}, providers=['CPUExecutionProvider'])"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    assert not list(tmp_path.rglob("*"))
