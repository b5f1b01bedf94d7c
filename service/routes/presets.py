"""`GET /presets`, `/presets/{name}`: inputs to begin with."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from service.errors import InvalidInput, NotAcceptable, NotFound, UnknownName
from service.exchange import header
from service.presets.listing import LARGEST_D, LARGEST_N, PRESETS, SEED, D, N, find
from service.presets.preset import MOST_NUMBERS, Preset
from service.routes import catalogue_schemas, query
from service.routes.answers import Json
from service.routes.schemas import BINARY, answer
from service.settings import Settings
from service.wire import media
from service.wire.body import Form
from service.wire.presets import WRITTEN, encode

ARGUMENTS = ("n", "d", "seed")
NAMES = (*ARGUMENTS, "arrays")
INLINE = 1 << 14
"""Numbers up to which a preset is made on the event loop."""
CACHE = "public, max-age=31536000, immutable"
"""The same question has the same answer for ever."""

DESCRIPTION = f"""
An input by name, as a body that `POST /attention` takes as it is:

```
curl -s 'http://127.0.0.1:8000/presets/repeat?n=64' |
    curl -s 'http://127.0.0.1:8000/attention?encoding=alibi' -H 'Content-Type: application/json' -d @-
```

The same name and arguments give the same bytes, everywhere and always, which `ETag` and `Cache-Control` say too. Which
arguments a preset takes, and their ranges, `GET /presets` lists; n x d is at most {MOST_NUMBERS:,}.

**Answer.** By `Accept`: JSON with `embeddings` [n, d] and `tokens`, equal names for equal embeddings; npz with the same
two arrays; npy or safetensors with the embeddings alone (in the latter, `tokens` stand in the header's `metadata`).
"""
_BINARY: dict[str, Any] = {"schema": BINARY}
_JSON: dict[str, Any] = {"schema": {"$ref": "#/components/schemas/AttentionRequest"}}
_RESPONSES: dict[int | str, Any] = {
    200: {
        "description": "The input.",
        "headers": {"ETag": {"schema": {"type": "string"}}, "Cache-Control": {"schema": {"type": "string"}}},
        "content": {media.JSON: _JSON, **{kind: _BINARY for kind in WRITTEN if kind != media.JSON}},
    },
    304: {"description": "It is what `If-None-Match` says."},
}


def _whole(name: str, description: str, minimum: int, maximum: int) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": minimum, "maximum": maximum}
    return {"name": name, "in": "query", "description": description, "schema": schema}


_PARAMETERS = [
    _whole("n", f"Tokens, by default {N}; of `sentence` the first ones, by default all.", 1, LARGEST_N),
    _whole("d", f"Numbers of each embedding, by default {D}; of `sentence` the first, by default all.", 1, LARGEST_D),
    _whole("seed", f"Of the random numbers, by default {SEED}; `constant` and `sentence` have none.", 0, 2**32 - 1),
    {
        "name": "arrays",
        "in": "query",
        "description": "How JSON writes the embeddings.",
        "schema": {"type": "string", "enum": list(query.FORMS), "default": query.FORMS[0]},
    },
]
Name = Annotated[str, Path(description="As `GET /presets` lists them.", examples=[preset.name for preset in PRESETS])]


def parse(preset: Preset, raw: bytes) -> tuple[Mapping[str, int], Form]:
    """All arguments, and how JSON is to write arrays. Raises InvalidInput, UnknownName, PayloadTooLarge."""
    query.check_names(raw, NAMES)
    pairs = dict(query.pairs(raw))
    given = {name: _number(name, pairs[name].strip()) for name in ARGUMENTS if name in pairs}
    return preset.complete(given), query.form("arrays", pairs.get("arrays", query.FORMS[0]).strip())


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 10):
        raise InvalidInput(f"{name}={value[:80]} is not a whole number from 0 on", pointer=f"query:{name}")
    return int(value)


def router(settings: Settings, responses: dict[int | str, Any]) -> APIRouter:
    routes = APIRouter(tags=["presets"], responses=responses)

    @routes.get(
        "/presets",
        summary="Inputs to begin with",
        response_class=Json,
        responses=answer(catalogue_schemas.PRESETS),
    )
    async def presets(request: Request) -> Json:
        """Each with what it is, and the arguments it takes with their defaults and ranges."""
        query.check_names(request.scope["query_string"], ())
        return Json({"presets": [preset.describe() for preset in PRESETS], "most_numbers": MOST_NUMBERS})

    @routes.get(
        "/presets/{name}",
        summary="An input by name",
        description=DESCRIPTION,
        response_class=Response,
        responses=_RESPONSES,
        openapi_extra={"parameters": _PARAMETERS},
    )
    async def preset(request: Request, name: Name) -> Response:
        try:
            found = find(name)
        except UnknownName as error:
            raise NotFound(error.detail, nearest=error.extra["nearest"], allowed=error.extra["allowed"]) from None
        arguments, form = parse(found, request.scope["query_string"])
        kind = media.negotiate(header(request.scope, b"accept"), WRITTEN)
        if form == "base64" and kind != media.JSON:
            raise InvalidInput(
                f"arrays=base64 is for JSON, but Accept asks for {kind}; leave arrays out", pointer="query:arrays"
            )
        numbers = arguments["n"] * arguments["d"]
        if kind == media.JSON and form == "lists" and numbers > settings.json_cells:
            raise NotAcceptable(
                f"the preset has {numbers:,} numbers, too large for JSON (ATTENTION_JSON_CELLS is "
                f"{settings.json_cells:,}): ask for it with Accept: {' or '.join(WRITTEN[1:])}, or with arrays=base64",
                pointer="header:Accept",
                limit=settings.json_cells,
                allowed=list(WRITTEN[1:]),
            )

        def made() -> tuple[bytes, str]:
            content = b"".join(encode(kind, found.make(**arguments), form))
            return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'

        content, tag = await asyncio.to_thread(made) if numbers > INLINE else made()
        headers = {"etag": tag, "cache-control": CACHE, "vary": "Accept"}
        if _matches(header(request.scope, b"if-none-match"), tag):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return routes


def _matches(wanted: str | None, tag: str) -> bool:
    """RFC 9110, 13.1.2: a list of tags, weak ones as good as strong ones, or `*` for any."""
    if wanted is None:
        return False
    tags = [one.strip().removeprefix("W/") for one in wanted.split(",")]
    return tag in tags or tags == ["*"]
