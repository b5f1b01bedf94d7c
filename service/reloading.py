"""Follows the folders of exported files: what is new, changed or gone there is served, or no longer, without a restart
and without a request lost.

Each process reads the files for itself, tries what is new with a small job, and only then puts it in the place of what
was served before; requests under way go on with what they began with. Files are read once they have been left alone for
a while, so that one that is being copied is not taken for a broken one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from service.board import Board
from service.catalogue import Catalogue
from service.encoding import Encoding
from service.errors import InvalidInput, NotReady, UnknownName
from service.peers import Peers
from service.shelf import SharedShelf, Shelf

logger = logging.getLogger(__name__)

Signature = frozenset[tuple[str, int, int]]
Attempt = Callable[[Catalogue, Sequence[Encoding]], Awaitable[dict[str, str]]]
Drop = Callable[[str, str | None], object]

LOOK = 0.1
"""Seconds between two looks at the shelf, on which another process may have put something."""
GRACE = 60.0
"""Seconds for which requests that began with what is served no longer find its sessions."""
TOGETHER = 10.0
"""Seconds that a change waits for the other processes to have made it too."""


class Reloading:
    """Belongs to one event loop. `attempt` tries encodings of a catalogue and says of those that fail why, by name;
    `drop` forgets the sessions of a name, but those of a digest. `taken` is called whenever the catalogue has changed.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        catalogue: Catalogue,
        shelf: SharedShelf,
        board: Board,
        attempt: Attempt,
        drop: Drop,
        watch_seconds: float,
        peers: Peers | None = None,
    ) -> None:
        self.taken: list[Callable[[], None]] = []
        self.names: tuple[str, ...] = ()
        """Those that came after the start, in the same order in every process."""
        self.folders = folders
        self.catalogue = catalogue
        self.shelf = shelf
        self.board = board
        self.watch_seconds = watch_seconds
        self._peers = peers
        self._attempt = attempt
        self._drop = drop
        self._done = board.take(1)
        """The column of the last generation that a process serves."""
        self._first = frozenset(encoding.name for encoding in catalogue.encodings)
        self._read = signature(folders)
        self._stamp = shelf.stamp
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Serves what is there now, if it is newer than what the process was forked with."""
        if self.shelf.read().generation or await asyncio.to_thread(signature, self.folders) != self._read:
            await self._catch_up()

    async def follow(self) -> None:
        """For ever."""
        looked, before = time.monotonic(), self._read
        while True:
            await asyncio.sleep(LOOK)
            try:
                if self.shelf.stamp != self._stamp:
                    await self._catch_up()
                if self.watch_seconds and time.monotonic() - looked >= self.watch_seconds:
                    looked, now = time.monotonic(), await asyncio.to_thread(signature, self.folders)
                    if now == before != self._read:  # it has changed, and changes no more
                        await self._catch_up()
                    before = now
            except Exception:
                logger.exception("the exported files could not be read again")

    async def load(self, name: str) -> list[str]:
        """Serves the files of that model or encoding as they are now; returns the names of what that is.

        Raises UnknownName where there are none, InvalidInput where they cannot be served, and why.
        """
        await self._change(lambda shelf: shelf.load(_matching(shelf.unloaded, name)))
        found = self._names(name)
        if found:
            return found
        reasons = [str(one) for one in self.catalogue.problems if _is(one.served_as, name)]
        if reasons:
            raise InvalidInput(f"{name!r} cannot be served: {'; '.join(reasons)}")
        raise UnknownName("model", name, self._known())

    async def unload(self, name: str) -> list[str]:
        """Serves that model or encoding no longer; returns the names of what that was. Raises UnknownName."""
        found = self._names(name) or _matching(self.catalogue.unloaded, name)
        if not found:
            raise UnknownName("model", name, self._known())
        await self._change(lambda shelf: shelf.unload(found))
        return found

    async def agree(self, other: Shelf) -> None:
        """Serves what another instance of the service does, if that changed later than what this one was told."""
        mine = await asyncio.to_thread(self.shelf.read)
        if (other.generation, other.unloaded) > (mine.generation, mine.unloaded):
            await self._here(lambda shelf: shelf.like(other))

    def forget(self, process: int) -> None:
        """That process is dead: what is put in its place has not caught up."""
        self.board.erase(process, self._done, 1)

    def _served(self) -> dict[str, Encoding]:
        return {encoding.name: encoding for encoding in self.catalogue.encodings}

    def _forget_sessions(self, name: str) -> None:
        now = self._served().get(name)
        self._drop(name, None if now is None else now.graph.digest)

    def _names(self, name: str) -> list[str]:
        return _matching((encoding.name for encoding in self.catalogue.encodings), name)

    def _known(self) -> list[str]:
        return [*(encoding.name for encoding in self.catalogue.encodings), *self.catalogue.unloaded]

    async def _change(self, change: Callable[[Shelf], Shelf]) -> None:
        """Here, in every other process, and in every other instance."""
        shelf = await self._here(change)
        if self._peers is not None:
            await self._peers.agree(shelf)

    async def _here(self, change: Callable[[Shelf], Shelf]) -> Shelf:
        shelf = await asyncio.to_thread(self.shelf.change, change)
        await self._catch_up(shelf)
        end = time.monotonic() + TOGETHER
        while self.board.column(self._done).min() < shelf.generation:
            if time.monotonic() > end:
                raise NotReady(
                    f"not every process of the service has followed within {TOGETHER:g} s; it is done in this one"
                )
            await asyncio.sleep(LOOK / 4)
        return shelf

    async def _catch_up(self, shelf: Shelf | None = None) -> None:
        async with self._lock:
            self._stamp = self.shelf.stamp
            shelf = await asyncio.to_thread(self.shelf.read)
            self._read = await asyncio.to_thread(signature, self.folders)
            read = await asyncio.to_thread(Catalogue.read, self.folders)
            new = read.without(shelf.unloaded)
            served = self._served()
            changed = [one for one in new.encodings if not _same(one, served.get(one.name))]
            if changed:
                new = new.failing(await self._attempt(new, changed))
                names = [one.name for one in new.encodings if one.name not in self._first]
                shelf = await asyncio.to_thread(self.shelf.change, lambda shelf: shelf.named(names))
            self.catalogue.take(new)
            self.names = shelf.names
            for told in self.taken:
                told()
            loop = asyncio.get_running_loop()
            for name, one in served.items():
                if not _same(one, self._served().get(name)):
                    loop.call_later(GRACE, self._forget_sessions, name)
            _tell(served, self._served(), new)
            self.board.row[self._done] = shelf.generation


def signature(folders: Iterable[Path]) -> Signature:
    """Of all files in the folders: which there are, how large they are and when they were written."""
    found = set()
    for folder in folders:
        for path in folder.glob("*/**/*"):
            try:
                status = path.stat()
            except OSError:
                continue
            found.add((str(path), status.st_mtime_ns, status.st_size))
    return frozenset(found)


def _matching(names: Iterable[str], name: str) -> list[str]:
    return [one for one in names if _is(one, name)]


def _is(one: str, name: str) -> bool:
    """Whether `one`, a model and an encoding, is what is called `name`, which may be the model alone."""
    wanted = name.strip().lower()
    return wanted in (one.lower(), one.rpartition(".")[0].lower())


def _same(one: Encoding, other: Encoding | None) -> bool:
    return other is not None and (one.graph, one.positions_graph.digest) == (other.graph, other.positions_graph.digest)


def _tell(before: dict[str, Encoding], after: dict[str, Encoding], catalogue: Catalogue) -> None:
    for text, names in (
        ("now served", [name for name in after if name not in before]),
        ("served anew", [name for name, one in after.items() if name in before and not _same(one, before[name])]),
        ("no longer served", [name for name in before if name not in after]),
        ("not served", map(str, catalogue.problems)),
    ):
        for name in names:
            logger.info("%s: %s", text, name)
