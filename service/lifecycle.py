"""Whether this process takes work: it starts, it is ready, it drains."""

from __future__ import annotations

from collections.abc import Callable

from service.errors import Draining, NotReady, ServiceError


class Lifecycle:
    """Belongs to the event loop's thread, but for `drain`, which may be called from a signal handler.

    `health` says why no work can be done, or None where it can.
    """

    def __init__(self, health: Callable[[], str | None]) -> None:
        self._health = health
        self.warm = False
        self.draining = False
        self.inflight = 0
        """Requests whose answer has not been handed over."""

    def drain(self) -> None:
        """From now on new work is refused; what was taken goes on."""
        self.draining = True

    def check_open(self) -> None:
        """Raises Draining. Everything else that can be wrong shows when the work is tried."""
        if self.draining:
            raise Draining("the service is shutting down and takes no new work; send it to another replica")

    def refusal(self) -> ServiceError | None:
        """Why the process is not ready, or None where it is."""
        if self.draining:
            return Draining("the service is shutting down")
        if (reason := self._health()) is not None:
            return NotReady(reason)
        if not self.warm:
            return NotReady("the service is starting: its models have not been warmed up yet")
        return None

    @property
    def ready(self) -> bool:
        return self.refusal() is None
