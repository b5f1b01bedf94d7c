"""Heads of requests that were read before: what they say need not be read again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.express.routine import Routine
from service.routes.attention import PATH, THREADED, Asked
from service.wire import media

LONGEST, LARGEST = 2048, 1 << 21
"""Bytes of a head that is remembered, and of an array after one: to look at all of its numbers takes 0.2 ms."""
REMEMBERED, ROUTINES = 1024, 256
"""Heads and routines that are remembered at a time. A routine may hold a mask."""
PATIENCE, AGAIN = 4, 64
"""After so many requests that could not be taken a head is looked at once in so many times."""
SEEN = 4096
"""Heads that came once. Only what comes again is remembered: heads that a proxy gives numbers of their own would else
drive the others out."""
UNUSUAL = (b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"x-request-id", b"traceparent")
"""Heads with these are not remembered: they ask for something of this one request."""


@dataclass(slots=True, eq=False)
class Head:
    """What a head says, and how long its body is. `asked` is what that means, once it was found."""

    said: tuple[bytes, str | None, str | None]
    length: int
    asked: Asked | None = None
    routines: dict[Hashable, Routine] = field(default_factory=dict)
    """By the header of the array in the body where it is an npy file, else by the shape of the embeddings."""
    refused: int = 0
    """How many requests in a row were not taken."""

    @property
    def hopeless(self) -> bool:
        """Whether looking at the next request is not worth its while."""
        return self.refused > PATIENCE and self.refused % AGAIN != 0


class Heads:
    """Remembers so many of each; when there are more it forgets all, for what is still sent is soon learnt again. None
    with a header of `unusual`.
    """

    def __init__(self, unusual: tuple[bytes, ...] = ()) -> None:
        self._unusual = (*UNUSUAL, *unusual)
        self._heads: dict[bytes, Head] = {}
        self._seen: set[int] = set()
        self.routines = 0

    def __len__(self) -> int:
        return len(self._heads)

    def get(self, head: bytes) -> Head | None:
        return self._heads.get(head)

    def learn(self, head: bytes, scope: Mapping[str, Any]) -> None:
        """Remembers one as the server has read it, if requests like it may be taken."""
        if scope["path"] != PATH or scope["method"] != "POST" or scope["http_version"] != "1.1" or len(head) > LONGEST:
            return
        headers = dict(reversed(scope["headers"]))
        length = headers.get(b"content-length", b"")
        if any(name in headers for name in self._unusual) or not length.isdigit():
            return
        if int(length) > (LARGEST if headers.get(b"content-type") == media.NPY.encode() else THREADED):
            return
        if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive" or head in self._heads:
            return
        if hash(head) not in self._seen:
            if len(self._seen) >= SEEN:
                self._seen.clear()
            self._seen.add(hash(head))
            return
        if len(self._heads) >= REMEMBERED:
            self.forget()
        accept, kind = headers.get(b"accept"), headers.get(b"content-type")
        said = scope["query_string"], accept and accept.decode("latin-1"), kind and kind.decode("latin-1")
        self._heads[head] = Head(said, int(length))

    def put(self, head: Head, key: Hashable, routine: Routine) -> None:
        """Remembers one of a head's routines."""
        if self.routines >= ROUTINES:
            self.forget()
        self.routines += 1
        head.routines[key] = routine

    def forget(self) -> None:
        """All of them."""
        self._heads.clear()
        self.routines = 0
