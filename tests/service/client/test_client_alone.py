"""The client is one file that can be taken elsewhere."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from service import client

SOURCE = Path(client.__file__)
OPTIONAL = {"xarray", "pandas"}


def test_it_imports_nothing_but_the_standard_library_httpx_and_numpy() -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        if isinstance(node, ast.Import):
            imported.update(name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"httpx", "numpy"} | OPTIONAL


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """In a folder that holds the file alone."""
    (folder / "attention_client.py").write_bytes(SOURCE.read_bytes())
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_copy_of_it_works(url: str, tmp_path: Path) -> None:
    code = f"""
import sys
from attention_client import Client
with Client({url!r}) as client:
    print(client.attention([[1, 0], [0, 1]], "rope", returns="weights").weights.shape)
print(sorted({{"service", "xarray", "pandas", "onnxruntime"}} & set(sys.modules)))
"""
    assert run(tmp_path, code).stdout == "(1, 2, 2)\n[]\n"


@pytest.mark.parametrize(("name", "call"), [("xarray", "to_xarray"), ("pandas", "to_frame")])
def test_what_an_optional_package_is_needed_for_says_so(name: str, call: str, url: str, tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules[{name!r}] = None
from attention_client import Client
with Client({url!r}) as client:
    client.attention([[1, 0], [0, 1]], "rope", returns="weights").{call}()
"""
    done = run(tmp_path, code)
    assert done.returncode == 1
    assert f"this needs {name}, which is not installed: pip install {name}" in done.stderr
