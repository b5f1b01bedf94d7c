"""A text that every machine has: sources of Python's standard library, and its documentation in `pydoc_data`.

Which files is pinned here, so the bytes follow from the version of Python alone; the digest says whether they did.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from jaxtyping import UInt8
from torch import Tensor

TRAINED_ON = (
    *("argparse", "ast", "base64", "bdb", "calendar", "cmd", "codecs", "collections/__init__", "configparser"),
    *(
        "contextlib",
        "copy",
        "csv",
        "dataclasses",
        "doctest",
        "email/message",
        "enum",
        "fractions",
        "ftplib",
        "functools",
    ),
    *("gettext", "glob", "gzip", "heapq", "html/parser", "http/client", "http/server", "imaplib", "inspect"),
    *("ipaddress", "json/decoder", "json/encoder", "mailbox", "mimetypes", "optparse", "os", "pdb", "pickle"),
    *("platform", "plistlib", "posixpath", "pprint", "pydoc", "queue", "random", "sched", "shutil", "smtplib"),
    *("socket", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "timeit", "trace", "traceback"),
    *("types", "unittest/case", "unittest/mock", "urllib/parse", "urllib/request", "uuid", "warnings", "weakref"),
    *("webbrowser", "xml/dom/minidom"),
)
HELD_OUT = ("netrc", "string", "shlex", "tokenize", "statistics", "difflib")
"""Sources only: topics of the documentation repeat whole sections of one another."""


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and bytes that no training has seen, as uint8."""

    trained_on: UInt8[Tensor, " bytes"]
    held_out: UInt8[Tensor, " bytes"]

    @classmethod
    def read(cls, library: Path | None = None) -> Corpus:
        """From the running Python's standard library, or another one's folder.

        Raises FileNotFoundError where a file of the list is missing.
        """
        library = library or Path(sysconfig.get_path("stdlib"))
        documentation = (topics[name] for name in sorted(topics))
        return cls(_joined([*_sources(library, TRAINED_ON), *documentation]), _joined(_sources(library, HELD_OUT)))

    @property
    def digest(self) -> str:
        """Of both parts."""
        found = hashlib.sha256(self.trained_on.numpy().tobytes())
        found.update(self.held_out.numpy().tobytes())
        return f"sha256:{found.hexdigest()}"


def _sources(library: Path, names: Iterable[str]) -> Iterable[str]:
    for name in names:
        yield (library / f"{name}.py").read_text("utf-8")


def _joined(texts: Iterable[str]) -> UInt8[Tensor, " bytes"]:
    return torch.frombuffer(bytearray("\n\n".join(texts).encode()), dtype=torch.uint8)
