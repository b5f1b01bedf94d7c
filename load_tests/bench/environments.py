"""Each peer in a virtual environment of its own, with the versions pinned in peers/*.txt. Nothing goes into ours."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent.parent / ".bench"
PEERS = Path(__file__).with_name("peers")


class NotInstalled(Exception):
    """The message ends with the installer's last lines."""


def make_cache() -> None:
    """The folder for all that is installed and written here; git ignores it."""
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")


def python_of(package: str) -> Path:
    return CACHE / package / "bin" / "python"


def install(package: str, seconds: float = 600) -> None:
    """Makes or renews the environment if its lock has changed since. Raises NotInstalled."""
    make_cache()
    lock = PEERS / f"{package}.txt"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    mark = CACHE / package / ".locked"
    if mark.exists() and mark.read_text() == digest:
        return
    uv = [sys.executable, "-m", "uv"]
    _run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(CACHE / package)], seconds)
    _run([*uv, "pip", "sync", "--quiet", "--python", str(python_of(package)), str(lock)], seconds)
    mark.write_text(digest)


def version(package: str) -> str:
    """The version that the lock pins."""
    for line in (PEERS / f"{package}.txt").read_text().splitlines():
        name, _, pinned = line.partition("==")
        if name.split("[")[0] == package:
            return pinned.split(";")[0].strip()
    raise LookupError(f"{package}.txt does not pin {package}")


def _run(command: list[str], seconds: float) -> None:
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"not installed in {seconds:g} s") from None
    if finished.returncode != 0:
        raise NotInstalled("\n".join(finished.stderr.strip().splitlines()[-4:]))
