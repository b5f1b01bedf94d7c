"""Which pages of other origins may read the answers: none, unless they are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

METHODS = ("GET", "HEAD", "POST")
ALLOWED = ("accept", "content-type", "authorization", "x-api-key", "x-request-id", "inference-header-content-length")
"""Headers that a page may send."""
EXPOSED = ("x-request-id", "server-timing", "retry-after", "www-authenticate", "inference-header-content-length")
"""Headers of an answer that a page may read, beside those that every page may."""
SECONDS = 600
"""How long a browser remembers what it was allowed."""


class Cors:
    """Around the whole application, failures included. `observed` is put around the answers to preflight requests,
    which count like others but ask for no API key: browsers send none with them. Without credentials, so no cookie
    ever counts.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str], observed: Callable[[ASGIApp], ASGIApp]) -> None:
        self._app = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=ALLOWED,
            expose_headers=EXPOSED,
            max_age=SECONDS,
        )
        self._preflight = observed(self._app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._preflight if _is_preflight(scope) else self._app)(scope, receive, send)


def _is_preflight(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "OPTIONS":
        return False
    names = {name for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names
