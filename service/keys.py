"""API keys: which there are, told by a file that is read again when it changes, and whether a request has one."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.errors import Unauthorized

logger = logging.getLogger(__name__)

LOOK = 0.25
"""Seconds between two looks at the file."""
SHORTEST = 16
"""Characters of a key that stands in the file as it is: shorter ones can be guessed."""
OPEN = frozenset(
    {"/", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json"}
)
"""Paths that ask for no key: what orchestrators ask, and what the pages load, which tell nothing of anybody's data."""
OPEN_UNDER = ("/playground/", "/docs/")
METRICS = "/metrics"

_KEY = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""As RFC 6750 has them, so that every key can be sent either way."""
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")

Headers = Iterable[tuple[bytes, bytes]]
_Signature = tuple[int, int, int]


class KeysError(Exception):
    """The file cannot be read, or holds something else than keys; the message says what and on which line."""


@dataclass(frozen=True, slots=True)
class Key:
    """`name` is for the log, where the key itself never stands."""

    name: str
    digest: bytes


def parse(text: str) -> tuple[Key, ...]:
    """A key on each line, or a name and the SHA-256 of one: `alice:9f86d081...`. Empty lines and those that begin with
    `#` are none. Raises KeysError, which repeats nothing of the file.
    """
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, digest = line.partition(":")
        if colon:
            if not _NAME.fullmatch(name) or not _DIGEST.fullmatch(digest.strip()):
                raise KeysError(
                    f"line {number} is neither a key nor `name:digest`, where the digest is 64 hexadecimal digits"
                )
            keys.append(Key(name, bytes.fromhex(digest)))
            continue
        if not _KEY.fullmatch(line):
            raise KeysError(f"line {number} is no key: keys are of letters, digits and . _ ~ + / -")
        if len(line) < SHORTEST:
            raise KeysError(f"the key on line {number} has {len(line)} characters; at least {SHORTEST} are needed")
        keys.append(Key(f"line {number}", hashlib.sha256(line.encode()).digest()))
    if not keys:
        raise KeysError("there is no key in it")
    return tuple(keys)


def is_open(path: str, *, metrics: bool) -> bool:
    """Whether nobody needs a key there. `metrics`: whether those need one."""
    return path in OPEN or path.startswith(OPEN_UNDER) or (path == METRICS and not metrics)


def sent(headers: Headers) -> list[bytes]:
    """The keys that a request has: the first of `Authorization: Bearer` and of `X-API-Key`. Names are in lower case."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name == b"x-api-key":
            found.setdefault(name, value.strip())
        elif name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                found.setdefault(name, rest.strip())
    return [value for value in found.values() if value]


class Keys:
    """Belongs to one event loop. `changed` is called whenever other keys are taken from now on.

    What the file says is taken once it has been left alone for a look, so that one which is being written is not read
    by halves. A file that is gone, or wrong, changes nothing but the log: the keys of before stay good.
    """

    def __init__(self, path: Path, *, metrics: bool = False) -> None:
        """Raises KeysError. `metrics`: whether those need a key too."""
        self.changed: list[Callable[[], None]] = []
        self.path = path
        self._metrics = metrics
        self._known: tuple[Key, ...] = ()
        self._taken: _Signature | None = None
        self.read()

    def read(self) -> None:
        """Takes what the file says now. Raises KeysError."""
        try:
            signature = self._signature()
            known = parse(self.path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise KeysError(f"{self.path} (ATTENTION_API_KEYS_FILE) cannot be read: {reason}") from None
        except KeysError as error:
            raise KeysError(f"{self.path} (ATTENTION_API_KEYS_FILE): {error}") from None
        self._take(signature, known)

    def check(self, path: str, headers: Headers) -> None:
        """Raises Unauthorized."""
        if is_open(path, metrics=self._metrics):
            return
        keys = sent(headers)
        if not self._admits(keys):
            raise Unauthorized(unknown=bool(keys))

    def admits(self, headers: Headers) -> bool:
        """Whether a request with these headers has a key that is good now."""
        return self._admits(sent(headers))

    def _admits(self, keys: Sequence[bytes]) -> bool:
        """Takes as long for one key as for another."""
        good = False
        for key in keys:
            digest = hashlib.sha256(key).digest()
            for known in self._known:
                good |= hmac.compare_digest(digest, known.digest)
        return good

    async def follow(self) -> None:
        """For ever."""
        before: _Signature | None = self._taken
        told: str | None = None
        while True:
            await asyncio.sleep(LOOK)
            now, known, wrong = await asyncio.to_thread(self._look, before)
            before = now
            if wrong is not None and wrong != told:
                logger.error("%s; the API keys of before stay good", wrong)
            told = wrong
            if known is not None:
                self._take(now, known)

    def _look(self, before: _Signature | None) -> tuple[_Signature | None, tuple[Key, ...] | None, str | None]:
        """The file's signature; if it is another than what was taken, but that of the last look, its keys, or what is
        wrong with it."""
        where = f"{self.path} (ATTENTION_API_KEYS_FILE)"
        try:
            now = self._signature()
            if now == self._taken or now != before:
                return now, None, None
            known = parse(self.path.read_text())
        except OSError as error:
            return None, None, f"{where} cannot be read: {error.strerror}"
        except UnicodeDecodeError:
            return now, None, f"{where} cannot be read: it is not text"
        except KeysError as error:
            return now, None, f"{where}: {error}"
        return now, known, None

    def _take(self, signature: _Signature | None, known: tuple[Key, ...]) -> None:
        other = {key.digest for key in known} != {key.digest for key in self._known}
        self._taken, self._known = signature, known
        if not other:
            return
        logger.info("%d API keys are good: %s", len(known), ", ".join(key.name for key in known))
        for changed in self.changed:
            changed()

    def _signature(self) -> _Signature:
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino
