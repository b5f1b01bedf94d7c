"""What the processes of one service agree on beside the files that they serve: which models are taken out, and a number
for each name under which they count.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class Shelf:
    """`generation` counts the changes; `unloaded` are names of models, `identity.rope`, that are not served though
    their files are there; `names` are those that came after the start, in the order in which they came.
    """

    generation: int = 0
    unloaded: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def load(self, names: Iterable[str]) -> Shelf:
        """Serves these again, and has every process look at the files anew."""
        left = set(self.unloaded).difference(names)
        return replace(self, generation=self.generation + 1, unloaded=tuple(sorted(left)))

    def unload(self, names: Iterable[str]) -> Shelf:
        return replace(self, generation=self.generation + 1, unloaded=tuple(sorted({*self.unloaded, *names})))

    def like(self, other: Shelf) -> Shelf:
        """With what another one serves; the numbers of names are its own."""
        return replace(self, generation=other.generation, unloaded=other.unloaded)

    def named(self, names: Iterable[str]) -> Shelf:
        """With a number for each of these."""
        new = [name for name in names if name not in self.names]
        return replace(self, names=(*self.names, *new))


class SharedShelf:
    """One shelf in memory that forked processes share; whoever reads or changes it holds a lock."""

    def __init__(self) -> None:
        self._threads = threading.Lock()
        self._file = _nameless()
        weakref.finalize(self, os.close, self._file)
        self._write(Shelf())

    @property
    def stamp(self) -> int:
        """Changes when the shelf does; cheap to ask for."""
        return os.fstat(self._file).st_mtime_ns

    def read(self) -> Shelf:
        with self._locked():
            return self._read()

    def change(self, change: Callable[[Shelf], Shelf]) -> Shelf:
        """Puts `change` of the shelf in its place, and returns that."""
        with self._locked():
            before = self._read()
            after = change(before)
            if after != before:
                self._write(after)
        return after

    def _read(self) -> Shelf:
        found = json.loads(os.pread(self._file, os.fstat(self._file).st_size, 0))
        return Shelf(found["generation"], tuple(found["unloaded"]), tuple(found["names"]))

    def _write(self, shelf: Shelf) -> None:
        content = json.dumps(asdict(shelf)).encode()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, content, 0)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # The file's lock is the process's, and not that of the open file, which all share.
        with self._threads:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)


def _nameless() -> int:
    """A file without a name: in memory where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("attention-shelf")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
