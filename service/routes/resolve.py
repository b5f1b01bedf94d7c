"""`POST /encodings/rope/resolve`: what a checkpoint's rotary configuration comes to."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request

from service.errors import MalformedBody, PayloadTooLarge, UnsupportedMediaType
from service.exchange import header
from service.rope_resolver import RopeResolver
from service.routes import problems, resolve_operation, upload
from service.routes.answers import Json
from service.routes.attention import PATH as ATTENTION
from service.routes.query import check_names
from service.settings import Settings
from service.wire import media

PATH = "/encodings/rope/resolve"
LARGEST = 1 << 20
"""Bytes of a configuration."""

HeadDim = Annotated[
    int | None,
    Query(ge=2, le=8192, multiple_of=2, description="In place of what the configuration says.", examples=[128]),
]
Length = Annotated[
    int | None,
    Query(
        ge=1,
        le=10**9,
        description="Length of the request whose frequencies are asked for, where they depend on it (dynamic, "
        "longrope). By default the length that the model was trained at.",
    ),
]


def router(resolver: RopeResolver, settings: Settings, responses: dict[int | str, Any]) -> APIRouter:
    routes = APIRouter(tags=["catalogue"], default_response_class=Json, responses=responses)

    @routes.post(
        PATH,
        summary="What a checkpoint's rotary configuration comes to",
        responses={**resolve_operation.RESPONSES, **problems.responses(*problems.COMMON)},
        openapi_extra=resolve_operation.REQUEST,
    )
    async def resolve(request: Request, head_dim: HeadDim = None, length: Length = None) -> Json:
        """Takes a whole `config.json`, or its `rope_scaling` or `rope_parameters` alone, in the old spelling or the
        new, and reads it as transformers does. Every key is in `used`, or a warning names it and says why it is not,
        or it is `ignored`: it has nothing to do with positions.
        """
        check_names(request.scope["query_string"], ("head_dim", "length"))
        document = await _read(request, settings)
        return Json(await resolver.resolve(document, f"{request.base_url}{ATTENTION[1:]}", head_dim, length))

    return routes


async def _read(request: Request, settings: Settings) -> Any:
    kind = media.media_type(header(request.scope, b"content-type"))
    if kind != media.JSON:
        raise UnsupportedMediaType(
            f"a configuration is sent as {media.JSON}, not as {kind}",
            pointer="header:Content-Type",
            allowed=[media.JSON],
        )
    content = await upload.read(request.scope, request.receive, settings.max_body_bytes, settings.body_seconds)
    if len(content) > LARGEST:
        raise PayloadTooLarge(f"the configuration has {len(content):,} bytes; at most {LARGEST:,}", limit=LARGEST)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise MalformedBody(f"the body is not JSON{media.not_json(content, error)}") from None
