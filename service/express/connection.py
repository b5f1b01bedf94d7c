"""The server's connection, as requests that are answered straight from it see one."""

from __future__ import annotations

from typing import Any, Protocol

from service.sending import Sending


class Connection(Protocol):
    """It has at most one request here at a time."""

    @property
    def first_lines(self) -> bytes:
        """Of an answer of 200: the status, and what every answer of the server has."""

    @property
    def peer(self) -> str:
        """The address at its other end."""

    @property
    def gone(self) -> bool:
        """Whether nobody reads the answer any more."""

    @property
    def sending(self) -> Sending:
        """How far what was written to it has been taken."""

    def hold(self) -> None:
        """An answer is on its way: what else comes waits for it."""

    def reply(self, pieces: list[Any], *, close: bool) -> None:
        """Writes an answer, and goes on."""

    def decline(self, data: bytes | bytearray) -> None:
        """The request that was held has to be read by the server after all: these are its bytes."""
