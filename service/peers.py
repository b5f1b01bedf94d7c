"""Other instances of the service behind the same door, whom clients cannot tell apart."""

from __future__ import annotations

from typing import Protocol

from service.shelf import Shelf


class Peers(Protocol):
    async def expositions(self, accept: str) -> str:
        """The metrics of all of them, this one's too, in the format that the header asks for."""

    async def agree(self, shelf: Shelf) -> None:
        """Has them serve what this one does. Raises NotReady where one does not answer."""
