"""The OpenAPI document and the page that shows it, which loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send, StatefulLifespan

from service import __version__, keys
from service.catalogue import Catalogue
from service.cors import Cors
from service.errors import NotFound
from service.middleware import Observed
from service.routes import open_inference_operation, operation, probe_operation, samples
from service.routes.attention import PATH
from service.routes.probe import PATH as PROBE
from service.settings import Settings
from service.wire import media

DESCRIPTION = """
*Given these token embeddings, who attends to whom under this positional encoding, and how does that change under
another one?*

`POST /attention` answers it; `GET /encodings` says what can be asked for. Every failure is a problem document
(RFC 9457) that says what came, what is allowed and how to get there. Each answer carries `X-Request-ID` and
`Server-Timing`.
"""
SWAGGER = {
    # Its badge would send the document's address to a host on the internet.
    "validatorUrl": None,
    "tryItOutEnabled": True,
    "displayRequestDuration": True,
    "defaultModelsExpandDepth": 0,
}


POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""Of the page: Swagger UI is started by a script in it, and has styles and pictures in its own files."""


class Application(FastAPI):
    """FastAPI, with what is said of encodings in its OpenAPI document as they are now."""

    def __init__(self, catalogue: Catalogue, settings: Settings, lifespan: StatefulLifespan[FastAPI] | Any) -> None:
        super().__init__(
            title="Attention scoring service",
            version=__version__,
            description=DESCRIPTION,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            lifespan=lifespan,
            swagger_ui_parameters=SWAGGER,
        )
        self._catalogue = catalogue
        self._settings = settings
        self._described = catalogue.version
        self.shortcut: Observed | None = None
        """Answers what it serves past the framework's own layers, which cost as much as a small request."""
        self.cors: Cors | None = None
        """Around both ways, where pages of other origins may read the answers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.cors is not None:
            await self.cors(scope, receive, send)
        else:
            await self.answer(scope, receive, send)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whoever asks."""
        if self.shortcut is not None and self.shortcut.serves(scope):
            await self.shortcut(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None or self._described != self._catalogue.version:
            self.openapi_schema, self._described = None, self._catalogue.version
            document = super().openapi()
            document["paths"] = {
                PATH: {"post": operation.attention(self._catalogue, self._settings)},
                **document["paths"],
                **open_inference_operation.paths(),
            }
            document["paths"][PROBE]["post"] |= probe_operation.request(self._catalogue)
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            schemas.update(operation.SCHEMAS)
            if self._settings.api_keys_file is not None:
                _secure(document, metrics=self._settings.api_keys_for_metrics)
        assert self.openapi_schema is not None
        return self.openapi_schema


def _secure(document: dict[str, Any], *, metrics: bool) -> None:
    """Says which operations need an API key, and how it is sent."""
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    document["security"] = [{"bearer": []}, {"header": []}]
    for path, operations in document["paths"].items():
        if keys.is_open(path, metrics=metrics):
            for described in operations.values():
                described["security"] = []


def router(app: FastAPI) -> APIRouter:
    """`/docs` and what that page loads."""
    routes = APIRouter(include_in_schema=False)
    assets: dict[str, tuple[str, Callable[[], bytes]]] = {
        "swagger-ui-bundle.js": ("text/javascript", partial(_static, "swagger-ui-bundle.js")),
        "swagger-ui.css": ("text/css", partial(_static, "swagger-ui.css")),
        "example.npy": (media.NPY, samples.npy),
        "example.npz": (media.NPZ, samples.npz),
        "example.safetensors": (media.SAFETENSORS, samples.safetensors),
    }

    @routes.get("/docs")
    async def docs(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "")
        page = get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=app.title,
            swagger_js_url=f"{root}/docs/swagger-ui-bundle.js",
            swagger_css_url=f"{root}/docs/swagger-ui.css",
            swagger_favicon_url="data:,",
            swagger_ui_parameters=app.swagger_ui_parameters,
        )
        page.headers["content-security-policy"] = POLICY
        return page

    @routes.get("/docs/{file}")
    async def asset(file: str) -> Response:
        if file not in assets:
            raise NotFound(f"there is no {file[:80]!r} here; there are {', '.join(assets)}")
        content_type, read = assets[file]
        return Response(read(), media_type=content_type, headers={"cache-control": "max-age=3600"})

    return routes


@cache
def _static(name: str) -> bytes:
    """Swagger UI, as the package fastapi-offline ships it; FastAPI's own page would load it from the internet."""
    return (files("fastapi_offline") / "static" / name).read_bytes()
