"""An import beside the reference library, which works out its own answer in a process of its own meanwhile: loading it
takes as long as tracing a graph.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.checkpoints import reference
from models.checkpoints.served import Exported as Served
from models.export import Exported

TOKENS = 48


@dataclass(frozen=True)
class Compared:
    """The largest difference of attention weights from the reference library's, over random hidden states; None where
    it could not be asked, for `reason`.
    """

    difference: float | None
    reason: str = ""


class Comparison:
    """A reference that is under way, or the reason why there is none."""

    def __init__(
        self, process: subprocess.Popen[str] | None, folder: Path, hidden: Tensor | None = None, reason: str = ""
    ) -> None:
        self._process, self._folder, self._hidden, self._reason = process, folder, hidden, reason

    def of(self, exported: Exported) -> Compared:
        """The files as they were written."""
        if self._process is None or self._hidden is None:
            return Compared(None, self._reason)
        _, complaints = self._process.communicate()
        if self._process.returncode:
            last = (complaints.strip().splitlines() or ["it said nothing"])[-1]
            return Compared(None, f"transformers failed: {last}")
        answer = self._folder / reference.ANSWER
        if not answer.is_file():
            return Compared(None, "how to ask transformers for this architecture is not known here")
        theirs = load_file(answer)["weights"]
        ours = Served(exported.scores_path, exported.positions_path).weights(self._hidden)
        return Compared(float((ours - theirs).abs().max()))

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def comparison(checkpoint: Path, index: int | None, width: int) -> Iterator[Comparison]:
    """Begins to work out the reference; it is ended where it is still at it when this is left."""
    with TemporaryDirectory() as folder:
        if index is None:
            begun = Comparison(None, Path(folder), reason="the plain form is of no library's model")
        elif not reference.available():
            begun = Comparison(None, Path(folder), reason="transformers is not installed")
        else:
            command = [sys.executable, "-m", "models.checkpoints.reference", str(checkpoint), str(index), folder]
            hidden = torch.randn((1, TOKENS, width), generator=torch.Generator().manual_seed(0))
            save_file({"hidden": hidden}, Path(folder) / reference.QUESTION)
            pipe = subprocess.PIPE
            begun = Comparison(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True), Path(folder), hidden)
        try:
            yield begun
        finally:
            begun.end()
