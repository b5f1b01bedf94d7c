"""Other instances of the service behind the same door, whom clients cannot tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from service.shelf import Shelf


class Peers(Protocol):
    async def expositions(self, accept: str) -> str:
        """The metrics of all of them, this one's too, in the format that the header asks for."""

    async def statistics(self, models: Sequence[str]) -> list[list[dict[str, Any]]]:
        """Of each of them, this one too, the reports on these models."""

    async def agree(self, shelf: Shelf) -> None:
        """Has them serve what this one does. Raises NotReady where one does not answer."""
