"""The application as Ray Serve can call it: what it sends goes to the proxy in another process."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = b"x-request-id"


class Passing:
    """Around the application. Pieces of answers are views of memory, which cannot be sent to another process: they are
    copied here. The proxy gives each request an id, which is the application's too, and adds it to the answer itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == REQUEST_ID]

        async def passed(message: Message) -> None:
            await send(_portable(message, given))

        await self._app(scope, receive, passed)


def _portable(message: Message, given: list[bytes]) -> dict[str, Any]:
    if "body" in message:
        return {**message, "body": bytes(message["body"])}
    if "headers" in message:
        kept = [(name, value) for name, value in message["headers"] if name != REQUEST_ID or value not in given]
        return {**message, "headers": kept}
    return dict(message)
