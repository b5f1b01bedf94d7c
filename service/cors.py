"""Which pages of other origins may read the answers: none, unless they are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import CrossOrigin
from service.exchange import Exchange
from service.wire import media, problem

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
            # A named page may ask a service in its visitor's own network too: browsers ask leave for that.
            allow_private_network=True,
            expose_headers=EXPOSED,
            max_age=SECONDS,
        )
        self._origins = frozenset(origins)
        self._preflight = observed(self._answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._preflight if _is_preflight(scope) else self._app)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To a preflight request. A refusal has the headers that tell a browser of it, and words for people."""
        asked = Headers(scope=scope)
        response = self._app.preflight_response(asked)
        if response.status_code >= 400:
            exchange, error = Exchange.of(scope), self._refusal(asked)
            exchange.fails(error.status, error.reason)
            content = problem.encode(error, exchange.request_id)
            kept = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
            response = Response(content, error.status, kept, media.PROBLEM)
        await response(scope, receive, send)

    def _refusal(self, asked: Headers) -> CrossOrigin:
        origin, method = asked["origin"], asked["access-control-request-method"]
        if origin not in self._origins:
            return CrossOrigin(
                f"pages of {origin[:80]!r} may not ask here: ATTENTION_CORS_ORIGINS names those that may, each exactly "
                "as scheme://host:port",
                pointer="header:Origin",
            )
        if method not in METHODS:
            return CrossOrigin(
                f"a page may not send {method[:20]!r}; allowed: {', '.join(METHODS)}",
                pointer="header:Access-Control-Request-Method",
                allowed=list(METHODS),
            )
        return CrossOrigin(
            f"a page may send no other headers than {', '.join(ALLOWED)}; it asked for "
            f"{asked.get('access-control-request-headers', '')[:200]!r}",
            pointer="header:Access-Control-Request-Headers",
            allowed=list(ALLOWED),
        )


def _is_preflight(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "OPTIONS":
        return False
    names = {name for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names
