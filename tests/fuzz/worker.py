"""One fuzzing process: `python -m tests.fuzz.worker FORMAT CORPUS [libFuzzer's options]`. atheris ends it by itself."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

INSTRUMENTED = ["service", "zipfile"]


def main(name: str, corpus: Path, *options: str) -> None:
    with atheris.instrument_imports(include=INSTRUMENTED):
        chosen = import_module("tests.fuzz.formats").FORMATS[name]
    atheris.Setup([sys.argv[0], str(corpus), *options], chosen.target)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
