"""What it was measured on, and with which versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from load_tests.bench.contenders import CORES, PEER_LIST, ROOT
from load_tests.bench.environments import version as pinned
from load_tests.bench.wrk import version as wrk_version

OURS = ("onnxruntime-gpu", "onnxruntime", "numpy", "uvicorn", "uvloop", "httptools", "orjson", "fastapi")


def rows() -> list[tuple[str, str]]:
    """Names and values, in the order to show them."""
    return [
        ("CPU", f"{cpu_model(Path('/proc/cpuinfo').read_text())}, {CORES} cores usable of {os.cpu_count()}"),
        ("memory", f"{psutil.virtual_memory().total / 2**30:.0f} GiB"),
        ("system", f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}"),
        ("Python", platform.python_version()),
        ("this service runs on", ", ".join(f"{name} {found}" for name in OURS if (found := _installed(name)))),
        ("peers", ", ".join(f"{peer.name} {pinned(peer.package)}" for peer in PEER_LIST)),
        ("the peers run on", f"onnxruntime {pinned_of('onnxruntime')}, numpy {pinned_of('numpy')}"),
        ("client", wrk_version()),
    ]


def pinned_of(package: str) -> str:
    """The version of a package that every peer has."""
    peers = Path(__file__).with_name("peers")
    found = set()
    for peer in PEER_LIST:
        for line in (peers / f"{peer.package}.txt").read_text().splitlines():
            name, _, rest = line.partition("==")
            if name == package:
                found.add(rest.split(";")[0].strip())
    return " or ".join(sorted(found))


def cpu_model(cpuinfo: str) -> str:
    """The first `model name` of /proc/cpuinfo; the architecture where there is none."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def commit() -> str:
    """The commit, and whether what is measured was changed since."""
    head = _git("rev-parse", "--short", "HEAD") or "unknown"
    changed = _git("status", "--porcelain", "--", "service", "exported")
    return f"{head} with changes" if changed else head


def _git(*arguments: str) -> str:
    finished = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return finished.stdout.strip()


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
