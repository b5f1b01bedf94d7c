"""`/`, and the files of the page that stands there. It loads nothing from elsewhere, which its policy enforces too."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).resolve().parent.parent / "playground"
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "referrer-policy": "no-referrer",
    # A browser asks whether its copy is still good, by its ETag: a new version is seen at once and costs one load.
    "cache-control": "no-cache",
}
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html; charset=utf-8", ".svg": "image/svg+xml"}
"""What the machine's own list says may be something else."""


def router() -> APIRouter:
    """The page, and what it loads."""
    routes = APIRouter(include_in_schema=False)
    files = StaticFiles(directory=FOLDER)

    async def answer(name: str, request: Request) -> Response:
        response = await files.get_response(name, request.scope)
        response.headers.update(HEADERS)
        kind = _TYPES.get(Path(name).suffix)
        if kind is not None and response.status_code == 200:
            response.headers["content-type"] = kind
        return response

    @routes.get("/")
    async def page(request: Request) -> Response:
        return await answer("index.html", request)

    @routes.get("/playground/{file}")
    async def file(request: Request, file: str) -> Response:
        return await answer(file, request)

    return routes
